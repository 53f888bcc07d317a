"""A small process between the supervisor and the launcher: runs one program, and then kills all of its descendants.

It runs as a script, does not import this package, and starts within milliseconds:

    python -I -S guardian.py PROGRAM ARGUMENT...

The launcher starts each rank in a new session. The ranks are therefore not in its process group, and killing it leaves
them running. On Linux, this process is the subreaper of its descendants, so it adopts orphans. When standard
input ends (the supervisor closed it or was killed), and on SIGTERM, it kills all descendants with SIGKILL. After the
program exits normally, it also kills remaining processes, and exits with the program's code (128 + signal number after
a signal). It first waits some time for checkpoint writers, which continue from shared memory after their trainer dies
and exit when they have committed the copied save.

Other systems do not have subreapers. There, the guardian reads the process tree from `ps`, and may miss an orphan in a
new session.
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
_WRITER_MARK = b"training.checkpoint.save.writer_process"
_WRITER_GRACE_SECONDS = 5.0
# The descriptor on which a standby waits for its start (training/process/standby.py). The program inherits it.
_DESCRIPTOR_VARIABLES = ("TRAINSTACK_STANDBY_FD",)
_IS_LINUX = sys.platform.startswith("linux")


def main(command: list[str]) -> int:
    """Run `command`, kill its remaining descendants, and return its exit code."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor handles Ctrl-C
    terminations: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: terminations.append(number))
    try:
        # PR_SET_PDEATHSIG kills the launcher if this process is killed.
        program = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[int(os.environ[name]) for name in _DESCRIPTOR_VARIABLES if name in os.environ],
            preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509 single-threaded
        )
    except OSError as error:
        print(f"{command[0]}: cannot start: {error}", file=sys.stderr, flush=True)
        return 127
    exit_code: int | None = None
    while exit_code is None and not terminations and not _input_ended():
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
    """Reap every exited child. Return the exit code of `pid` if it is among them."""
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
    started = time.monotonic()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    while time.monotonic() < started + _WRITER_GRACE_SECONDS + KILL_LIMIT_SECONDS:
        _reap(0)
        remaining = _descendants(os.getpid())
        if not remaining:
            return
        spares_writers = time.monotonic() < started + _WRITER_GRACE_SECONDS
        for each in remaining:
            if not (spares_writers and _is_writer(each)):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(each, signal.SIGKILL)
        time.sleep(0.01)


def _is_writer(pid: int) -> bool:
    try:
        return _WRITER_MARK in Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:  # the process has exited, or the system does not have /proc: treat it like any other process
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
    """Return each process's parent."""
    parents: dict[int, int] = {}
    if _IS_LINUX:
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with contextlib.suppress(OSError, IndexError, ValueError):
                    stat = Path(entry.path, "stat").read_text(errors="replace")
                    # The name in parentheses may contain spaces and parentheses, so parse after the last parenthesis.
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
