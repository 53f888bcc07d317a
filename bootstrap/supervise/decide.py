"""The supervisor's policy, as one pure function: from the situation to what to do now.

It is asked several times a second and remembers nothing: whatever it asks for is asked for again until the situation
shows that it has happened. The rules are those of docs/architecture.md, section 4.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bootstrap.documents import SuperviseTimings
from bootstrap.supervise.peers import Peer
from bootstrap.supervise.records import Member, NodeState
from bootstrap.supervise.situation import (
    Action,
    Active,
    Conclude,
    Elect,
    Kill,
    Leave,
    Prepare,
    RecordRunOutcome,
    RequestSave,
    RequestStop,
    Result,
    Situation,
    Start,
)

# A save is asked to be through this long before the machine is taken: to report, to flush, to shut down.
# Of a notice shorter than AWS's two minutes only a tenth.
NOTICE_MARGIN_SECONDS = 10.0
# What AWS gives, from when the notice is there to be seen. A notice whose time is further off, or over while the
# machine still runs, was read on a clock that is wrong: then only this length is known.
# Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html (2026-11).
NOTICE_SECONDS = 120.0
# How long a trainer may take to agree, save and end when no machine is about to vanish.
STOP_LIMIT_SECONDS = 300.0
# The terminating life-cycle hook waits 300 s; the rest of it is for reporting and flushing.
SCALE_IN_LIMIT_SECONDS = 240.0
SIGNAL_LIMIT_SECONDS = 20.0
# Ranks end together; one that goes on so long after the others waits for somebody who is not there.
STRAGGLER_SECONDS = 120.0


@dataclass(frozen=True)
class Departure:
    """Why and until when this node leaves; `train_on`: what it does until then is paid for and counts."""

    reason: str
    deadline_unix: float
    train_on: bool = False
    complete_hook: bool = False
    shut_down: bool = True


def decide(situation: Situation) -> list[Action]:
    """Return what to do now, in order; empty when there is nothing to do but wait."""
    if situation.active is not None:
        if situation.active.result is not None:
            return _settle(situation, situation.active, situation.active.result)
        return _while_training(situation, situation.active)
    return _between_generations(situation)


def departure(situation: Situation) -> Departure | None:
    """Return why this node leaves, the most urgent reason first, or None."""
    if situation.notice is not None:
        notice = situation.notice
        length_seconds = notice.reclaim_unix_seconds - situation.noticed_unix
        is_over = length_seconds <= 0
        length_seconds = NOTICE_SECONDS if is_over else min(length_seconds, NOTICE_SECONDS)
        deadline = situation.noticed_unix + length_seconds - min(NOTICE_MARGIN_SECONDS, length_seconds / 10)
        return Departure(
            f"spot interruption ({notice.action})",
            deadline,
            train_on=not is_over,
            complete_hook=situation.scale_in_since_unix is not None,
        )
    if situation.gpu_fault is not None:
        return Departure(situation.gpu_fault, situation.now_unix)
    if situation.signalled_since_unix is not None:
        deadline = situation.signalled_since_unix + SIGNAL_LIMIT_SECONDS
        return Departure("the supervisor was told to end", deadline, shut_down=False)
    if situation.scale_in_since_unix is not None:
        deadline = situation.scale_in_since_unix + SCALE_IN_LIMIT_SECONDS
        return Departure("scale-in", deadline, complete_hook=True)
    return None


def node_state(situation: Situation) -> NodeState:
    """Return what this node's heart-beat says."""
    if departure(situation) is not None:
        return "draining"
    if situation.active is not None:  # also while it settles: not to be elected before it has concluded
        return "training"
    if situation.recorded is not None or situation.judgement is not None:
        return "finished"
    return "ready"


def _while_training(situation: Situation, active: Active) -> list[Action]:
    if situation.gpu_fault is not None:
        # Not the run's failure: its peers go on from the last save, with another machine in this one's place.
        return [Kill("lost_peer", situation.gpu_fault)]
    leaving = departure(situation)
    lost = _lost_member(situation, active)
    if lost is not None:
        return [lost]
    newest = situation.newest
    if newest is not None and newest.generation > active.record.generation and leaving is None:
        return [Kill("lost_peer", f"generation {newest.generation} has begun without this node")]
    recorded = situation.recorded
    if recorded is not None and recorded.outcome != "finished" and recorded.run_digest == active.record.run_digest:
        return [Kill(recorded.outcome, f"the run was given up: {recorded.message}")]
    stop = _wanted_stop(situation, active, leaving)
    if stop is not None:
        deadline = active.stop_deadline_unix
        if deadline is None or stop.deadline_unix < deadline - 1:
            return [stop]
    if active.stop_deadline is not None:
        if situation.now > active.stop_deadline:
            return [Kill("failed", f"the trainer did not end in time after: {active.stop_reason}")]
        return []
    return [RequestSave()] if situation.rebalance_pending else []


