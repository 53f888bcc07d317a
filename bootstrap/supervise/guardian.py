"""Runs one program and makes sure that nothing of it is left: a small process between supervisor and torchrun.

Started as a script (it imports nothing of this package, so that it costs milliseconds):

    python -I -S guardian.py PROGRAM ARGUMENT...

torchrun puts each worker into a session of its own, so a process group does not hold them, and a killed torchrun leaves
them behind. On Linux this process becomes the subreaper of everything below it: orphans come back to it. When standard
input ends (the supervisor closed it, or was killed), or SIGTERM comes, it kills all of them with SIGKILL. When the
program ends by itself, stragglers are killed too, and the exit code is the program's (128 + signal when a signal ended
it). One kind of process gets a little time first: a checkpoint writer, which goes on from shared memory when its
trainer is dead, and ends by itself when what was copied is committed.

Elsewhere there is no subreaper: the tree is read from `ps`, and an orphan of a session of its own may be missed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

# Source: linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.05
KILL_LIMIT_SECONDS = 5.0
_WRITER_MARK = b"training.checkpoint.process"
_WRITER_GRACE_SECONDS = 5.0
# A standby waits on a pipe for its start: training/standby.py. The guardian's own end of it closes with the guardian.
_DESCRIPTOR_VARIABLES = ("TRAINSTACK_STANDBY_FD",)
_IS_LINUX = sys.platform.startswith("linux")


def main(command: list[str]) -> int:
    """Run `command`, kill what is left of it, and return the exit code."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to answer
    told_to_end: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: told_to_end.append(number))
    try:
        # PR_SET_PDEATHSIG is for the case that this process is killed: torchrun then goes with it.
        program = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[int(os.environ[name]) for name in _DESCRIPTOR_VARIABLES if name in os.environ],
            preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509 there is one thread
        )
    except OSError as error:
        print(f"{command[0]}: cannot be started: {error}", file=sys.stderr, flush=True)
        return 127
    exit_code: int | None = None
    while exit_code is None and not told_to_end and not _input_ended():
        exit_code = _reap(program.pid)
    _kill_descendants(program.pid)
    return exit_code if exit_code is not None else 128 + signal.SIGKILL


def _prctl(option: int, value: int) -> None:
    if _IS_LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _input_ended() -> bool:
    readable, _, _ = select.select([0], [], [], _POLL_SECONDS)
    return bool(readable) and os.read(0, 1024) == b""


def _reap(pid: int) -> int | None:
    """Collect every child that ended; return the exit code of `pid` when it was among them."""
    exit_code = None
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return exit_code
        if ended == 0:
            return exit_code
        if ended == pid:
            exit_code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def _kill_descendants(pid: int) -> None:
    began = time.monotonic()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    while time.monotonic() < began + _WRITER_GRACE_SECONDS + KILL_LIMIT_SECONDS:
        _reap(0)
        remaining = _descendants(os.getpid())
        if not remaining:
            return
        spares_writers = time.monotonic() < began + _WRITER_GRACE_SECONDS
        for each in remaining:
            if not (spares_writers and _is_writer(each)):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(each, signal.SIGKILL)
        time.sleep(0.01)


def _is_writer(pid: int) -> bool:
    try:
        return _WRITER_MARK in Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:  # it ended, or this system has no /proc: then it is killed like the others
        return False


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for child, parent in _parents().items():
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    pending = [pid]
    while pending:
        below = children.get(pending.pop(), [])
        found.extend(below)
        pending.extend(below)
    return found


def _parents() -> dict[int, int]:
    """Return the parent of every process."""
    parents: dict[int, int] = {}
    if _IS_LINUX:
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with contextlib.suppress(OSError, IndexError, ValueError):
                    stat = Path(entry.path, "stat").read_text(errors="replace")
                    # The name in parentheses may hold spaces and parentheses itself: count from the last one.
                    parents[int(entry.name)] = int(stat[stat.rindex(")") + 2 :].split()[1])
        return parents
    with subprocess.Popen(["ps", "-A", "-o", "pid=,ppid="], stdout=subprocess.PIPE, text=True) as listing:
        assert listing.stdout is not None
        for line in listing.stdout:
            child, parent = line.split()
            if int(child) != listing.pid:
                parents[int(child)] = int(parent)
    return parents


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
