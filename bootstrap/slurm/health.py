"""Checks a node's GPUs before training: `nvidia-smi -q -x` and the kernel log."""

from __future__ import annotations

import shutil
import subprocess
import sys

from bootstrap.gpus.health import Fault, gpu_faults, xid_faults

PROGRAM_SECONDS = 120


def faults(gpus: int) -> list[Fault]:
    """Return the faults that prevent the node from training. `gpus`: number of GPUs that the node must have."""
    return [fault for fault in all_faults(gpus) if fault.action != "continue"]


def all_faults(gpus: int) -> list[Fault]:
    """Return all faults, including those that do not prevent training. Reading the kernel log may require root."""
    if not gpus:
        return []
    if shutil.which("nvidia-smi") is None:
        return [
            Fault("nvidia-smi is not installed", "terminate", "install the driver, or set slurm.health_check: false")
        ]
    try:
        report = subprocess.run(["nvidia-smi", "-q", "-x"], capture_output=True, text=True, timeout=PROGRAM_SECONDS)
    except subprocess.TimeoutExpired:
        return [Fault(f"nvidia-smi did not exit within {PROGRAM_SECONDS} s", "terminate", "restart the node")]
    if report.returncode:
        message = (report.stdout + report.stderr).strip()[-200:]
        return [
            Fault(
                f"nvidia-smi: code {report.returncode}: {message}", "terminate", "reset the GPUs, or replace the node"
            )
        ]
    found = gpu_faults(report.stdout, gpus)
    try:
        log = subprocess.run(["dmesg"], capture_output=True, text=True, errors="replace", timeout=PROGRAM_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return found
    return [*found, *xid_faults(log.stdout)] if log.returncode == 0 else found


def report(gpus: int) -> int:
    """Print the faults. Return 1 if the node must not train, else 0, as Slurm expects from a prolog.

    Source (2026-11): https://slurm.schedmd.com/prolog_epilog.html
    """
    found = all_faults(gpus)
    for fault in found:
        print(f"{fault.action}: {fault.message}; {fault.remedy}", file=sys.stderr)
    return 1 if any(fault.action != "continue" for fault in found) else 0