def _wanted_stop(situation: Situation, active: Active, leaving: Departure | None) -> RequestStop | None:
    if leaving is not None:
        # A stop that was asked for already stays a stop: whoever asked waits for it.
        train_on = leaving.train_on and active.stop_deadline_unix is None
        return RequestStop(leaving.reason, leaving.deadline_unix, train_on)
    # A stop that was asked for keeps its deadline: only a more urgent one may replace it.
    deadline = active.stop_deadline_unix or situation.now_unix + STOP_LIMIT_SECONDS
    if situation.wanted.digest != active.record.run_digest:
        return RequestStop("the run document changed", deadline)
    missing = situation.wanted.nodes - len(active.record.members)
    if active.rank == 0 and missing > 0 and len(_joiners(situation, active)) >= missing:
        return RequestStop(f"the gang grows to {situation.wanted.nodes} nodes", deadline)
    return None


def _joiners(situation: Situation, active: Active) -> list[Peer]:
    return [
        peer
        for peer in ready_peers(situation, active.record.run_digest)
        if active.record.rank_of(peer.instance_id) is None
    ]


def _lost_member(situation: Situation, active: Active) -> Kill | None:
    """Return the end of a generation in which a member no longer takes part."""
    peers = {peer.instance_id: peer for peer in situation.peers}
    for member in active.record.members:
        if member.instance_id != situation.me.instance_id:
            kill = _member_problem(situation, active, member, peers.get(member.instance_id))
            if kill is not None:
                return kill
    return None


def _member_problem(situation: Situation, active: Active, member: Member, peer: Peer | None) -> Kill | None:
    name = member.instance_id
    takes_part = peer is not None and peer.generation == active.record.generation
    if peer is not None and takes_part and peer.outcome is not None:
        if peer.outcome not in ("finished", "stopped"):
            return Kill(peer.outcome, f"the part of {name} ended: {peer.outcome}")
        # It may well be silent by now: it has done its part. This node's ranks end with its ranks.
        if peer.ended_seconds <= STRAGGLER_SECONDS:
            return None
        return Kill("failed", f"{name} {peer.outcome} {peer.ended_seconds:.0f} s ago, and this node did not end")
    if _is_silent(situation, active, peer):
        return Kill("lost_peer", _silence(situation, name, peer))
    if peer is None or takes_part:
        return None
    observed_seconds = _observed_seconds(situation, active)
    if name in active.seen or observed_seconds > situation.timings.heartbeat_timeout_seconds:
        return Kill("lost_peer", f"{name} is alive, and does not take part in generation {active.record.generation}")
    return None


def _is_silent(situation: Situation, active: Active, peer: Peer | None) -> bool:
    # Whatever went before the generation began is not held against its members.
    observed_seconds = _observed_seconds(situation, active)
    if peer is None:
        return observed_seconds > situation.timings.heartbeat_timeout_seconds
    return peer.is_silent(situation.timings, observed_seconds)


def _silence(situation: Situation, name: str, peer: Peer | None) -> str:
    unanswering = peer is not None and peer.is_unanswering(situation.timings)
    return f"{name} is silent, and does not answer" if unanswering else f"{name} is silent"


def _observed_seconds(situation: Situation, active: Active) -> float:
    return situation.observed_at - active.started_at if situation.observed_at is not None else 0.0


def _settle(situation: Situation, active: Active, result: Result) -> list[Action]:
    """Conclude a generation whose trainers are gone.

    A trainer whose peer vanished fails long before the peer's silence is noticed. So a failure waits until it is known
    what became of the others: a lost peer is not a failure of the run.
    """
    if result.outcome == "failed" and situation.gpu_fault is not None:
        lost = f"{situation.gpu_fault}; the trainer said: {result.message}"
        return [Conclude(Result("lost_peer", result.step, lost))]
    if result.outcome != "failed" or departure(situation) is not None:
        return [Conclude(result)]
    peers = {peer.instance_id: peer for peer in situation.peers}
    generation, everyone_ended = active.record.generation, True
    for member in active.record.members:
        if member.instance_id == situation.me.instance_id:
            continue
        peer = peers.get(member.instance_id)
        if _is_silent(situation, active, peer):
            lost = f"{_silence(situation, member.instance_id, peer)}; the trainer said: {result.message}"
            return [Conclude(Result("lost_peer", result.step, lost))]
        if peer is not None and peer.generation != generation and member.instance_id in active.seen:
            lost = f"{member.instance_id} began anew; the trainer said: {result.message}"
            return [Conclude(Result("lost_peer", result.step, lost))]
        if peer is not None and peer.generation == generation and peer.outcome == "lost_peer":
            return [Conclude(Result("lost_peer", result.step, f"{member.instance_id} lost a peer; {result.message}"))]
        everyone_ended &= peer is not None and peer.generation == generation and peer.outcome is not None
    waited = situation.now - (active.ended_at if active.ended_at is not None else situation.now)
    if everyone_ended or waited > 2 * situation.timings.heartbeat_timeout_seconds:
        return [Conclude(result)]
    return []


