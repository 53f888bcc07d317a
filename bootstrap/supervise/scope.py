"""What is known of one run's control records; replaced as a whole when the run's name changes."""

from __future__ import annotations

import threading

from bootstrap.supervise.control import ControlStore, Observation
from bootstrap.supervise.peers import Peer, PeerLedger
from bootstrap.supervise.pings import Pings
from bootstrap.supervise.records import GenerationRecord, RunOutcome


class RunScope:
    """The store of a run, and what was last read from it; written by the watch, read by the main loop."""

    def __init__(
        self, store: ControlStore, own_instance_id: str, pings: Pings | None = None, poll_seconds: float = 0.0
    ) -> None:
        self.store = store
        self._ledger = PeerLedger(own_instance_id, pings, poll_seconds)
        self._lock = threading.Lock()
        self._newest: GenerationRecord | None = None
        self._outcome: RunOutcome | None = None
        self._outcome_noted_at = float("-inf")
        # Generations up to this one are not for this node: they were there when it came, or it has been through them.
        self.floor = 0

    def take(self, observation: Observation, began: float, now: float) -> None:
        """Take in what was read from `began` to `now` (monotonic seconds)."""
        with self._lock:
            if self._ledger.observed_at is None and observation.newest is not None:
                self.floor = observation.newest.generation
            self._ledger.observe(observation.heartbeats, now)
            if began > self._outcome_noted_at:  # else the listing may be older than what this node wrote
                self._outcome = observation.outcome
            self._note_newest(observation.newest)

    def note_elected(self, record: GenerationRecord) -> None:
        """Know a record that this node has just written, before the watch reads it."""
        with self._lock:
            self._note_newest(record)

    def note_outcome(self, outcome: RunOutcome, now: float) -> None:
        """Know an outcome that this node has just written, before the watch reads it."""
        with self._lock:
            self._outcome, self._outcome_noted_at = outcome, now

    def view(self) -> tuple[tuple[Peer, ...], float | None, GenerationRecord | None, RunOutcome | None]:
        """Return peers, when they were observed, the newest generation and the run's outcome, all of one moment."""
        with self._lock:
            return self._ledger.peers(), self._ledger.observed_at, self._newest, self._outcome

    def _note_newest(self, record: GenerationRecord | None) -> None:
        if record is not None and (self._newest is None or record.generation > self._newest.generation):
            self._newest = record
