"""Boot step: mount the FSx for Lustre file system in the node document and set its striping.

Sources (2026-11): https://docs.aws.amazon.com/fsx/latest/LustreGuide/install-lustre-client.html,
https://docs.aws.amazon.com/fsx/latest/LustreGuide/mounting-ec2-instance.html and performance.html (striping).
"""

from __future__ import annotations

from bootstrap.boot_steps.step_runner import Step
from bootstrap.context import Context
from bootstrap.disks.mounting import mount, mounted_source
from bootstrap.disks.tools import require_program
from bootstrap.documents import Lustre
from bootstrap.errors import CommandError, NotReadyError, StepError

TOOL_SECONDS = 120.0
MOUNT_SECONDS = 120.0
INSTALL_GUIDE = "https://docs.aws.amazon.com/fsx/latest/LustreGuide/install-lustre-client.html"
# Output of mount.lustre when the name cannot be resolved or the servers do not respond yet.
# Source (2026-11): https://docs.aws.amazon.com/fsx/latest/LustreGuide/mount-troubleshooting.html and mount.lustre.c.
_LATE = ("Can't parse NID", "Input/output error", "timed out", "transport endpoint shutdown", "unreachable")


class SharedStorage(Step):
    """Mount the shared Lustre file system."""

    name = "shared_storage"
    after = ("identity",)

    def act(self, context: Context) -> None:
        """Install the client if it is missing, mount the file system, and set the striping for new files."""
        lustre = context.node.lustre
        if lustre is None:
            return
        require_program(context, "mount.lustre", package="lustre-client", guide=INSTALL_GUIDE)
        if mounted_source(context, lustre.mount) is None:
            context.wait_until_ready(lambda: _mount(context, lustre), limit_seconds=MOUNT_SECONDS)
        try:
            context.system.run(
                ["lfs", "setstripe", "--stripe-count", str(lustre.stripe_count), lustre.mount],
                timeout_seconds=TOOL_SECONDS,
            )
        except CommandError as error:
            raise StepError.from_command(
                error,
                message=f"{lustre.mount}: cannot stripe files over {lustre.stripe_count} servers",
                remedy="lower storage.lustre.stripe_count, or use -1 for all servers",
            ) from error

    def verify(self, context: Context) -> None:
        """Check that the file system is mounted."""
        lustre = context.node.lustre
        if lustre is not None and mounted_source(context, lustre.mount) is None:
            raise StepError(f"{lustre.mount}: not mounted", remedy="see the Lustre messages in the kernel log")


def _mount(context: Context, lustre: Lustre) -> None:
    source = f"{lustre.dns_name}@tcp:/{lustre.mount_name}"
    try:
        mount(context, source, lustre.mount, kind="lustre", options=lustre.options)
    except StepError as error:
        if any(text in error.output_tail for text in _LATE):
            raise NotReadyError.from_step(error) from error
        raise
