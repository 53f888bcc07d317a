"""The steps of the life-cycle script. Each one is idempotent and changes only its marker."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from bootstrap.gpus.collectives import EFA_INFO, efa_domains
from bootstrap.slurm.health import faults
from bootstrap.slurm.hyperpod.settings import Settings

PROGRAM_SECONDS = 120
WAIT_SECONDS = 300.0
"""Longest wait for the mount and the adapters, which the image's services set up at the same time."""
POLL_SECONDS = 5.0
Value = TypeVar("Value")


class CheckError(Exception):
    """A node cannot train. `remedy` is a sentence for the operator."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


def check_gpus(settings: Settings) -> None:
    """Check that the node has all GPUs, and that none of them has a fault."""
    found = faults(settings.gpus)
    if found:
        remedy = (
            "HyperPod replaces the node; if all nodes fail, compare capacity.instance_types with the instance groups"
        )
        raise CheckError("; ".join(each.message for each in found), remedy)


def check_adapters(settings: Settings) -> None:
    """Check that libfabric reports EFA adapters. Without them, NCCL silently uses TCP."""
    if not settings.adapters:
        return
    found = wait_for(_adapters, lambda names: len(names) >= settings.adapters)
    if len(found) < settings.adapters:
        message = f"found {len(found)} EFA adapters ({', '.join(found) or 'none'}), expected {settings.adapters}"
        raise CheckError(message, "check the EFA rules of the security group, or set node.fabric: tcp")


def check_shared_folder(settings: Settings) -> None:
    """Check that the shared file system is mounted, and that files can be created in the jobs' folder."""
    if not settings.shared_folder:
        return
    folder = Path(settings.shared_folder)
    if not wait_for(lambda: _is_mounted(folder), lambda mounted: mounted):
        message = f"{folder}: no file system is mounted there"
        raise CheckError(message, "check the file system's security group, and that the image has the Lustre client")
    try:
        if not folder.exists():
            folder.mkdir(parents=True)
            folder.chmod(0o1777)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CheckError(f"{folder}: {error}", "check the file system's permissions and free space") from error


COMPUTE_STEPS: Mapping[str, Callable[[Settings], None]] = {
    "gpus": check_gpus,
    "adapters": check_adapters,
    "shared_folder": check_shared_folder,
}
OTHER_STEPS: Mapping[str, Callable[[Settings], None]] = {"shared_folder": check_shared_folder}
"""Steps of the controller and the login node."""


def wait_for(read: Callable[[], Value], is_ready: Callable[[Value], bool]) -> Value:
    """Return the value of `read` as soon as `is_ready` accepts it, or the last value after WAIT_SECONDS."""
    end = time.monotonic() + float(os.environ.get("TRAINSTACK_WAIT_SECONDS", WAIT_SECONDS))
    while True:
        value = read()
        if is_ready(value) or time.monotonic() >= end:
            return value
        time.sleep(POLL_SECONDS)


def _adapters() -> list[str]:
    program = EFA_INFO if Path(EFA_INFO).exists() else "fi_info"
    command = [program, "-p", "efa", "-t", "FI_EP_RDM"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return efa_domains(done.stdout)


def _is_mounted(folder: Path) -> bool:
    """Return whether the folder, or one that contains it, is a mount point other than the root."""
    return any(path.is_mount() for path in (folder, *folder.parents) if path != Path("/"))
