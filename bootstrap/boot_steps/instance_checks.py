"""Boot step: check the instance's hardware and resources.

The driver and the clock may become ready only after user data has started (docs/node-images.md), so the step waits
for them before it checks them.
"""

from __future__ import annotations

import contextlib
import logging
import re
from functools import partial
from pathlib import Path
from typing import Literal

from bootstrap.boot_steps.step_runner import Step
from bootstrap.context import Context
from bootstrap.errors import CommandError, NotReadyError, StepError
from bootstrap.events.schema import GpusReset, InstanceFault
from bootstrap.gpus.health import Action, Fault, gpu_faults, xid_faults
from bootstrap.gpus.links import link_faults, start_fabric_manager

logger = logging.getLogger(__name__)

_GIB = 1024**3
MIN_FREE_DISK_BYTES = 1 * _GIB
MIN_AVAILABLE_MEMORY_BYTES = 1 * _GIB // 2
# NCCL and PyTorch share memory between a node's processes, but containers and some images provide 64 MiB or less.
MIN_SHARED_MEMORY_BYTES = {False: 32 * 1024**2, True: 1 * _GIB}
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 mount point of the POSIX shared memory file system
DRIVER_SECONDS = 120.0
PROGRAM_SECONDS = 30.0
CLOCK_WARNING_SECONDS, MAX_CLOCK_SECONDS = 1.0, 240.0
# Exit codes of nvidia-smi: 6: no device found; 9: the driver is not loaded; 12: the NVML library was not found.
# Source (2026-11): https://docs.nvidia.com/deploy/nvidia-smi/index.html (return value).
_DRIVER_IS_LATE = (6, 9, 12)
# The driver initializes the GPUs one at a time, in 3 to 4 seconds each.
# Source (2026-11): https://github.com/tinfoilsh/cvmimage/pull/363 (8 GPUs: 26 s).
DRIVER_WAIT_SECONDS = 150.0
CLOCK_WAIT_SECONDS = 60.0
_CLOCK_REMEDY = "configure chronyd in the image to step the clock (makestep) from 169.254.169.123"
_DRIVER_REMEDY = "use an image with the NVIDIA driver, such as an AWS deep learning image"


class InstanceChecks(Step):
    """Check GPUs and their links, clock, shared memory, free disk space and free memory."""

    name = "instance_checks"
    after = ("identity",)

    def act(self, context: Context) -> None:
        """Wait for the driver and the clock, start the fabric manager, and reset GPUs whose faults a reset can fix."""
        context.layout.root.mkdir(parents=True, exist_ok=True)
        for attempt, limit_seconds in ((_query_driver, DRIVER_WAIT_SECONDS), (_check_clock, CLOCK_WAIT_SECONDS)):
            with contextlib.suppress(NotReadyError):  # `verify` reports it
                context.wait_until_ready(partial(attempt, context), limit_seconds=limit_seconds)
        start_fabric_manager(context)
        if any(fault.action == "reset" for fault in _gpu_faults(context)):
            _reset_gpus(context)
            start_fabric_manager(context)

    def verify(self, context: Context) -> None:
        """Run all checks and emit each fault.

        Raises:
            StepError: The instance must terminate. The error lists every fault that requires termination.
        """
        found = [*_gpu_faults(context), *_clock_faults(context)]
        for check in (_shared_memory_problem, _disk_problem, _memory_problem):
            problem = check(context)
            if problem is not None:
                found.append(Fault(problem[0], "terminate", problem[1]))
        for fault in found:
            # A fault that remains after the reset is permanent.
            action: Literal["continue", "terminate"] = "continue" if fault.action == "continue" else "terminate"
            context.events.emit(InstanceFault(fault.message, action, fault.remedy))
        fatal = [fault for fault in found if fault.action != "continue"]
        if fatal:
            raise StepError(
                "; ".join(fault.message for fault in fatal),
                remedy="; ".join(dict.fromkeys(fault.remedy for fault in fatal)),
            )


def _query_driver(context: Context) -> None:
    """Check that the driver is loaded, and keep it loaded.

    Without persistence mode, each of the following queries would initialize all GPUs again.
    Source (2026-11): https://docs.nvidia.com/deploy/driver-persistence/index.html.

    Raises:
        NotReadyError: The driver is not loaded yet.
    """
    if context.node.gpus == 0:
        return
    # The GPUs of an emulated node belong to a developer's computer.
    option = "--persistence-mode=1" if context.metadata.is_of_this_machine else "--list-gpus"
    try:
        context.system.run(["nvidia-smi", option], timeout_seconds=DRIVER_SECONDS)
    except CommandError as error:
        if error.exit_code in _DRIVER_IS_LATE:
            message = "the GPU driver is not loaded yet"
            raise NotReadyError.from_command(error, message=message, remedy=_DRIVER_REMEDY) from error


