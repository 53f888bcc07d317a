"""Boot step: the FSx for Lustre file system of the node document, mounted, new files spread as the document says.

Sources (2026-11): https://docs.aws.amazon.com/fsx/latest/LustreGuide/install-lustre-client.html,
https://docs.aws.amazon.com/fsx/latest/LustreGuide/mounting-ec2-instance.html and performance.html there (striping).
"""

from __future__ import annotations

import logging

from bootstrap.errors import CommandError, StepError
from bootstrap.plan import Context, Step
from bootstrap.steps.mounting import mount, mounted_source

logger = logging.getLogger(__name__)

INSTALL_SECONDS = 600.0
TOOL_SECONDS = 120.0


class SharedStorage(Step):
    """Mount the shared Lustre file system."""

    name = "shared_storage"
    after = ("identity",)

    def act(self, context: Context) -> None:
        """Mount it, with its client when the image lacks that, and set how new files are striped."""
        lustre = context.node.lustre
        if lustre is None:
            return
        _need_client(context)
        source = f"{lustre.dns_name}@tcp:/{lustre.mount_name}"
        if mounted_source(context, lustre.mount) is None:
            mount(context, source, lustre.mount, kind="lustre", options=lustre.options)
        try:
            context.system.run(
                ["lfs", "setstripe", "--stripe-count", str(lustre.stripe_count), lustre.mount],
                timeout_seconds=TOOL_SECONDS,
            )
        except CommandError as error:
            raise StepError.from_command(
                error,
                message=f"{lustre.mount}: striping over {lustre.stripe_count} servers cannot be set",
                remedy="lower storage.lustre.stripe_count, or take -1 for all servers",
            ) from error

    def verify(self, context: Context) -> None:
        """It is mounted."""
        lustre = context.node.lustre
        if lustre is not None and mounted_source(context, lustre.mount) is None:
            raise StepError(f"{lustre.mount}: is not mounted", remedy="see what the kernel says of lustre")


def _need_client(context: Context) -> None:
    """Install the Lustre client where the image's own repository has it (Amazon Linux)."""
    if context.system.find_program("mount.lustre") is not None:
        return
    remedy = "use an image with the Lustre client, of the version that belongs to its kernel"
    if context.system.find_program("dnf") is None:
        raise StepError("the image has no Lustre client (mount.lustre)", remedy=remedy)
    logger.info("the Lustre client is installed")
    try:
        context.system.run(["dnf", "install", "--assumeyes", "lustre-client"], timeout_seconds=INSTALL_SECONDS)
    except CommandError as error:
        raise StepError.from_command(error, message="the Lustre client cannot be installed", remedy=remedy) from error
