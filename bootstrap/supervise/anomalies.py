"""Reports conditions that `decide` cannot resolve, such as missing peers and clock steps, once each."""

from __future__ import annotations

from collections.abc import Mapping

from bootstrap.context import Context
from bootstrap.events.schema import ClockJumped, GangIncomplete
from bootstrap.supervise.decide import ready_peers
from bootstrap.supervise.situation import Situation

# chrony corrects the clock in far smaller steps. A step of this size makes deadlines in Unix seconds wrong.
CLOCK_JUMP_SECONDS = 5.0
# Clock readings further apart than this are not compared: the process may have been frozen between them.
READING_SECONDS = 1.0

ELECTION_REMEDY = (
    "no action is needed if this is rare: only one record is written; if it is frequent, check that these "
    "nodes read each other's heartbeats (runs/<fleet>/<run>/control/heartbeats/) in time"
)
_EVIDENCE = (
    "see runs/<fleet>/<run>/results/gen-<generation>/node-<rank>/ in the checkpoint bucket: trainer.log, stacks/, "
    "collectives-*"
)
GENERATION_REMEDIES: Mapping[str, str] = {
    "lost_peer": "no action is needed if an instance was reclaimed or frozen: the other nodes resume from the last "
    f"checkpoint, and later commits by this node are refused; otherwise, {_EVIDENCE}",
    "failed": _EVIDENCE,
    "bad_configuration": "correct training.config, and deploy: the nodes restart with the new run document",
}
"""Remedies for generation outcomes. Some outcomes do not have one."""


class Anomalies:
    """Reports each anomaly once. Only the main loop uses this class."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._reported_wait: float | None = None
        self._offset_seconds: float | None = None

    def check(self, situation: Situation | None) -> None:
        """Emit new anomalies."""
        self._check_clock()
        if situation is not None:
            self._check_gang(situation)

    def _check_gang(self, situation: Situation) -> None:
        since, wanted = situation.ready_since, situation.wanted
        if since is None or situation.recorded is not None or situation.judgement is not None:
            return
        waited_seconds = situation.now - since
        ready = [peer.instance_id for peer in ready_peers(situation, wanted.digest)]
        present = sorted([situation.me.instance_id, *ready])
        if since == self._reported_wait or len(present) >= wanted.min_nodes:
            return
        if waited_seconds < situation.timings.gang_timeout_seconds:
            return
        self._reported_wait = since
        self._context.events.emit(
            GangIncomplete(
                ready_instance_ids=tuple(present),
                nodes=wanted.nodes,
                min_nodes=wanted.min_nodes,
                waited_seconds=round(waited_seconds, 1),
                message=f"found {len(present)} ready nodes after {waited_seconds:.0f} s, expected at least "
                f"{wanted.min_nodes}",
                remedy="see nodes/<role id>:<instance id>/ in the control bucket for failed boots, and the fleet's "
                "activities for capacity errors; this node waits until the run controller abandons the gang and "
                "requests it again; capacity.min_nodes sets the size of the smallest gang",
            )
        )

    def _check_clock(self) -> None:
        system = self._context.system
        before, unix, after = system.monotonic_seconds(), system.unix_seconds(), system.monotonic_seconds()
        if after - before > READING_SECONDS:
            return
        known, self._offset_seconds = self._offset_seconds, unix - after
        if known is None or abs(self._offset_seconds - known) < CLOCK_JUMP_SECONDS:
            return
        jump_seconds = self._offset_seconds - known
        self._context.events.emit(
            ClockJumped(
                seconds=round(jump_seconds, 1),
                message=f"this machine's clock was stepped by {jump_seconds:+.0f} s; training continues",
                remedy="see `chronyc tracking`: the only source must be the Amazon Time Sync Service, 169.254.169.123",
            )
        )
