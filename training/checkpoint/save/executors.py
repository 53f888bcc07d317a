"""Save executors: run a rank's saves in a separate process, or in a thread in the trainer."""

from __future__ import annotations

import contextlib
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
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Protocol

from training.checkpoint.chunks import Layout
from training.checkpoint.log import LogWriter
from training.checkpoint.save.host_buffer import HostBuffer
from training.checkpoint.save.parts import PartSetAside
from training.checkpoint.save.progress import SaveProgress
from training.checkpoint.save.rank_save import SavePlan, Saver, SaveRequest
from training.checkpoint.save.writer_process import Cancel, Finished, NewBuffer, Renewal, Report, Setup, save_and_report
from training.checkpoint.storage.backend import Backend
from training.errors import StoreError
from training.process.children import STOP_SIGNALS

logger = logging.getLogger(__name__)

MAX_THREADS = 8
DEATH_SECONDS = 5
GPU_NICENESS = 10
"""The writer's added niceness on a GPU machine. The trainer launches kernels, and the writer must never delay it."""


class SaveExecutor(Protocol):
    """Runs one save at a time.

    Attributes:
        progress: latest progress of the save in flight, updated by :meth:`finished`.
        set_aside: objects that rank 0 found in place of parts, extended by :meth:`finished`.
    """

    progress: SaveProgress | None
    set_aside: list[PartSetAside]

    def submit(self, request: SaveRequest, buffer: HostBuffer) -> None:
        """Begin a save. The buffer must not change until the save has finished."""

    def cancel(self) -> None:
        """Cancel the save in flight. It ends soon afterwards, whether or not it has been committed."""

    def finished(self, timeout_seconds: float) -> Finished | None:
        """Return the result of the save in flight; None if it does not finish within the timeout.

        Raises:
            StoreError: The executor died, and its save was lost.
        """

    def renew(self, plan: SavePlan, log: LogWriter | None) -> None:
        """Save for another generation from now on. No save is in flight.

        Raises:
            StoreError: The executor died.
        """

    def close(self) -> None:
        """Release the executor after completing any save in flight."""


@dataclass(frozen=True)
class Placement:
    """A writer process's cores and priority.

    Attributes:
        threads: number of threads that encode and transfer chunks.
        cores: CPU affinity; empty: all cores.
        niceness: amount to add to the trainer's niceness.
        shares_cores: True if training uses all cores, so that the writer slows it down.
    """

    threads: int
    cores: frozenset[int]
    niceness: int
    shares_cores: bool = False


