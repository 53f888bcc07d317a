"""Dumps the state of hanging ranks before they are killed: thread stacks and NCCL's flight recorder.

A signal triggers the stack dump (training/process/stack_dump.py). A pipe for each rank triggers the flight recorder:
torch creates the pipe with the rank's first NCCL group, polls it once per second, and writes the dump to the file named
by `TORCH_FR_DUMP_TEMP_FILE`. All files are in the run directory. Ranks without NCCL, and torch releases that disable
the recorder by default, do not have a pipe, and the supervisor does not wait for them.
Source: ProcessGroupNCCL.hpp of torch 2.13, `DumpPipe` (2026-11).
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from bootstrap.gpus.collectives import PIPE_PREFIX, RECORDS_PREFIX
from bootstrap.layout import TRAINER_MARK
from bootstrap.system import System

STACKS_LIMIT_SECONDS = 0.5
RECORDS_LIMIT_SECONDS = 3.0
"""Includes torch's polling interval of one second, and the time to write the records of a few thousand collectives."""
_POLL_SECONDS = 0.02
_SETTLE_SECONDS = 0.3
"""A file that has not grown for this long is complete. On a busy machine, its writer pauses for shorter times."""

_Version = tuple[int, int]


def dump(system: System, directory: Path) -> None:
    """Trigger the dumps of every rank on this node, and wait for them within the limits above."""
    before = {path: _version(path) for path in _request_records(directory)}
    _wait_for_stacks(system, _request_stacks(directory))
    _wait_for_records(system, before)


def _request_stacks(directory: Path) -> list[Path]:
    requested = []
    for path in (directory / "stacks").glob("rank-*-pid-*.txt"):
        pid = path.stem.rpartition("-")[2]
        with contextlib.suppress(OSError):  # the process has exited, or the system does not have /proc
            if TRAINER_MARK.encode() in Path("/proc", pid, "environ").read_bytes():
                os.kill(int(pid), signal.SIGUSR2)
                requested.append(path)
    return requested


def _request_records(directory: Path) -> list[Path]:
    """Write to each pipe that has a reader. Return the paths of the record files."""
    requested = []
    for pipe in directory.glob(f"{PIPE_PREFIX}*.pipe"):
        with contextlib.suppress(OSError):  # the rank has exited, or has not read the last request
            descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(descriptor, b"1")
            finally:
                os.close(descriptor)
            requested.append(directory / f"{RECORDS_PREFIX}{pipe.stem.removeprefix(PIPE_PREFIX)}")
    return requested


def _wait_for_stacks(system: System, requested: list[Path]) -> None:
    deadline = system.monotonic_seconds() + STACKS_LIMIT_SECONDS
    while any(path.stat().st_size == 0 for path in requested) and system.monotonic_seconds() < deadline:
        system.sleep(_POLL_SECONDS)


def _wait_for_records(system: System, before: dict[Path, _Version]) -> None:
    """Wait until each file exists and no longer grows."""
    deadline = system.monotonic_seconds() + RECORDS_LIMIT_SECONDS
    last, missing = dict(before), set(before)
    while missing and system.monotonic_seconds() < deadline:
        system.sleep(_SETTLE_SECONDS)
        for path in list(missing):
            version = _version(path)
            if version != before[path] and version == last[path] and version[1] > 0:
                missing.remove(path)
            last[path] = version


def _version(path: Path) -> _Version:
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_mtime_ns, status.st_size
