"""Where a rank's saves are worked on: in a process of their own, or in a thread of this one."""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Protocol

from training.checkpoint.backend import Backend
from training.checkpoint.host_buffer import HostBuffer
from training.checkpoint.log import LogWriter
from training.checkpoint.process import Cancel, Finished, NewBuffer, Opening, save_and_answer
from training.checkpoint.progress import SaveProgress
from training.checkpoint.saving import SavePlan, Saver, SaveRequest
from training.errors import StoreError
from training.interruption import STOP_SIGNALS

logger = logging.getLogger(__name__)

MOST_THREADS = 8
GPU_NICENESS = 10
"""Beside a GPU the trainer needs a core to feed it, and nothing of the writer is worth a gap there."""


class Host(Protocol):
    """Works on one save at a time.

    Attributes:
        progress: newest word of how far the save in flight is, taken in by :meth:`finished`.
    """

    progress: SaveProgress | None

    def submit(self, request: SaveRequest, buffer: HostBuffer) -> None:
        """Begin a save; the buffer may not change until it is finished."""

    def cancel(self) -> None:
        """Give up the save in flight; it finishes soon, one way or the other."""

    def finished(self, timeout_seconds: float) -> Finished | None:
        """The end of the save in flight, if it comes within this time.

        Raises:
            StoreError: the host is gone, and the save with it.
        """

    def close(self) -> None:
        """Let go of it; a save in flight is seen through."""


@dataclass(frozen=True)
class Placement:
    """How a writer process shares the machine with training.

    Attributes:
        threads: that encode and transfer chunks.
        cores: to stay on; empty: all.
        niceness: added to the trainer's own.
    """

    threads: int
    cores: frozenset[int]
    niceness: int


def choose_placement(local_rank: int, local_world_size: int, training_threads: int, on_gpu: bool) -> Placement:
    """Cores and priority that cost training least.

    Cores that no training thread needs are the writer's alone. Where training uses all of them, its threads wait for
    each other at every operation, so that one slowed core slows all: then it is best to be quick, on all cores, at
    normal priority; a nicer writer was measured to cost more in all, and to take many times as long.
    """
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, min(MOST_THREADS, len(cores) // local_world_size))
    if on_gpu:
        return Placement(share, frozenset(), GPU_NICENESS)
    spare = cores[training_threads * local_world_size :]
    own = spare[local_rank::local_world_size] or spare
    if own:
        return Placement(min(MOST_THREADS, len(own)), frozenset(own), 0)
    return Placement(share, frozenset(), 0)


class ThreadHost:
    """A thread of this process; any backend will do, but a killed trainer takes the save with it."""

    def __init__(self, backend: Backend, plan: SavePlan, log: LogWriter | None) -> None:
        self._saver = Saver(backend, plan, log)
        self._cancel = threading.Event()
        self._answers: queue.Queue[Finished | SaveProgress] = queue.Queue()
        self.progress: SaveProgress | None = None

    def submit(self, request: SaveRequest, buffer: HostBuffer) -> None:
        """Start the thread."""
        self._cancel = threading.Event()
        threading.Thread(
            target=save_and_answer,
            args=(self._saver, request, buffer.memory, self._cancel, self._answers.put),
            name="checkpoint-save",
            daemon=True,
        ).start()

    def cancel(self) -> None:
        """Tell the thread."""
        self._cancel.set()

    def finished(self, timeout_seconds: float) -> Finished | None:
        """Look for the thread's answer."""
        give_up = time.monotonic() + timeout_seconds
        while True:
            left_seconds = max(0.0, give_up - time.monotonic())
            try:
                answer = self._answers.get(left_seconds > 0, left_seconds)
            except queue.Empty:
                return None
            if isinstance(answer, Finished):
                return answer
            self.progress = answer

    def close(self) -> None:
        """Nothing to let go of: the thread ends with its save."""


class ProcessHost:
    """A process of its own session; it outlives a killed trainer for as long as its save takes.

    Args:
        url: of the checkpoint store.
        plan: what stays the same.
        log: rank 0's right to commit; this process must not use it any more.
        placement: how it shares the machine.
    """

    def __init__(self, url: str, plan: SavePlan, log: LogWriter | None, placement: Placement) -> None:
        ours, theirs = socket.socketpair()
        with theirs, _held_up(STOP_SIGNALS):
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from training.checkpoint.process import main; main()", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": _search_path()},
                start_new_session=True,
            )
        self._connection: Connection = Connection(ours.detach())
        self._buffer: HostBuffer | None = None
        self.progress: SaveProgress | None = None
        right = None if log is None else log.right
        self._connection.send(Opening(url, plan, right, placement.cores, placement.niceness))

    def submit(self, request: SaveRequest, buffer: HostBuffer) -> None:
        """Send the buffer, if it is a new one, and the request."""
        try:
            if buffer is not self._buffer:
                self._connection.send(NewBuffer(buffer.size_bytes))
                send_handle(self._connection, buffer.descriptor, self._process.pid)
                self._buffer = buffer
            self._connection.send(request)
        except OSError as error:
            raise self._gone() from error

    def cancel(self) -> None:
        """Send word; a process that is gone has nothing to cancel."""
        try:
            self._connection.send(Cancel())
        except OSError:
            logger.warning("%s", self._gone())

    def finished(self, timeout_seconds: float) -> Finished | None:
        """Look for the process's answer."""
        give_up = time.monotonic() + timeout_seconds
        while True:
            try:
                if not self._connection.poll(max(0.0, give_up - time.monotonic())):
                    return None
                answer: Finished | SaveProgress = self._connection.recv()
            except (EOFError, OSError) as error:
                raise self._gone() from error
            if isinstance(answer, Finished):
                return answer
            self.progress = answer

    def close(self) -> None:
        """Hang up and wait for the end of the process, which is that of its save."""
        self._connection.close()
        self._process.wait()

    def _gone(self) -> StoreError:
        code = self._process.poll()
        return StoreError(
            f"the checkpoint writer process (pid {self._process.pid}) is gone, exit code {code}; see its messages in "
            "the trainer's log, and whether the machine ran out of memory"
        )


@contextmanager
def _held_up(numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Block signals in this thread and what it starts; those that come meanwhile are delivered here in the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _search_path() -> str:
    """PYTHONPATH with which this very package is found."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
