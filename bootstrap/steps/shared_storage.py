"""Boot step: the FSx for Lustre file system of the node document, mounted, new files spread as the document says.

Sources (2026-11): https://docs.aws.amazon.com/fsx/latest/LustreGuide/install-lustre-client.html,
https://docs.aws.amazon.com/fsx/latest/LustreGuide/mounting-ec2-instance.html and performance.html there (striping).
"""

from __future__ import annotations

from bootstrap.errors import CommandError, StepError
from bootstrap.plan import Context, Step
from bootstrap.steps.mounting import mount, mounted_source
from bootstrap.steps.packages import need_program

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
        need_program(context, "mount.lustre", package="lustre-client")
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
