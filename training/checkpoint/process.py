"""The writer process of a rank: it encodes, stores and commits what the trainer copied into shared memory.

It runs apart from the trainer for two reasons. Python and compression on the trainer's own interpreter would hold up
its loop; and a trainer that is killed after the copy does not take the save with it. It imports no torch, so that it
costs a rank some 60 MB. It ends when its trainer is gone and the save in flight, if there is one, has ended.

Started by :class:`training.checkpoint.hosts.ProcessHost` with the descriptor of a socket to the trainer.
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
from typing import Union

from training.checkpoint.backend import open_backend
from training.checkpoint.log import LogRight, LogWriter
from training.checkpoint.progress import SaveProgress, reported
from training.checkpoint.saving import SavePlan, Saver, SaveRequest, SaveResult
from training.errors import SaveCancelledError, StoreError, TrainingError
from training.interruption import STOP_SIGNALS, ignore_stop_signals

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Opening:
    """First message of the trainer.

    Attributes:
        url: of the checkpoint store.
        plan: what stays the same from save to save.
        log: rank 0's right to commit.
        cores: to stay on; empty: all.
        niceness: added to the trainer's own.
    """

    url: str
    plan: SavePlan
    log: LogRight | None
    cores: frozenset[int]
    niceness: int


@dataclass(frozen=True)
class NewBuffer:
    """The descriptor of a buffer follows; saves from now on are in it."""

    size_bytes: int


@dataclass(frozen=True)
class Cancel:
    """Give up the save in flight."""


@dataclass(frozen=True)
class Finished:
    """Answer to a request: how the save ended on this rank."""

    serial: int
    result: SaveResult | None
    error: Exception | None


Message = Union[NewBuffer, Cancel, SaveRequest]


class _Desk:
    """Takes the trainer's messages, and has one save at a time done."""

    def __init__(self, trainer: Connection, opening: Opening) -> None:
        self._trainer = trainer
        backend = open_backend(opening.url)
        log = None if opening.log is None else LogWriter.take_over(backend, opening.log)
        self._saver = Saver(backend, opening.plan, log)
        self._cancel = threading.Event()
        self._thread: threading.Thread | None = None
        self._memory: mmap.mmap | None = None

    def serve(self) -> None:
        """Work until the trainer is gone."""
        while True:
            try:
                message: Message = self._trainer.recv()
            except (EOFError, OSError):
                break
            if isinstance(message, NewBuffer):
                self._take_buffer(message)
            elif isinstance(message, Cancel):
                self._cancel.set()
            else:
                self._start(message)
        if self._thread is not None and self._thread.is_alive():
            logger.warning("the trainer is gone; its save is seen through")
            self._saver.orphaned.set()
            self._thread.join()

    def _take_buffer(self, message: NewBuffer) -> None:
        descriptor = recv_handle(self._trainer)
        self._memory = mmap.mmap(descriptor, message.size_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        os.close(descriptor)

    def _start(self, request: SaveRequest) -> None:
        if self._thread is not None:
            self._thread.join()
        self._cancel = threading.Event()
        assert self._memory is not None, "a buffer comes before the first save"
        self._thread = threading.Thread(
            target=save_and_answer,
            args=(self._saver, request, memoryview(self._memory), self._cancel, self._answer),
            name="checkpoint-save",
        )
        self._thread.start()

    def _answer(self, message: Finished | SaveProgress) -> None:
        try:
            self._trainer.send(message)
        except OSError:
            if isinstance(message, Finished):
                logger.warning("save %d ended after its trainer: %s", message.serial, message.error or "committed")


def save_and_answer(
    saver: Saver,
    request: SaveRequest,
    plain: memoryview,
    cancel: threading.Event,
    answer: Callable[[Finished | SaveProgress], None],
) -> None:
    """A thread's work: one save, with word of how far it is, and in the end of how it ended."""
    result = error = None
    try:
        with reported(saver.meter, answer):
            result = saver.save(request, plain, cancel)
    # A thread's top level: the trainer raises the error when the ranks have agreed that there is one.
    except Exception as caught:  # noqa: BLE001
        error = caught if isinstance(caught, TrainingError) else StoreError(f"this is a bug: {caught!r}")
        if not isinstance(caught, SaveCancelledError):
            logger.error("saving step %d failed: %s", request.manifest.step, caught, exc_info=error is not caught)
    answer(Finished(request.serial, result, error))


def main() -> None:
    """Serve the trainer at the other end of the socket whose descriptor is the argument."""
    # The trainer saves when it is told to stop; this process has to be there for that, and ends with the trainer.
    # They have been held up since before this program was started, so that none comes too early.
    ignore_stop_signals()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s checkpoint writer %(levelname)s %(message)s"
    )
    logging.getLogger("botocore").setLevel(logging.WARNING)
    trainer: Connection = Connection(int(sys.argv[1]))
    opening: Opening = trainer.recv()
    if opening.cores:
        os.sched_setaffinity(0, opening.cores)
    os.nice(opening.niceness)
    _Desk(trainer, opening).serve()
