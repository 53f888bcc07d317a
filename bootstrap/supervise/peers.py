"""Which peers are alive: watches their heart-beats' sequences with this node's own clock.

No clock of another machine is trusted, and time during which the records could not be read is nobody's silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bootstrap.supervise.records import GenerationOutcome, Heartbeat, NodeState


@dataclass(frozen=True)
class Peer:
    """A peer as this node sees it.

    `silent_seconds`: since its sequence last moved (or since it was first seen). `ended_seconds`: since it said the
    outcome that it says now. `proven`: it has been seen to move, so it is not what a machine of the past left behind.
    """

    instance_id: str
    address: str
    state: NodeState
    generation: int
    outcome: GenerationOutcome | None
    run_digest: str
    joined_unix_seconds: float
    proven: bool
    silent_seconds: float
    ended_seconds: float


@dataclass
class _Entry:
    beat: Heartbeat
    moved_at: float
    outcome_at: float
    proven: bool


class PeerLedger:
    """What has been seen of each peer; times are this node's monotonic seconds."""

    def __init__(self, own_instance_id: str) -> None:
        self._own = own_instance_id
        self._entries: dict[str, _Entry] = {}
        self._observed_at: float | None = None

    @property
    def observed_at(self) -> float | None:
        """Return when the records were last read, or None before that."""
        return self._observed_at

    def observe(self, heartbeats: Mapping[str, Heartbeat], now: float) -> None:
        """Take in the heart-beats as read at `now`."""
        first = self._observed_at is None
        for instance_id, beat in heartbeats.items():
            entry = self._entries.get(instance_id)
            if instance_id == self._own:
                continue
            if entry is None:
                # A record that was not there at the last look has just been written by a live machine.
                self._entries[instance_id] = _Entry(beat, now, now, proven=not first)
                continue
            if beat.sequence != entry.beat.sequence:
                entry.moved_at = now
                entry.proven = True
            if (beat.generation, beat.outcome) != (entry.beat.generation, entry.beat.outcome):
                entry.outcome_at = now
            entry.beat = beat
        for instance_id in [known for known in self._entries if known not in heartbeats]:
            del self._entries[instance_id]
        self._observed_at = now

    def peers(self) -> tuple[Peer, ...]:
        """Return every peer, as of the last observation."""
        if self._observed_at is None:
            return ()
        return tuple(
            Peer(
                instance_id=entry.beat.instance_id,
                address=entry.beat.address,
                state=entry.beat.state,
                generation=entry.beat.generation,
                outcome=entry.beat.outcome,
                run_digest=entry.beat.run_digest,
                joined_unix_seconds=entry.beat.joined_unix_seconds,
                proven=entry.proven,
                silent_seconds=self._observed_at - entry.moved_at,
                ended_seconds=self._observed_at - entry.outcome_at,
            )
            for entry in self._entries.values()
        )
