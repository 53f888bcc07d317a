"""Detects faults in the machine's GPUs from `nvidia-smi -q -x` and the kernel log, with an action for each fault.

Sources (2026-11): https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html,
https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html,
https://docs.nvidia.com/deploy/nvidia-smi/index.html.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET  # noqa: S405 the driver's own output
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Action = Literal["continue", "reset", "terminate"]


@dataclass(frozen=True)
class Fault:
    """A fault on the instance.

    Attributes:
        message: The component and its fault.
        action: `continue` only reports it; `reset` resets the GPUs and terminates the instance if the fault persists;
            `terminate` terminates the instance immediately.
        remedy: Action for the user, or the node's own action.
    """

    message: str
    action: Action
    remedy: str


# Hardware and firmware faults that restarting the program does not fix. Not included: application errors (13, 31, 43,
# 45), and errors after which the GPU remaps the memory row and continues (63, 94).
FATAL_XIDS = {
    48: "an uncorrectable memory error",
    62: "the GPU's microcontroller halted",
    64: "a memory row could not be remapped",
    74: "an NVLink error",
    79: "the GPU fell off the bus",
    95: "an uncontained memory error",
    109: "a context switch timed out",
    119: "the GPU's system processor does not respond",
    120: "the GPU's system processor failed",
    140: "an unrecovered memory error",
}
REPLACE = "the instance terminates; the fleet launches another one"
RESET = "the node resets its GPUs; if the fault persists, the instance terminates"
_RECOVERY: dict[str, Action] = {"reset": "reset", "drain and reset": "reset", "drain p2p": "reset"}
# Source (2026-11): https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
MIN_DRIVERS = {11: 450, 12: 525, 13: 580}
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)[^)]*\): (\d+)")


def gpu_faults(report: str, expected: int) -> list[Fault]:
    """Return the faults that the driver's report (XML) shows. The machine must have `expected` identical GPUs."""
    try:
        root = ET.fromstring(report)  # noqa: S314
    except ET.ParseError as error:
        return [
            Fault(f"the output of nvidia-smi is not XML ({error})", "terminate", "use an image with another driver")
        ]
    gpus = root.findall("gpu")
    faults = []
    if len(gpus) != expected:
        faults.append(
            Fault(
                f"found {len(gpus)} GPUs, expected {expected}",
                "terminate",
                "if a GPU has failed, the fleet replaces the instance; if this instance type has a different number of "
                "GPUs, correct the instance type catalogue",
            )
        )
    kinds = {(_text(gpu, "product_name"), _text(gpu, "fb_memory_usage/total")) for gpu in gpus}
    if len(kinds) > 1:
        found = ", ".join(sorted(" with ".join(kind) for kind in kinds))
        faults.append(Fault(f"the GPUs are not identical: {found}", "terminate", REPLACE))
    return [*faults, *(fault for gpu in gpus for fault in _faults_of(gpu))]


def _faults_of(gpu: ET.Element) -> Iterator[Fault]:
    name = f"gpu {gpu.get('id', 'unknown')}"
    if _text(gpu, "remapped_rows/remapped_row_failure") == "Yes":
        yield Fault(f"{name}: a memory row could not be remapped", "terminate", REPLACE)
    elif _text(gpu, "remapped_rows/remapped_row_pending") == "Yes":
        yield Fault(f"{name}: the remapping of a memory row is pending until a reset", "reset", RESET)
    if _text(gpu, "retired_pages/pending_retirement") == "Yes":
        yield Fault(f"{name}: the retirement of a memory page is pending until a reset", "reset", RESET)
    if _text(gpu, "ecc_errors/aggregate/sram_threshold_exceeded") == "Yes":
        yield Fault(f"{name}: the number of SRAM errors exceeds NVIDIA's threshold", "terminate", REPLACE)
    uncorrected = sum(
        int(each.text or 0)
        for each in gpu.findall("ecc_errors/volatile/*")
        if "uncorrectable" in each.tag and (each.text or "").strip().isdigit()
    )
    if uncorrected:
        yield Fault(f"{name}: {uncorrected} uncorrected memory errors since the driver started", "reset", RESET)
    recovery = _text(gpu, "gpu_recovery_action").lower()
    if recovery not in ("", "none", "n/a"):
        action = _RECOVERY.get(recovery, "terminate")
        yield Fault(
            f"{name}: the driver's recovery action: {recovery}", action, RESET if action == "reset" else REPLACE
        )
    if _text(gpu, "ecc_mode/current_ecc") == "Disabled":
        remedy = "enable it in the image (nvidia-smi --ecc-config=1, then restart); memory errors are undetected now"
        yield Fault(f"{name}: ECC is off", "continue", remedy)
    for slowed in _slowdowns(gpu):
        remedy = "this GPU slows down training: replace the instance if gpu_use stays low"
        yield Fault(f"{name}: its clocks are reduced ({slowed})", "continue", remedy)


def _slowdowns(gpu: ET.Element) -> Iterator[str]:
    """Yield the active hardware slowdowns. Newer drivers name them `event`, and older ones `throttle`."""
    for reasons in (gpu.find("clocks_event_reasons"), gpu.find("clocks_throttle_reasons")):
        for each in reasons if reasons is not None else ():
            word = re.sub(r"^clocks_(event|throttle)_reason_", "", each.tag)
            if word in ("hw_thermal_slowdown", "hw_power_brake_slowdown") and (each.text or "").strip() == "Active":
                yield word


def xid_faults(kernel_log: str) -> list[Fault]:
    """Return the fatal Xid errors in the kernel log, once for each GPU and error number."""
    found = {(match[1], int(match[2])) for match in _XID.finditer(kernel_log)}
    return [
        Fault(f"gpu {bus}: Xid {number} since boot: {FATAL_XIDS[number]}", "terminate", REPLACE)
        for bus, number in sorted(found)
        if number in FATAL_XIDS
    ]


def driver_fault(driver: str, cuda: str) -> Fault | None:
    """Return a fault if the driver is too old for torch's CUDA version, else None.

    For a CUDA major version newer than those in MIN_DRIVERS, use the newest entry.
    """
    majors = [re.match(r"\d+", version) for version in (driver, cuda)]
    if majors[0] is None or majors[1] is None:
        return None
    minimum = MIN_DRIVERS.get(min(int(majors[1][0]), max(MIN_DRIVERS)), 0)
    if int(majors[0][0]) >= minimum:
        return None
    return Fault(
        f"driver {driver} is too old for torch built for CUDA {cuda}, which requires {minimum} or newer",
        "terminate",
        f"use an image with driver {minimum} or newer, or one with torch built for an older CUDA",
    )


def _text(gpu: ET.Element, path: str) -> str:
    return (gpu.findtext(path) or "").strip()