def _between_generations(situation: Situation) -> list[Action]:
    leaving = departure(situation)
    judgement = situation.judgement
    if leaving is not None:
        run_goes_on = judgement is None and situation.recorded is None
        leave = Leave(leaving.reason, leaving.complete_hook, leaving.shut_down, run_goes_on)
        if judgement is None or situation.recorded is not None:
            return [leave]
        # Whoever would stand in for this node waits first, and may not be there at all.
        return [RecordRunOutcome(judgement.verdict, judgement.step, judgement.message), leave]
    if situation.recorded is not None:
        return []
    if judgement is not None:
        waited = situation.now - judgement.since
        if judgement.mine or waited > 2 * situation.timings.heartbeat_timeout_seconds:
            return [RecordRunOutcome(judgement.verdict, judgement.step, judgement.message)]
        return []
    if situation.prepared_digest != situation.wanted.digest:
        if situation.preparation == "failed":
            return [RecordRunOutcome("failed", 0, situation.preparation_message)]
        return [Prepare()] if situation.preparation == "idle" else []
    newest = situation.newest
    if newest is not None and newest.generation > situation.floor and newest.run_digest == situation.prepared_digest:
        rank = newest.rank_of(situation.me.instance_id)
        if rank is not None:
            return [Start(newest, rank)]
    return _election(situation)


def _election(situation: Situation) -> list[Action]:
    """Propose the next generation when this node is the one to do so."""
    newest = situation.newest.generation if situation.newest is not None else 0
    if situation.observed_at is None or situation.ready_since is None:
        return []
    if somebody_trains(situation.peers, newest, situation.timings):
        return []
    ready = ready_peers(situation, situation.wanted.digest)
    candidates = [(peer.joined_unix_seconds, Member(peer.instance_id, peer.address)) for peer in ready]
    candidates.append((situation.joined_unix_seconds, situation.me))
    candidates.sort(key=lambda item: (item[0], item[1].instance_id))
    members = tuple(member for _, member in candidates[: situation.wanted.nodes])
    waited = situation.now - situation.ready_since
    if len(members) < situation.wanted.nodes and (
        len(members) < situation.wanted.min_nodes or waited < _patience_seconds(situation, members)
    ):
        return []
    # Only the first in join order writes, because the first is the master and knows which of its ports are free.
    if members[0] != situation.me:
        return []
    return [Elect(max(newest, situation.floor) + 1, members)]


def _patience_seconds(situation: Situation, members: tuple[Member, ...]) -> float:
    """Return how long a gang that is not whole waits for the rest.

    Survivors of a generation wait only for each other: whoever comes later makes them grow, and until then they would
    be paid for and idle.
    """
    timings, newest = situation.timings, situation.newest
    if newest is None or newest.run_digest != situation.wanted.digest:
        return timings.gang_timeout_seconds
    here = {member.instance_id for member in members}
    survivors = {member.instance_id for member in newest.members} & (here | _staying(situation))
    if not survivors & here:
        return timings.gang_timeout_seconds
    return 0.0 if survivors <= here else min(timings.gang_timeout_seconds, timings.heartbeat_timeout_seconds)


def _staying(situation: Situation) -> set[str]:
    """Return the peers that are alive and not on their way out."""
    return {
        peer.instance_id
        for peer in situation.peers
        if not peer.is_silent(situation.timings) and peer.state not in ("draining", "finished")
    }


def ready_peers(situation: Situation, digest: str) -> list[Peer]:
    """Return the live peers that could be in the next generation of the run document of this digest."""
    return [
        peer
        for peer in situation.peers
        if peer.proven and peer.state == "ready" and peer.run_digest == digest and not peer.is_silent(situation.timings)
    ]


def somebody_trains(peers: Iterable[Peer], newest_generation: int, timings: SuperviseTimings) -> bool:
    """Return whether a peer is, for all that is known, still training or saving: nobody may be overtaken."""
    return any(
        not peer.is_silent(timings)
        and peer.outcome is None
        and (peer.state == "training" or (peer.state == "draining" and peer.generation == newest_generation > 0))
        for peer in peers
    )
