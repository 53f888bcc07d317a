"""The supervisor's eyes: one thread each for instance metadata, run document, control records, and the own heart-beat.

A slow or missing service holds up its own monitor only. Each writes what it sees to the `Board`, for the main loop.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from bootstrap.documents import RunDocument
from bootstrap.errors import BootstrapError, DocumentError
from bootstrap.imds import InterruptionNotice
from bootstrap.plan import Context
from bootstrap.steps.run_document import read_run_document
from bootstrap.supervise.records import Heartbeat
from bootstrap.supervise.scope import RunScope

logger = logging.getLogger(__name__)

# The run document changes a few times a day, and Parameter Store allows 40 reads a second to the whole account.
RUN_DOCUMENT_POLLS = 3


class Board:
    """What the monitors see. Each attribute is written by one thread; `wake` tells the main loop to look."""

    def __init__(self) -> None:
        self.wake = threading.Event()
        self.notice: InterruptionNotice | None = None
        self.noticed_unix = 0.0
        self.rebalance_time: str | None = None
        self.target_state: str | None = None
        self.scale_in_since_unix: float | None = None
        self.gpu_fault: str | None = None
        self.run: RunDocument | None = None
        self.scope: RunScope | None = None


class Monitor:
    """A thread that looks at one thing every `interval_seconds`.

    Errors that a service may cause are logged when they begin and when they end; anything else is a defect, kept in
    `failure` for the main loop.
    """

    def __init__(self, name: str, interval_seconds: float, look: Callable[[], None], wake: threading.Event) -> None:
        self.interval_seconds = interval_seconds
        self._look = look
        self._wake = wake
        self._ended = threading.Event()
        self._hurry = threading.Event()
        self._in_trouble = False
        self.name = name
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def hurry(self) -> None:
        """Look now."""
        self._hurry.set()

    def stop(self) -> None:
        """End the thread after the look that is under way."""
        self._ended.set()
        self._hurry.set()

    def _work(self) -> None:
        try:
            while not self._ended.is_set():
                self._hurry.clear()
                self._look_once()
                self._hurry.wait(self.interval_seconds)
        except Exception as error:  # noqa: BLE001 top level of a thread: the main loop raises it
            self.failure = error
            self._wake.set()

    def _look_once(self) -> None:
        try:
            self._look()
        except BootstrapError as error:
            if not self._in_trouble:
                logger.warning("%s: %s", self.name, error)
            self._in_trouble = True
        else:
            if self._in_trouble:
                logger.warning("%s: works again", self.name)
            self._in_trouble = False


class MetadataWatch:
    """Sees what AWS is about to do with this machine."""

    def __init__(self, context: Context, board: Board) -> None:
        self._context = context
        self._board = board

    def look(self) -> None:
        """Ask for notice, recommendation and target state; each change is an event."""
        board, metadata, events = self._board, self._context.metadata, self._context.events
        notice = metadata.interruption_notice()
        if notice is not None and board.notice is None:
            events.emit("interruption_notice", action=notice.action, reclaim_unix_seconds=notice.reclaim_unix_seconds)
            board.noticed_unix = self._context.system.unix_seconds()
            board.notice = notice
            board.wake.set()
        state = metadata.target_lifecycle_state()
        if state != board.target_state:
            if state is not None:
                events.emit("lifecycle_target", state=state)
            if state == "Terminated" and board.scale_in_since_unix is None:
                board.scale_in_since_unix = self._context.system.unix_seconds()
            board.target_state = state
            board.wake.set()
        recommended = metadata.rebalance_recommendation()
        if recommended is not None and recommended != board.rebalance_time:
            events.emit("rebalance_recommendation", notice_time=recommended)
            board.rebalance_time = recommended
            board.wake.set()


class RunDocumentWatch:
    """Sees the run document change."""

    def __init__(self, context: Context, board: Board) -> None:
        self._context = context
        self._board = board
        self._refused: str | None = None

    def look(self) -> None:
        """Read it; a document that is not sound is refused, and the last sound one stays."""
        board, events = self._board, self._context.events
        try:
            run = read_run_document(self._context)
        except DocumentError as error:
            if str(error) != self._refused:
                events.emit("run_document_refused", message=str(error))
            self._refused = str(error)
            raise
        self._refused = None
        before = board.run
        if before is not None and before.digest() != run.digest():
            events.emit("run_document_changed", old_digest=before.digest(), new_digest=run.digest())
        if before is None or before.digest() != run.digest():
            board.run = run
            board.wake.set()


class ControlWatch:
    """Sees peers, generations and the run's outcome."""

    def __init__(self, context: Context, board: Board) -> None:
        self._context = context
        self._board = board

    def look(self) -> None:
        """Read the control records of the run that the main loop has chosen."""
        scope = self._board.scope
        if scope is None:
            return
        clock = self._context.system.monotonic_seconds
        began = clock()
        observation = scope.store.observe()
        scope.take(observation, began, clock())
        self._board.wake.set()


class HeartbeatWriter:
    """Writes this node's heart-beat, and again at once when what it says changes."""

    def __init__(self, board: Board, first: Heartbeat) -> None:
        self._board = board
        self._beat = first
        self._sequence = first.sequence
        self._lock = threading.Lock()

    def say(self, beat: Heartbeat) -> bool:
        """Set what the next beats say; returns whether it is something new."""
        with self._lock:
            changed = replace(beat, sequence=0, step=0) != replace(self._beat, sequence=0, step=0)
            self._beat = beat
        return changed

    def look(self) -> None:
        """Write a beat, once the records have been read for the first time."""
        scope = self._board.scope
        if scope is None or scope.view()[1] is None:
            return
        with self._lock:
            self._sequence += 1
            beat = replace(self._beat, sequence=self._sequence)
        scope.store.beat(beat)
