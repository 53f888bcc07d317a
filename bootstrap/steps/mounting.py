"""What boot steps share about mounts: which there are, and how one is made."""

from __future__ import annotations

from pathlib import Path

from bootstrap.errors import CommandError, StepError
from bootstrap.plan import Context

MOUNTS = Path("/proc/self/mounts")
MOUNT_SECONDS = 300.0


def mounted_source(context: Context, mount: str) -> str | None:
    """Return what is mounted at a folder, or None."""
    found = None
    for line in (context.system.read(MOUNTS) or "").splitlines():
        fields = line.split(" ")
        if len(fields) > 1 and fields[1] == mount.rstrip("/"):
            found = fields[0]  # the last one covers those before
    return found


def mount(context: Context, source: str, target: str, *, kind: str | None, options: str) -> None:
    """Mount `source` at `target`, unless it is there.

    Raises:
        StepError: Something else is mounted there, or the mount fails.
    """
    present = mounted_source(context, target)
    if present == source:
        return
    if present is not None:
        raise StepError(f"{target}: {present} is mounted there, not {source}", remedy="take another folder for `mount`")
    kinds = ["-t", kind] if kind is not None else []
    try:
        context.system.run(["mkdir", "-p", target], timeout_seconds=30)
        context.system.run(["mount", *kinds, "-o", options, source, target], timeout_seconds=MOUNT_SECONDS)
    except CommandError as error:
        raise StepError.from_command(
            error,
            message=f"{source}: cannot be mounted at {target}",
            remedy="see the last lines of mount and the kernel",
        ) from error
