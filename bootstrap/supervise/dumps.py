"""What ranks that hang are asked for before they are killed: their threads' stacks, NCCL's records of collectives.

Stacks come by a signal (training/stack_dump.py). NCCL's flight recorder is asked through a pipe of each rank: it is
made with the rank's first NCCL group, looked at once a second, and the records go to the file that
`TORCH_FR_DUMP_TEMP_FILE` names. Ranks without NCCL have no pipe. Everything is in the generation's run directory.
Releases of torch whose recorder is off by default make no pipe, and are not waited for.
Source: ProcessGroupNCCL.hpp of torch 2.13, `DumpPipe` (2026-11).
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from bootstrap.collectives import PIPE_PREFIX, RECORDS_PREFIX
from bootstrap.supervise.launch import TRAINER_MARK
from bootstrap.system import System

STACKS_LIMIT_SECONDS = 0.5
RECORDS_LIMIT_SECONDS = 3.0
"""A look at the pipe is up to a second away, and the records of some thousand collectives take a moment to write."""
_LOOK_SECONDS = 0.02
_STILL_SECONDS = 0.3
"""A file that did not grow for so long is whole; on a busy machine its writer may pause for longer than a look."""

_Version = tuple[int, int]


def dump(system: System, directory: Path) -> None:
    """Ask every rank of this node, and wait for the answers, but never long."""
    before = {path: _version(path) for path in _asked_for_records(directory)}
    _wait_for_stacks(system, _asked_for_stacks(directory))
    _wait_for_records(system, before)


def _asked_for_stacks(directory: Path) -> list[Path]:
    asked = []
    for path in (directory / "stacks").glob("rank-*-pid-*.txt"):
        pid = path.stem.rpartition("-")[2]
        with contextlib.suppress(OSError):  # it has ended, or this system has no /proc to tell whose it is
            if TRAINER_MARK.encode() in Path("/proc", pid, "environ").read_bytes():
                os.kill(int(pid), signal.SIGUSR2)
                asked.append(path)
    return asked


def _asked_for_records(directory: Path) -> list[Path]:
    """Write to each pipe that somebody reads; return the files that the records will be in."""
    asked = []
    for pipe in directory.glob(f"{PIPE_PREFIX}*.pipe"):
        with contextlib.suppress(OSError):  # its rank has ended, or has not read what it was asked before
            descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(descriptor, b"1")
            finally:
                os.close(descriptor)
            asked.append(directory / f"{RECORDS_PREFIX}{pipe.stem.removeprefix(PIPE_PREFIX)}")
    return asked


def _wait_for_stacks(system: System, asked: list[Path]) -> None:
    deadline = system.monotonic_seconds() + STACKS_LIMIT_SECONDS
    while any(path.stat().st_size == 0 for path in asked) and system.monotonic_seconds() < deadline:
        system.sleep(_LOOK_SECONDS)


def _wait_for_records(system: System, before: dict[Path, _Version]) -> None:
    """Wait until each file is there and grows no more."""
    deadline = system.monotonic_seconds() + RECORDS_LIMIT_SECONDS
    last, missing = dict(before), set(before)
    while missing and system.monotonic_seconds() < deadline:
        system.sleep(_STILL_SECONDS)
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
