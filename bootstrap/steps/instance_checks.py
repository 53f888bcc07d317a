"""Boot step: does the machine have what the node document says it has."""

from __future__ import annotations

import re
from pathlib import Path

from bootstrap.errors import CommandError, StepError
from bootstrap.plan import Context, Step

_GIB = 1024**3
MINIMUM_FREE_DISK_BYTES = 1 * _GIB
MINIMUM_AVAILABLE_MEMORY_BYTES = 1 * _GIB // 2
# NCCL and PyTorch share memory between the processes of a node; containers and odd images give 64 MiB and less.
MINIMUM_SHARED_MEMORY_BYTES = {False: 32 * 1024**2, True: 1 * _GIB}
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 the POSIX shared memory file system itself is looked at
_GPU_LISTING = Path("/proc/driver/nvidia/gpus")


class InstanceChecks(Step):
    """Count GPUs, and check shared memory, free disk and memory."""

    name = "instance_checks"

    def act(self, context: Context) -> None:
        """Prepare the root directory, whose file system is measured."""
        context.layout.root.mkdir(parents=True, exist_ok=True)

    def verify(self, context: Context) -> None:
        """Check everything, and say all that is wrong at once."""
        checks = (_gpu_problem, _shared_memory_problem, _disk_problem, _memory_problem)
        problems = [problem for check in checks if (problem := check(context)) is not None]
        if problems:
            raise StepError(
                "; ".join(message for message, _ in problems), remedy="; ".join(remedy for _, remedy in problems)
            )


def _gpu_problem(context: Context) -> tuple[str, str] | None:
    expected = context.node.gpus
    if expected == 0:
        return None
    found = len(context.system.list_directory(_GPU_LISTING))
    if found == 0:
        try:
            listing = context.system.run(["nvidia-smi", "--list-gpus"], timeout_seconds=60)
        except CommandError as error:
            return (
                f"gpus: the driver answers for no GPU, the node document says {expected} ({error.reason})",
                "use an image with the NVIDIA driver (the AWS deep learning images have it)",
            )
        found = len(re.findall(r"^GPU \d+:", listing, re.MULTILINE))
    if found == expected:
        return None
    return (
        f"gpus: {found} found, the node document says {expected}",
        "another instance type, or a GPU that failed: let the fleet replace the machine, or correct the catalogue",
    )


def _shared_memory_problem(context: Context) -> tuple[str, str] | None:
    if not _SHARED_MEMORY.exists():  # not Linux
        return None
    minimum = MINIMUM_SHARED_MEMORY_BYTES[context.node.gpus > 0]
    free = context.system.free_bytes(_SHARED_MEMORY)
    if free >= minimum:
        return None
    return (
        f"{_SHARED_MEMORY}: {free} bytes are free, training needs {minimum}",
        f"mount a larger one (mount -o remount,size={minimum * 2} {_SHARED_MEMORY}), or remove what is left in it",
    )


def _disk_problem(context: Context) -> tuple[str, str] | None:
    free = context.system.free_bytes(context.layout.root)
    if free >= MINIMUM_FREE_DISK_BYTES:
        return None
    return (
        f"{context.layout.root}: the disk is full ({free} bytes free, {MINIMUM_FREE_DISK_BYTES} needed)",
        "raise node.root_volume.gib, or remove files",
    )


def _memory_problem(context: Context) -> tuple[str, str] | None:
    match = re.search(r"^MemAvailable:\s+(\d+) kB", context.system.read(Path("/proc/meminfo")) or "", re.MULTILINE)
    if match is None:  # not Linux
        return None
    available = int(match[1]) * 1024
    if available >= MINIMUM_AVAILABLE_MEMORY_BYTES:
        return None
    return (
        f"memory: {available} bytes are available, {MINIMUM_AVAILABLE_MEMORY_BYTES} needed",
        "end what uses it, or choose an instance type with more memory",
    )
