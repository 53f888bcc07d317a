"""Reads the mount table and mounts file systems."""

from __future__ import annotations

from pathlib import Path

from bootstrap.context import Context
from bootstrap.errors import CommandError, StepError

MOUNTS = Path("/proc/self/mounts")
MOUNT_SECONDS = 300.0


def mounted_source(context: Context, mount: str) -> str | None:
    """Return the source of the mount at a directory, or None."""
    found = None
    for line in (context.system.read(MOUNTS) or "").splitlines():
        fields = line.split(" ")
        if len(fields) > 1 and fields[1] == mount.rstrip("/"):
            found = fields[0]  # a later mount hides earlier mounts
    return found


def mount(context: Context, source: str, target: str, *, kind: str | None, options: str) -> None:
    """Mount `source` at `target` unless it is already mounted there.

    Raises:
        StepError: Another source is mounted there, or the mount fails.
    """
    present = mounted_source(context, target)
    if present == source:
        return
    if present is not None:
        raise StepError(
            f"{target}: {present} is mounted there, expected {source}", remedy="set `mount` to another path"
        )
    kinds = ["-t", kind] if kind is not None else []
    try:
        context.system.run(["mkdir", "-p", target], timeout_seconds=30)
        context.system.run(["mount", *kinds, "-o", options, source, target], timeout_seconds=MOUNT_SECONDS)
    except CommandError as error:
        raise StepError.from_command(
            error,
            message=f"cannot mount {source} at {target}",
            remedy="see the output of mount and the kernel log",
        ) from error
