"""Boot step: does the machine have what the node document says it has."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from bootstrap.errors import CommandError, StepError
from bootstrap.plan import Context, Step
from bootstrap.steps.gpu_health import Action, Fault, gpu_faults, xid_faults
from bootstrap.steps.gpu_links import link_faults, start_switches

logger = logging.getLogger(__name__)

_GIB = 1024**3
MINIMUM_FREE_DISK_BYTES = 1 * _GIB
MINIMUM_AVAILABLE_MEMORY_BYTES = 1 * _GIB // 2
# NCCL and PyTorch share memory between the processes of a node; containers and odd images give 64 MiB and less.
MINIMUM_SHARED_MEMORY_BYTES = {False: 32 * 1024**2, True: 1 * _GIB}
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 the POSIX shared memory file system itself is looked at
DRIVER_SECONDS = 120.0
PROGRAM_SECONDS = 30.0
CLOCK_SECONDS, MOST_CLOCK_SECONDS = 1.0, 240.0


class InstanceChecks(Step):
    """Check GPUs and what connects them, clock, shared memory, free disk and memory, with an action for each fault."""

    name = "instance_checks"
    after = ("identity",)

    def act(self, context: Context) -> None:
        """Prepare the root directory, whose file system is measured; start GPU switches; reset what asks for it."""
        context.layout.root.mkdir(parents=True, exist_ok=True)
        start_switches(context)
        if any(fault.action == "reset" for fault in _gpu_faults(context)):
            _reset_gpus(context)
            start_switches(context)

    def verify(self, context: Context) -> None:
        """Check everything; say each fault in an event, and all that the machine is given back for at once.

        Raises:
            StepError: The machine cannot train, or should not.
        """
        found = [*_gpu_faults(context), *_clock_faults(context)]
        for check in (_shared_memory_problem, _disk_problem, _memory_problem):
            problem = check(context)
            if problem is not None:
                found.append(Fault(problem[0], "give_back", problem[1]))
        for fault in found:
            # A fault that a reset should have removed, and has not, is one of the machine.
            action = "continue" if fault.action == "continue" else "give_back"
            context.events.emit("instance_fault", message=fault.message, action=action, remedy=fault.remedy)
        fatal = [fault for fault in found if fault.action != "continue"]
        if fatal:
            raise StepError(
                "; ".join(fault.message for fault in fatal),
                remedy="; ".join(dict.fromkeys(fault.remedy for fault in fatal)),
            )


def _gpu_faults(context: Context) -> list[Fault]:
    expected = context.node.gpus
    if expected == 0:
        return []
    try:
        report = context.system.run(["nvidia-smi", "-q", "-x"], timeout_seconds=DRIVER_SECONDS)
    except CommandError as error:
        return [
            Fault(
                f"gpus: the driver answers for no GPU, the node document says {expected} ({error.reason})",
                "give_back",
                "use an image with the NVIDIA driver (the AWS deep learning images have it)",
            )
        ]
    try:
        kernel_log = context.system.run(["dmesg"], timeout_seconds=PROGRAM_SECONDS)
    except CommandError as error:
        errors = [Fault(f"gpus: their errors of this boot are not known ({error})", "continue", "run as root")]
    else:
        errors = xid_faults(kernel_log)
    return [*gpu_faults(report, expected), *link_faults(context, report), *errors]


def _reset_gpus(context: Context) -> None:
    """Reset all GPUs: nothing uses them yet."""
    try:
        context.system.run(["nvidia-smi", "--gpu-reset"], timeout_seconds=DRIVER_SECONDS)
    except CommandError as error:
        # Not the end: `verify` finds the fault again, and says what it is.
        logger.warning("the GPUs cannot be reset: %s %s", error, error.output_tail)
        return
    context.events.emit("gpus_reset")


def _clock_faults(context: Context) -> list[Fault]:
    """Say when the clock is wrong: AWS refuses requests that are signed with one that is 5 minutes off.

    Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/signature-v4-troubleshooting.html (2026-11).
    """
    if not context.metadata.is_of_this_machine or context.system.find_program("chronyc") is None:
        return []
    try:
        text = context.system.run(["chronyc", "tracking"], timeout_seconds=PROGRAM_SECONDS)
    except CommandError as error:
        return [Fault(f"clock: nothing keeps it ({error})", "continue", "start chronyd in the image")]
    found = re.search(r"^System time\s*: ([\d.]+) seconds (fast|slow)", text, re.MULTILINE)
    if found is None or float(found[1]) <= CLOCK_SECONDS:
        return []
    action: Action = "give_back" if float(found[1]) >= MOST_CLOCK_SECONDS else "continue"
    remedy = "let chronyd step the clock in the image (makestep), from 169.254.169.123"
    return [Fault(f"clock: {found[1]} seconds {found[2]}", action, remedy)]


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
