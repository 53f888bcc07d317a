"""What is wrong with the machine's GPUs, from `nvidia-smi -q -x` and the kernel's log, and what is to be done about it.

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

Action = Literal["continue", "reset", "give_back"]


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong.

    Attributes:
        message: which GPU, and what of it.
        action: `continue` says it and goes on; `reset` resets the GPUs, and gives the machine back when that does not
            help; `give_back` gives it back at once.
        remedy: what a person can do, or what the machine does.
    """

    message: str
    action: Action
    remedy: str


# Hardware and firmware faults that no restarted program survives; the numbers of programs' own faults (13, 31, 43, 45)
# and those after which memory goes on in another row (63, 94) are not among them.
FATAL_XIDS = {
    48: "an uncorrectable memory error",
    62: "the GPU's microcontroller halted",
    64: "a memory row could not be remapped",
    74: "an NVLink error",
    79: "the GPU fell off the bus",
    95: "an uncontained memory error",
    109: "a context switch timed out",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor failed",
    140: "an unrecovered memory error",
}
REPLACE = "the machine is given back; AWS replaces it with another one"
RESET = "the GPUs are reset; when that does not help the machine is given back"
_RECOVERY: dict[str, Action] = {"reset": "reset", "drain and reset": "reset", "drain p2p": "reset"}
# Source (2026-11): https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
LEAST_DRIVERS = {11: 450, 12: 525, 13: 580}
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)[^)]*\): (\d+)")


def gpu_faults(report: str, expected: int) -> list[Fault]:
    """Return the faults in the driver's report (XML) of a machine that must have `expected` equal GPUs."""
    try:
        root = ET.fromstring(report)  # noqa: S314
    except ET.ParseError as error:
        return [
            Fault(f"gpus: nvidia-smi says what is no XML ({error})", "give_back", "use an image with another driver")
        ]
    gpus = root.findall("gpu")
    faults = []
    if len(gpus) != expected:
        faults.append(
            Fault(
                f"gpus: {len(gpus)} answer, the node document says {expected}",
                "give_back",
                "another instance type, or a GPU that failed: the fleet replaces the machine; or correct the catalogue",
            )
        )
    kinds = {(_text(gpu, "product_name"), _text(gpu, "fb_memory_usage/total")) for gpu in gpus}
    if len(kinds) > 1:
        found = ", ".join(sorted(" with ".join(kind) for kind in kinds))
        faults.append(Fault(f"gpus: they are not alike: {found}", "give_back", REPLACE))
    return [*faults, *(fault for gpu in gpus for fault in _faults_of(gpu))]


def _faults_of(gpu: ET.Element) -> Iterator[Fault]:
    name = f"gpu {gpu.get('id', 'unknown')}"
    if _text(gpu, "remapped_rows/remapped_row_failure") == "Yes":
        yield Fault(f"{name}: a memory row could not be remapped", "give_back", REPLACE)
    elif _text(gpu, "remapped_rows/remapped_row_pending") == "Yes":
        yield Fault(f"{name}: a memory row is remapped at the next reset", "reset", RESET)
    if _text(gpu, "retired_pages/pending_retirement") == "Yes":
        yield Fault(f"{name}: a memory page is retired at the next reset", "reset", RESET)
    if _text(gpu, "ecc_errors/aggregate/sram_threshold_exceeded") == "Yes":
        yield Fault(f"{name}: more SRAM errors in its life than NVIDIA allows", "give_back", REPLACE)
    uncorrected = sum(
        int(each.text or 0)
        for each in gpu.findall("ecc_errors/volatile/*")
        if "uncorrectable" in each.tag and (each.text or "").strip().isdigit()
    )
    if uncorrected:
        yield Fault(f"{name}: {uncorrected} uncorrected memory errors since the driver started", "reset", RESET)
    recovery = _text(gpu, "gpu_recovery_action").lower()
    if recovery not in ("", "none", "n/a"):
        action = _RECOVERY.get(recovery, "give_back")
        yield Fault(f"{name}: its driver asks for: {recovery}", action, RESET if action == "reset" else REPLACE)
    if _text(gpu, "ecc_mode/current_ecc") == "Disabled":
        remedy = "turn it on in the image: nvidia-smi --ecc-config=1, and restart; errors in memory go unseen meanwhile"
        yield Fault(f"{name}: ECC is off", "continue", remedy)
    for slowed in _slowdowns(gpu):
        remedy = "training goes at this GPU's pace: replace the machine when gpu_use stays low"
        yield Fault(f"{name}: its clocks are held down ({slowed})", "continue", remedy)


def _slowdowns(gpu: ET.Element) -> Iterator[str]:
    """Name the hardware's own reasons to slow down; newer drivers say event where older ones say throttle."""
    for reasons in (gpu.find("clocks_event_reasons"), gpu.find("clocks_throttle_reasons")):
        for each in reasons if reasons is not None else ():
            word = re.sub(r"^clocks_(event|throttle)_reason_", "", each.tag)
            if word in ("hw_thermal_slowdown", "hw_power_brake_slowdown") and (each.text or "").strip() == "Active":
                yield word


def xid_faults(kernel_log: str) -> list[Fault]:
    """Return the fatal Xid errors that the driver wrote to the kernel's log, once for each GPU and number."""
    found = {(match[1], int(match[2])) for match in _XID.finditer(kernel_log)}
    return [
        Fault(f"gpu {bus}: Xid {number} since the machine started: {FATAL_XIDS[number]}", "give_back", REPLACE)
        for bus, number in sorted(found)
        if number in FATAL_XIDS
    ]


def driver_fault(driver: str, cuda: str) -> Fault | None:
    """Return what is wrong with a driver for a torch that was built for a version of CUDA, None when they fit.

    A major version that is newer than this table asks for the driver of the newest one in it.
    """
    majors = [re.match(r"\d+", version) for version in (driver, cuda)]
    if majors[0] is None or majors[1] is None:
        return None
    least = LEAST_DRIVERS.get(min(int(majors[1][0]), max(LEAST_DRIVERS)), 0)
    if int(majors[0][0]) >= least:
        return None
    return Fault(
        f"driver {driver} is too old for a torch that was built for CUDA {cuda}, which needs {least} or newer",
        "give_back",
        f"use an image with driver {least} or newer, or one whose torch was built for an older CUDA",
    )


def _text(gpu: ET.Element, path: str) -> str:
    return (gpu.findtext(path) or "").strip()
