"""Finds and terminates process trees, including processes that started their own sessions.

Works on Linux and on other systems that psutil supports. Only Linux supports adopting orphans.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator

import psutil

INSTANCE_VARIABLE = "LOCALCLOUD_INSTANCE"
_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.02


def adopt_orphans() -> None:
    """Make this process the parent of its orphaned descendants. This has no effect on systems other than Linux."""
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(error)}")


def descendants(pid: int) -> list[psutil.Process]:
    """Return the live descendants of `pid`, excluding zombies, or an empty list if `pid` does not exist."""
    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process for process in found if _is_alive(process)]


def marked(instance_id: str) -> Iterator[psutil.Process]:
    """Yield the live processes whose environment marks them as belonging to the instance, except this process."""
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(INSTANCE_VARIABLE) == instance_id and _is_alive(process):
                yield process


def send(processes: list[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to each process that still exists."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def freeze(pid: int) -> None:
    """Stop the descendants of `pid` with SIGSTOP, and repeat until no new descendants appear."""
    seen: set[int] = set()
    while True:
        fresh = [process for process in descendants(pid) if process.pid not in seen]
        if not fresh:
            return
        send(fresh, signal.SIGSTOP)
        seen.update(process.pid for process in fresh)


def thaw(pid: int) -> None:
    """Continue the descendants of `pid`."""
    send(descendants(pid), signal.SIGCONT)


def end_descendants(pid: int, grace_seconds: float) -> None:
    """Terminate every descendant of `pid` with SIGTERM, then SIGKILL after `grace_seconds`, until none remain.

    Reaps the children of the calling process.
    """
    if grace_seconds > 0:
        signaled: set[psutil.Process] = set()
        deadline = time.monotonic() + grace_seconds
        while (left := _reaped_descendants(pid)) and time.monotonic() < deadline:
            send([process for process in left if process not in signaled], signal.SIGTERM)
            signaled.update(left)
            time.sleep(_POLL_SECONDS)
    while left := _reaped_descendants(pid):
        send(left, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def end_marked(instance_id: str) -> None:
    """Kill all processes marked as belonging to the instance, which is necessary if its init process was killed."""
    while left := list(marked(instance_id)):
        send(left, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def _reaped_descendants(pid: int) -> list[psutil.Process]:
    if pid == os.getpid():
        reap()
    return descendants(pid)


def reap() -> list[tuple[int, int]]:
    """Reap this process's exited children. Return (pid, wait status) for each child."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended.append((pid, status))
    return ended


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
