"""Determines the liveness of peers from their heartbeats' sequence numbers and this node's monotonic clock.

Other machines' clocks are not used. Time during which this node cannot read the records is not counted as silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bootstrap.documents.supervisor_limits import SuperviseTimings
from bootstrap.supervise.membership.pings import Pings
from bootstrap.supervise.membership.records import GenerationOutcome, Heartbeat, NodeState

# A peer that has been silent for this long is no longer pinged: its address may now belong to another machine.
FORGET_SECONDS = 600.0
# The time of a slower S3 read is not counted as silence: its cause may also prevent peers from writing.
SLOW_RESPONSE_SECONDS = 2.0


@dataclass(frozen=True)
class Peer:
    """A peer's state as known to this node, based on the peer's last heartbeat.

    Attributes:
        generation: Last generation that the peer took part in.
        outcome: Outcome of its part in that generation, or None until the part has ended.
        run_digest: Digest of the run document that the peer is ready for or is training.
        proven: Whether its sequence has increased, which excludes a leftover record of a terminated instance.
        silent_seconds: Time since its sequence last increased, or since it was first seen.
        ended_seconds: Time since its outcome last changed.
        unanswered_seconds: Time since it stopped responding to pings, or None if it responds or has never responded.
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
        """Return True if the peer has not responded to pings for longer than lost datagrams can explain."""
        return self.unanswered_seconds is not None and self.unanswered_seconds > timings.doubt_seconds

    def is_silent(self, timings: SuperviseTimings, observed_seconds: float = float("inf")) -> bool:
        """Return True if the peer is considered lost. The timeout is shorter if the peer has stopped sending pongs.

        Args:
            timings: The deployment's intervals and timeouts.
            observed_seconds: Time for which this node has watched the peer, an upper bound on the peer's silence.
        """
        limit_seconds = timings.doubt_seconds if self.is_unanswering(timings) else timings.heartbeat_timeout_seconds
        return min(self.silent_seconds, observed_seconds) > limit_seconds

    def is_ready(self, timings: SuperviseTimings) -> bool:
        """Return True if the peer is alive and waits for a generation, for whatever run document."""
        return self.proven and self.state == "ready" and not self.is_silent(timings)


@dataclass
class _Entry:
    beat: Heartbeat
    moved_at: float
    outcome_at: float
    proven: bool


class PeerLedger:
    """Observations of each peer. Times are this node's monotonic seconds."""

    def __init__(self, own_instance_id: str, pings: Pings | None = None, poll_seconds: float = 0.0) -> None:
        self._own = own_instance_id
        self._pings = pings
        self._max_gap_seconds = poll_seconds + SLOW_RESPONSE_SECONDS
        self._entries: dict[str, _Entry] = {}
        self._observed_at: float | None = None

    @property
    def observed_at(self) -> float | None:
        """Return the time of the last observation, or None."""
        return self._observed_at

    def observe(self, heartbeats: Mapping[str, Heartbeat], now: float) -> None:
        """Record the heartbeats that were read at `now`."""
        first = self._observed_at is None
        gap_seconds = 0.0 if self._observed_at is None else now - self._observed_at
        blind_seconds = max(0.0, gap_seconds - self._max_gap_seconds)
        for instance_id, beat in heartbeats.items():
            entry = self._entries.get(instance_id)
            if instance_id == self._own:
                continue
            if entry is None:
                # The record is new since the last observation, so a live instance wrote it.
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
        """Return every peer as of the last observation."""
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