def choose_placement(local_rank: int, local_world_size: int, training_threads: int, on_gpu: bool) -> Placement:
    """Choose the cores and the priority that slow down training least.

    If some cores have no training thread, the writer uses only those. If training uses all cores, its threads wait for
    each other at every operation, so one slow core slows down all threads. The writer should then finish quickly: on
    all cores, at normal priority, and without compression, which accounts for half of its work. In measurements, a
    writer with a higher niceness slowed training down more in total and took many times as long.
    """
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, min(MAX_THREADS, len(cores) // local_world_size))
    if on_gpu:
        return Placement(share, frozenset(), GPU_NICENESS)
    spare = cores[training_threads * local_world_size :]
    own = spare[local_rank::local_world_size] or spare
    if own:
        return Placement(min(MAX_THREADS, len(own)), frozenset(own), 0)
    return Placement(share, frozenset(), 0, shares_cores=True)


class ThreadExecutor:
    """Runs saves in a thread in this process. Works with any backend, but killing the trainer loses the save."""

    def __init__(self, backend: Backend, plan: SavePlan, log: LogWriter | None) -> None:
        self._backend = backend
        self._saver = Saver(backend, plan, log)
        self._cancel = threading.Event()
        self._messages: queue.Queue[Report] = queue.Queue()
        self.progress: SaveProgress | None = None
        self.set_aside: list[PartSetAside] = []

    def submit(self, request: SaveRequest, buffer: HostBuffer) -> None:
        """Start the thread."""
        self._cancel = threading.Event()
        threading.Thread(
            target=save_and_report,
            args=(self._saver, request, buffer.memory, self._cancel, self._messages.put),
            name="checkpoint-save",
            daemon=True,
        ).start()

    def cancel(self) -> None:
        """Signal the thread."""
        self._cancel.set()

    def finished(self, timeout_seconds: float) -> Finished | None:
        """Wait for the thread's result, up to the timeout."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            left_seconds = max(0.0, deadline - time.monotonic())
            try:
                message = self._messages.get(left_seconds > 0, left_seconds)
            except queue.Empty:
                return None
            match message:
                case Finished():
                    return message
                case SaveProgress():
                    self.progress = message
                case PartSetAside():
                    self.set_aside.append(message)

    def renew(self, plan: SavePlan, log: LogWriter | None) -> None:
        """Use the plan for all further saves."""
        self._saver = Saver(self._backend, plan, log)

    def close(self) -> None:
        """Do nothing, because the thread ends with its save."""


class ProcessExecutor:
    """Runs saves in a process with its own session. If the trainer is killed, the process first completes its save.

    Args:
        url: the checkpoint store's URL.
        plan: the settings of all saves.
        log: rank 0's right to commit. This process must no longer use it.
        placement: the writer process's cores and priority.
    """

    def __init__(self, url: str, plan: SavePlan, log: LogWriter | None, placement: Placement) -> None:
        ours, theirs = socket.socketpair()
        with theirs, _blocked(STOP_SIGNALS):
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    "from training.checkpoint.save.writer_process import main; main()",
                    str(theirs.fileno()),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": _search_path()},
                start_new_session=True,
            )
        self._connection: Connection = Connection(ours.detach())
        self._buffer: HostBuffer | None = None
        self._layout: Layout | None = None
        self.progress: SaveProgress | None = None
        self.set_aside: list[PartSetAside] = []
        right = None if log is None else log.right
        self._connection.send(Setup(url, plan, right, placement.cores, placement.niceness))

    def submit(self, request: SaveRequest, buffer: HostBuffer) -> None:
        """Send the request, preceded by the buffer if it is new."""
        try:
            if buffer is not self._buffer:
                self._connection.send(NewBuffer(buffer.size_bytes))
                send_handle(self._connection, buffer.descriptor, self._process.pid)
                self._buffer = buffer
            # Sending the layout of 100,000 tensors takes as long as copying them.
            is_known = request.layout is self._layout
            self._connection.send(replace(request, layout=None) if is_known else request)
            self._layout = request.layout
        except OSError as error:
            raise self._died() from error

    def cancel(self) -> None:
        """Send the cancellation, ignoring a process that has died."""
        try:
            self._connection.send(Cancel())
        except OSError:
            logger.warning("%s", self._died())

    def finished(self, timeout_seconds: float) -> Finished | None:
        """Wait for the process's result, up to the timeout."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                if not self._connection.poll(max(0.0, deadline - time.monotonic())):
                    return None
                message: Report = self._connection.recv()
            except (EOFError, OSError) as error:
                raise self._died() from error
            match message:
                case Finished():
                    return message
                case SaveProgress():
                    self.progress = message
                case PartSetAside():
                    self.set_aside.append(message)

    def renew(self, plan: SavePlan, log: LogWriter | None) -> None:
        """Send the new plan: starting another process would cost a second of CPU time on every rank."""
        try:
            self._connection.send(Renewal(plan, None if log is None else log.right))
        except OSError as error:
            raise self._died() from error

    def close(self) -> None:
        """Close the connection, and wait until the process has completed its save and exited."""
        # Forked children of this process, such as a DataLoader's workers, have copies of the descriptor, so closing it
        # here is not enough to notify the other end.
        with socket.socket(fileno=os.dup(self._connection.fileno())) as ours, contextlib.suppress(OSError):
            ours.shutdown(socket.SHUT_WR)
        self._connection.close()
        self._process.wait()

    def _died(self) -> StoreError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(DEATH_SECONDS)  # its socket closes shortly before its exit code is available
        code = self._process.returncode
        return StoreError(
            f"the checkpoint writer process (pid {self._process.pid}) died, exit code {code}; see its messages in the "
            "trainer's log, and check whether the machine ran out of memory"
        )


@contextmanager
def _blocked(numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Block signals in this thread and its children. Signals that arrive in the context are delivered after it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _search_path() -> str:
    """Return a PYTHONPATH that includes this package."""
    root = str(Path(__file__).resolve().parents[3])
    return os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
