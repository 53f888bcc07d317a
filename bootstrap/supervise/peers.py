"""Which peers are alive: watches their heart-beats' sequences with this node's own clock.

No clock of another machine is trusted, and time during which the records could not be read is nobody's silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bootstrap.documents import SuperviseTimings
from bootstrap.supervise.pings import Pings
from bootstrap.supervise.records import GenerationOutcome, Heartbeat, NodeState

# Who has not been heard for so long is not asked any more: its address may be another machine's by now.
FORGET_SECONDS = 600.0
# An answer of S3 that takes longer was waited for: what keeps this node from reading may keep the others from writing.
SLOW_ANSWER_SECONDS = 2.0


@dataclass(frozen=True)
class Peer:
    """A peer as this node sees it.

    `silent_seconds`: since its sequence last moved (or since it was first seen). `ended_seconds`: since it said the
    outcome that it says now. `proven`: it has been seen to move, so it is not what a machine of the past left behind.
    `unanswered_seconds`: since it stopped to answer pings; None: it answers, or never did.
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
    unanswered_seconds: float | None = None

    def is_unanswering(self, timings: SuperviseTimings) -> bool:
        """Return whether it used to answer pings, and has stopped for longer than a lost datagram explains."""
        return self.unanswered_seconds is not None and self.unanswered_seconds > timings.doubt_seconds

    def is_silent(self, timings: SuperviseTimings, observed_seconds: float = float("inf")) -> bool:
        """Return whether it counts as gone: no beat for the time-out, or neither beat nor answer for a part of it.

        Args:
            timings: of the deployment.
            observed_seconds: for how long its beats have been waited for; what went before is not held against it.
        """
        limit_seconds = timings.doubt_seconds if self.is_unanswering(timings) else timings.heartbeat_timeout_seconds
        return min(self.silent_seconds, observed_seconds) > limit_seconds


@dataclass
class _Entry:
    beat: Heartbeat
    moved_at: float
    outcome_at: float
    proven: bool


class PeerLedger:
    """What has been seen of each peer; times are this node's monotonic seconds."""

    def __init__(self, own_instance_id: str, pings: Pings | None = None, poll_seconds: float = 0.0) -> None:
        self._own = own_instance_id
        self._pings = pings
        self._longest_look_seconds = poll_seconds + SLOW_ANSWER_SECONDS
        self._entries: dict[str, _Entry] = {}
        self._observed_at: float | None = None

    @property
    def observed_at(self) -> float | None:
        """Return when the records were last read, or None before that."""
        return self._observed_at

    def observe(self, heartbeats: Mapping[str, Heartbeat], now: float) -> None:
        """Take in the heart-beats as read at `now`."""
        first = self._observed_at is None
        gap_seconds = 0.0 if self._observed_at is None else now - self._observed_at
        blind_seconds = max(0.0, gap_seconds - self._longest_look_seconds)
        for instance_id, beat in heartbeats.items():
            entry = self._entries.get(instance_id)
            if instance_id == self._own:
                continue
            if entry is None:
                # A record that was not there at the last look has just been written by a live machine.
                self._entries[instance_id] = _Entry(beat, now, now, proven=not first)
                continue
            entry.moved_at += blind_seconds
            if beat.sequence != entry.beat.sequence:
                entry.moved_at = now
                entry.proven = True
            if (beat.generation, beat.outcome) != (entry.beat.generation, entry.beat.outcome):
                entry.outcome_at = now
            entry.beat = beat
        for instance_id in [known for known in self._entries if known not in heartbeats]:
            del self._entries[instance_id]
        self._observed_at = now
        if self._pings is not None:
            self._pings.follow(
                {
                    instance_id: (entry.beat.address, entry.beat.port)
                    for instance_id, entry in self._entries.items()
                    if entry.beat.port and now - entry.moved_at < FORGET_SECONDS
                }
            )

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
                unanswered_seconds=self._unanswered_seconds(entry.beat.instance_id, self._observed_at),
            )
            for entry in self._entries.values()
        )

    def _unanswered_seconds(self, instance_id: str, now: float) -> float | None:
        since = self._pings.unanswered_since(instance_id) if self._pings is not None else None
        return max(0.0, now - since) if since is not None else None
