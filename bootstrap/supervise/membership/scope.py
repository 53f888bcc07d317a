"""The latest observations of one run's control records. They are replaced when the run is renamed."""

from __future__ import annotations

import threading

from bootstrap.supervise.membership.control import ControlStore, Observation
from bootstrap.supervise.membership.peers import Peer, PeerLedger
from bootstrap.supervise.membership.pings import Pings
from bootstrap.supervise.membership.records import GenerationRecord, RunOutcome


class RunScope:
    """A run's control store and its latest observation, which a monitor updates and the main loop reads."""

    def __init__(
        self, store: ControlStore, own_instance_id: str, pings: Pings | None = None, poll_seconds: float = 0.0
    ) -> None:
        self.store = store
        self._ledger = PeerLedger(own_instance_id, pings, poll_seconds)
        self._lock = threading.Lock()
        self._newest: GenerationRecord | None = None
        self._outcome: RunOutcome | None = None
        self._outcome_noted_at = float("-inf")
        # This node ignores generations up to this number, because they existed when it joined or its part in them has
        # ended.
        self.floor = 0
        self._last_generation = 0

    def update(self, observation: Observation, started: float, now: float) -> None:
        """Store an observation that was read between `started` and `now` (monotonic seconds)."""
        with self._lock:
            if self._ledger.observed_at is None and observation.newest is not None:
                self.floor = observation.newest.generation
            self._ledger.observe(observation.heartbeats, now)
            if started > self._outcome_noted_at:  # an older listing may not contain the outcome that this node wrote
                self._outcome = observation.outcome
            self._note_newest(observation.newest)
            self._last_generation = max(self._last_generation, observation.last_generation)

    def note_elected(self, record: GenerationRecord) -> None:
        """Store a record that this node has just written, without waiting for the monitor to read it."""
        with self._lock:
            self._note_newest(record)

    def note_outcome(self, outcome: RunOutcome, now: float) -> None:
        """Store an outcome that this node has just written, without waiting for the monitor to read it."""
        with self._lock:
            self._outcome, self._outcome_noted_at = outcome, now

    def view(self) -> tuple[tuple[Peer, ...], float | None, GenerationRecord | None, RunOutcome | None]:
        """Return a consistent view: the peers, their observation time, the newest generation and the run's outcome."""
        with self._lock:
            return self._ledger.peers(), self._ledger.observed_at, self._newest, self._outcome

    @property
    def last_generation(self) -> int:
        """Return the last number used by any record, even a damaged one. The next election uses a later number."""
        with self._lock:
            return max(self._last_generation, self._newest.generation if self._newest is not None else 0)

    def _note_newest(self, record: GenerationRecord | None) -> None:
        if record is not None and (self._newest is None or record.generation > self._newest.generation):
            self._newest = record