def _check_clock(context: Context) -> None:
    """Check that the clock is accurate enough for signed requests. chronyd corrects it after its first measurements.

    Raises:
        NotReadyError: The clock is wrong.
    """
    for fault in _clock_faults(context):
        if fault.action == "terminate":
            raise NotReadyError(fault.message, remedy=fault.remedy)


def _gpu_faults(context: Context) -> list[Fault]:
    expected = context.node.gpus
    if expected == 0:
        return []
    try:
        report = context.system.run(["nvidia-smi", "-q", "-x"], timeout_seconds=DRIVER_SECONDS)
    except CommandError as error:
        return [
            Fault(
                f"found no GPU, expected {expected}: nvidia-smi {error.reason}",
                "terminate",
                _DRIVER_REMEDY,
            )
        ]
    try:
        kernel_log = context.system.run(["dmesg"], timeout_seconds=PROGRAM_SECONDS)
    except CommandError as error:
        errors = [Fault(f"cannot read GPU errors from the kernel log ({error})", "continue", "run as root")]
    else:
        errors = xid_faults(kernel_log)
    return [*gpu_faults(report, expected), *link_faults(context, report), *errors]


def _reset_gpus(context: Context) -> None:
    """Reset all GPUs. No program uses them yet.

    The image's nvidia-persistenced keeps each GPU open, and the driver does not reset an open GPU. Turning off
    persistence mode closes the GPU. The `machine_settings` step turns the mode on again.
    Source (2026-11): https://github.com/NVIDIA/NVSentinel/issues/1690.
    """
    for option in ("--persistence-mode=0", "--gpu-reset"):
        try:
            context.system.run(["nvidia-smi", option], timeout_seconds=DRIVER_SECONDS)
        except CommandError as error:
            # `verify` detects the fault again and reports it.
            logger.warning("cannot reset the GPUs: %s %s", error, error.output_tail)
            return
    context.events.emit(GpusReset())


def _clock_faults(context: Context) -> list[Fault]:
    """Return a fault if the clock is wrong. AWS rejects requests signed with a clock that is more than 5 minutes off.

    Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/signature-v4-troubleshooting.html (2026-11).
    """
    if not context.metadata.is_of_this_machine or context.system.find_program("chronyc") is None:
        return []
    try:
        text = context.system.run(["chronyc", "tracking"], timeout_seconds=PROGRAM_SECONDS)
    except CommandError as error:
        return [Fault(f"the clock is not synchronized ({error})", "continue", "start chronyd in the image")]
    found = re.search(r"^System time\s*: ([\d.]+) seconds (fast|slow)", text, re.MULTILINE)
    if found is None or float(found[1]) <= CLOCK_WARNING_SECONDS:
        return []
    action: Action = "terminate" if float(found[1]) >= MAX_CLOCK_SECONDS else "continue"
    return [Fault(f"the clock is {found[1]} seconds {found[2]}", action, _CLOCK_REMEDY)]


def _shared_memory_problem(context: Context) -> tuple[str, str] | None:
    if not _SHARED_MEMORY.exists():  # not Linux
        return None
    minimum = MIN_SHARED_MEMORY_BYTES[context.node.gpus > 0]
    free = context.system.free_bytes(_SHARED_MEMORY)
    if free >= minimum:
        return None
    return (
        f"{_SHARED_MEMORY}: {free} bytes free, training needs {minimum}",
        f"enlarge it (mount -o remount,size={minimum * 2} {_SHARED_MEMORY}), or remove old files from it",
    )


def _disk_problem(context: Context) -> tuple[str, str] | None:
    free = context.system.free_bytes(context.layout.root)
    if free >= MIN_FREE_DISK_BYTES:
        return None
    return (
        f"{context.layout.root}: the disk is full ({free} bytes free, {MIN_FREE_DISK_BYTES} needed)",
        "raise node.root_volume.gib, or remove files",
    )


def _memory_problem(context: Context) -> tuple[str, str] | None:
    match = re.search(r"^MemAvailable:\s+(\d+) kB", context.system.read(Path("/proc/meminfo")) or "", re.MULTILINE)
    if match is None:  # not Linux
        return None
    available = int(match[1]) * 1024
    if available >= MIN_AVAILABLE_MEMORY_BYTES:
        return None
    return (
        f"memory: {available} bytes available, {MIN_AVAILABLE_MEMORY_BYTES} needed",
        "stop other programs, or choose an instance type with more memory",
    )
