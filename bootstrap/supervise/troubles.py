"""Says once, as an event with a remedy, what `decide` can only wait for: peers that do not come, a clock that jumps."""

from __future__ import annotations

from collections.abc import Mapping

from bootstrap.plan import Context
from bootstrap.supervise.decide import ready_peers
from bootstrap.supervise.situation import Situation

# Slewing by chrony stays far below; a step of this size is one that deadlines in unix seconds are wrong by.
CLOCK_JUMP_SECONDS = 5.0
# Two clocks read at one moment: a process that was frozen between the readings has not seen the clock jump.
READING_SECONDS = 1.0

ELECTION_REMEDY = (
    "none while it is rare, for only one record is ever written; if it is often, see whether these nodes hear each "
    "other's heart-beats (runs/<run>/control/heartbeats/) in time"
)
_EVIDENCE = (
    "see runs/<run>/results/gen-<generation>/node-<rank>/ of the checkpoint bucket: trainer.log, stacks/, collectives-*"
)
GENERATION_REMEDIES: Mapping[str, str] = {
    "lost_peer": "none where a machine was taken or frozen: the others go on from the last checkpoint, and what this "
    f"node has not committed by now is refused; else {_EVIDENCE}",
    "failed": _EVIDENCE,
    "bad_configuration": "correct training.config, and deploy: the nodes take the new run document as they are",
}
"""What to do about a generation that ended so."""


class Troubles:
    """What has been said already; only the main loop uses it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._alone_since: float | None = None
        self._offset_seconds: float | None = None

    def look(self, situation: Situation | None) -> None:
        """Emit what is new."""
        self._look_at_clock()
        if situation is not None:
            self._look_at_gang(situation)

    def _look_at_gang(self, situation: Situation) -> None:
        since, wanted = situation.ready_since, situation.wanted
        if since is None or situation.recorded is not None or situation.judgement is not None:
            return
        waited_seconds = situation.now - since
        ready = [peer.instance_id for peer in ready_peers(situation, wanted.digest)]
        present = sorted([situation.me.instance_id, *ready])
        if since == self._alone_since or len(present) >= wanted.min_nodes:
            return
        if waited_seconds < situation.timings.gang_timeout_seconds:
            return
        self._alone_since = since
        self._context.events.emit(
            "gang_incomplete",
            present=present,
            nodes=wanted.nodes,
            min_nodes=wanted.min_nodes,
            waited_seconds=round(waited_seconds, 1),
            message=f"{len(present)} of at least {wanted.min_nodes} nodes are ready after {waited_seconds:.0f} s",
            remedy="see nodes/<instance id>/ of the checkpoint bucket for machines that did not boot, and the fleet's "
            "activities for capacity; this node waits on until the run controller gives the gang up and asks for it "
            "anew; capacity.min_nodes says how few are enough",
        )

    def _look_at_clock(self) -> None:
        system = self._context.system
        before, unix, after = system.monotonic_seconds(), system.unix_seconds(), system.monotonic_seconds()
        if after - before > READING_SECONDS:
            return
        known, self._offset_seconds = self._offset_seconds, unix - after
        if known is None or abs(self._offset_seconds - known) < CLOCK_JUMP_SECONDS:
            return
        jump_seconds = self._offset_seconds - known
        self._context.events.emit(
            "clock_jumped",
            seconds=round(jump_seconds, 1),
            message=f"the clock of this machine was set {jump_seconds:+.0f} s; the training goes on",
            remedy="see `chronyc tracking`: the Amazon Time Sync Service, 169.254.169.123, is to be its only source",
        )
