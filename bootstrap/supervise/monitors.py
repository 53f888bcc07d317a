"""The supervisor's monitors, with one thread for each: instance metadata, run document, control records and heartbeat.

A slow or missing service delays only its own monitor. Each monitor writes its observations to the `Board` for the main
loop.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from bootstrap.boot_steps.run_document import read_parameters
from bootstrap.context import Context
from bootstrap.documents import RunDocument
from bootstrap.documents.desired_state import RUNNING, DesiredState
from bootstrap.errors import BootstrapError, DocumentError, MetadataError
from bootstrap.events import schema
from bootstrap.imds import TERMINATED, InterruptionNotice
from bootstrap.supervise.membership.records import Heartbeat
from bootstrap.supervise.membership.scope import RunScope

logger = logging.getLogger(__name__)

# The run document rarely changes, and Parameter Store allows 40 reads per second per account.
RUN_DOCUMENT_POLLS = 3
FREE_SECONDS = 3600.0
"""Age below which AWS does not bill a Spot Instance that EC2 interrupts; AWS bills one that terminates itself. Source
(2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/billing-for-interrupted-spot-instances.html"""
SET_ASIDE_REMEDY = "the run continues without it; identify the writer in the bucket's access log, and remove the object"


class Board:
    """The monitors' observations. One thread writes each attribute, and `wake` wakes the main loop."""

    def __init__(self) -> None:
        self.wake = threading.Event()
        self.notice: InterruptionNotice | None = None
        self.noticed_unix = 0.0
        self.free_until_unix: float | None = None
        self.rebalance_time: str | None = None
        self.target_state: str | None = None
        self.scale_in_since_unix: float | None = None
        self.gpu_fault: str | None = None
        self.run: RunDocument | None = None
        self.desired: DesiredState = RUNNING
        self.stopped_since_unix: float | None = None
        self.scope: RunScope | None = None


class Monitor:
    """A thread that calls `check` every `interval_seconds`.

    Repeated BootstrapErrors are logged only when they start and when they stop. Any other exception is a bug, which the
    main loop reads from `failure`.
    """

    def __init__(self, name: str, interval_seconds: float, check: Callable[[], None], wake: threading.Event) -> None:
        self.interval_seconds = interval_seconds
        self._check = check
        self._wake = wake
        self._ended = threading.Event()
        self._hurry = threading.Event()
        self._is_failing = False
        self.name = name
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def hurry(self) -> None:
        """Run the next check now."""
        self._hurry.set()

    def stop(self) -> None:
        """Stop the thread after the current check."""
        self._ended.set()
        self._hurry.set()

    def _work(self) -> None:
        try:
            while not self._ended.is_set():
                self._hurry.clear()
                self._check_once()
                self._hurry.wait(self.interval_seconds)
        except Exception as error:  # noqa: BLE001 top level of a thread: the main loop raises it
            self.failure = error
            self._wake.set()

    def _check_once(self) -> None:
        try:
            self._check()
        except BootstrapError as error:
            if not self._is_failing:
                logger.warning("%s: %s", self.name, error)
            self._is_failing = True
        else:
            if self._is_failing:
                logger.warning("%s: recovered", self.name)
            self._is_failing = False


class MetadataWatch:
    """Watches instance metadata for interruption notices and lifecycle changes."""

    def __init__(self, context: Context, board: Board) -> None:
        self._context = context
        self._board = board

    def check(self) -> None:
        """Read the spot notice, target lifecycle state and rebalance recommendation; emit an event per change."""
        board, metadata, events = self._board, self._context.metadata, self._context.events
        notice = metadata.interruption_notice()
        if notice is not None and board.notice is None:
            events.emit(schema.InterruptionNotice(notice.action, notice.reclaim_unix_seconds))
            board.noticed_unix = self._context.system.unix_seconds()
            board.free_until_unix = self._free_until()
            board.notice = notice
            board.wake.set()
        state = metadata.target_lifecycle_state()
        if state != board.target_state:
            if state is not None:
                events.emit(schema.LifecycleTarget(state))
            if state == TERMINATED and board.scale_in_since_unix is None:
                board.scale_in_since_unix = self._context.system.unix_seconds()
            board.target_state = state
            board.wake.set()
        recommended = metadata.rebalance_recommendation()
        if recommended is not None and recommended != board.rebalance_time:
            events.emit(schema.RebalanceRecommendation(recommended))
            board.rebalance_time = recommended
            board.wake.set()

    def _free_until(self) -> float | None:
        """Return the end of a Spot Instance's first hour, or None if the launch time is unknown."""
        identity = self._context.identity
        if identity is None or identity.market != "spot":
            return None
        try:
            launched = self._context.metadata.launched_unix_seconds()
        except MetadataError as error:
            logger.warning("the launch time is unknown: %s", error)
            return None
        return None if launched is None else launched + FREE_SECONDS


class RunDocumentWatch:
    """Watches the run document and the desired state of the deployment."""

    def __init__(self, context: Context, board: Board) -> None:
        self._context = context
        self._board = board
        self._refused: str | None = None

    def check(self) -> None:
        """Read both documents. If one is invalid, reject both, and keep the last valid documents in effect."""
        board, events = self._board, self._context.events
        try:
            run, desired = read_parameters(self._context)
        except DocumentError as error:
            if str(error) != self._refused:
                events.emit(schema.RunDocumentRefused(str(error)))
            self._refused = str(error)
            raise
        self._refused = None
        self._follow(desired)
        before = board.run
        if before is not None and before.digest() != run.digest():
            events.emit(schema.RunDocumentChanged(before.digest(), run.digest()))
        if before is None or before.digest() != run.digest():
            board.run = run
            board.wake.set()

    def _follow(self, desired: DesiredState) -> None:
        board = self._board
        if desired == board.desired:
            return
        self._context.events.emit(schema.DesiredStateChanged(desired.state, desired.requested_by or None))
        if desired.state == "running":
            board.stopped_since_unix = None
        elif board.stopped_since_unix is None:
            board.stopped_since_unix = self._context.system.unix_seconds()
        board.desired = desired
        board.wake.set()


class ControlWatch:
    """Watches peers, generations and the run's outcome."""

    def __init__(self, context: Context, board: Board) -> None:
        self._context = context
        self._board = board

    def check(self) -> None:
        """Read the control records of the run that the main loop has selected."""
        scope = self._board.scope
        if scope is None:
            return
        clock = self._context.system.monotonic_seconds
        started = clock()
        observation = scope.store.observe()
        scope.update(observation, started, clock())
        for each in observation.set_aside:
            self._context.events.emit(schema.ControlRecordSetAside(each.url, each.reason, SET_ASIDE_REMEDY))
        self._board.wake.set()


class HeartbeatWriter:
    """Writes this node's heartbeat periodically and immediately after a change, and notifies the peers of changes."""

    def __init__(self, board: Board, first: Heartbeat, tell: Callable[[], None] = lambda: None) -> None:
        self._board = board
        self._tell = tell
        self._has_changed = False
        self._beat = first
        self._sequence = first.sequence
        self._lock = threading.Lock()

    def update(self, beat: Heartbeat) -> bool:
        """Set the contents of the next heartbeats. Return True if they changed."""
        with self._lock:
            changed = replace(beat, sequence=0, step=0) != replace(self._beat, sequence=0, step=0)
            self._beat = beat
            self._has_changed |= changed
        return changed

    def check(self) -> None:
        """Write a heartbeat once the records have been read for the first time."""
        scope = self._board.scope
        if scope is None or scope.view()[1] is None:
            return
        with self._lock:
            self._sequence += 1
            beat = replace(self._beat, sequence=self._sequence)
            has_changed, self._has_changed = self._has_changed, False
        scope.store.beat(beat)
        if has_changed:
            self._tell()
