"""A rank's writer process: encodes, stores and commits the state that the trainer copied into shared memory.

It is a separate process for two reasons: running Python and compression in the trainer's interpreter would slow down
the training loop, and a save survives if the trainer is killed after the copy. The process does not import torch, so it
needs only about 60 MB per rank. It exits when its trainer has exited and any save in flight has finished.

Started by :class:`training.checkpoint.save.executors.ProcessExecutor` with the descriptor of a socket to the trainer.
"""

from __future__ import annotations

import logging
import mmap
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle

from training.checkpoint.log import LogRight, LogWriter
from training.checkpoint.save.parts import PartSetAside
from training.checkpoint.save.progress import SaveProgress, reported
from training.checkpoint.save.rank_save import SavePlan, Saver, SaveRequest, SaveResult
from training.checkpoint.storage.urls import open_backend
from training.errors import SaveCancelledError, StoreError, TrainingError
from training.process.children import STOP_SIGNALS, ignore_stop_signals

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Setup:
    """The trainer's first message.

    Attributes:
        url: the checkpoint store's URL.
        plan: the settings of all saves.
        log: rank 0's right to commit, or None on other ranks.
        cores: CPU affinity; empty: all cores.
        niceness: amount to add to the trainer's niceness.
    """

    url: str
    plan: SavePlan
    log: LogRight | None
    cores: frozenset[int]
    niceness: int


@dataclass(frozen=True)
class Renewal:
    """Sets the plan and the right to commit for all further saves: the gang has changed in place."""

    plan: SavePlan
    log: LogRight | None


@dataclass(frozen=True)
class NewBuffer:
    """Precedes the descriptor of the buffer for all further saves."""

    size_bytes: int


@dataclass(frozen=True)
class Cancel:
    """Cancels the save in flight."""


@dataclass(frozen=True)
class Finished:
    """A request's result on this rank."""

    serial: int
    result: SaveResult | None
    error: Exception | None


Message = NewBuffer | Cancel | Renewal | SaveRequest
Report = Finished | SaveProgress | PartSetAside


class _Server:
    """Receives the trainer's messages, and runs one save at a time in a thread."""

    def __init__(self, trainer: Connection, setup: Setup) -> None:
        self._trainer = trainer
        self._backend = open_backend(setup.url)
        self._saver = self._saver_for(setup.plan, setup.log)
        self._cancel = threading.Event()
        self._thread: threading.Thread | None = None
        self._memory: mmap.mmap | None = None

    def serve(self) -> None:
        """Handle messages until the trainer exits."""
        while True:
            try:
                message: Message = self._trainer.recv()
            except (EOFError, OSError):
                break
            match message:
                case NewBuffer():
                    self._map_buffer(message)
                case Cancel():
                    self._cancel.set()
                case Renewal():
                    self._saver = self._saver_for(message.plan, message.log)
                case SaveRequest():
                    self._start(message)
        if self._thread is not None and self._thread.is_alive():
            logger.warning("the trainer has exited; completing its save")
            self._saver.orphaned.set()
            self._thread.join()

    def _saver_for(self, plan: SavePlan, right: LogRight | None) -> Saver:
        return Saver(self._backend, plan, None if right is None else LogWriter.take_over(self._backend, right))

    def _map_buffer(self, message: NewBuffer) -> None:
        descriptor = recv_handle(self._trainer)
        self._memory = mmap.mmap(descriptor, message.size_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        os.close(descriptor)

    def _start(self, request: SaveRequest) -> None:
        if self._thread is not None:
            self._thread.join()
        self._cancel = threading.Event()
        assert self._memory is not None, "a buffer must precede the first save"
        self._thread = threading.Thread(
            target=save_and_report,
            args=(self._saver, request, memoryview(self._memory), self._cancel, self._send),
            name="checkpoint-save",
        )
        self._thread.start()

    def _send(self, message: Report) -> None:
        try:
            self._trainer.send(message)
        except OSError:
            if isinstance(message, Finished):
                logger.warning(
                    "save %d finished after its trainer exited: %s", message.serial, message.error or "committed"
                )


def save_and_report(
    saver: Saver,
    request: SaveRequest,
    plain: memoryview,
    cancel: threading.Event,
    send: Callable[[Report], None],
) -> None:
    """Run one save in a thread; send the progress and the objects set aside, and then the result."""
    result = error = None
    saver.parts.report = send
    try:
        with reported(saver.meter, send):
            result = saver.save(request, plain, cancel)
    # This is a thread's top level. The trainer raises the error after the ranks have agreed on it.
    except Exception as caught:  # noqa: BLE001
        error = caught if isinstance(caught, TrainingError) else StoreError(f"this is a bug: {caught!r}")
        if not isinstance(caught, SaveCancelledError):
            logger.error("saving step %d failed: %s", request.manifest.step, caught, exc_info=error is not caught)
    send(Finished(request.serial, result, error))


def main() -> None:
    """Serve the trainer at the other end of a socket. The argument is the socket's descriptor."""
    # The trainer saves on a stop signal, so this process must ignore the signal; it exits with the trainer. Signals
    # were blocked before this program started, so none can arrive too early.
    ignore_stop_signals()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s checkpoint writer %(levelname)s %(message)s"
    )
    logging.getLogger("botocore").setLevel(logging.WARNING)
    trainer: Connection = Connection(int(sys.argv[1]))
    setup: Setup = trainer.recv()
    if setup.cores:
        os.sched_setaffinity(0, setup.cores)
    os.nice(setup.niceness)
    _Server(trainer, setup).serve()
