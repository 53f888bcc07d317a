"""The supervisor's policy: a pure function from a situation to actions.

The function runs several times per second and keeps no state, so it repeats an action until the situation shows its
effect. docs/architecture.md, section 4, lists the rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bootstrap.documents.supervisor_limits import SuperviseTimings
from bootstrap.imds import InterruptionNotice
from bootstrap.supervise.in_place import awaits, change, hold
from bootstrap.supervise.membership.peers import Peer
from bootstrap.supervise.membership.records import Member, NodeState
from bootstrap.supervise.situation import (
    Action,
    Active,
    Conclude,
    Elect,
    Kill,
    Leave,
    LoadRun,
    RecordRunOutcome,
    RequestSave,
    RequestStop,
    Result,
    Situation,
    Start,
)

# Time reserved between the final save's deadline and the interruption for reports, flushing and shutdown.
# If the notice period is shorter than AWS's two minutes, at most a tenth of it is reserved.
NOTICE_MARGIN_SECONDS = 10.0
# AWS's notice period. If a notice's time is further away than this, or has passed while the machine is still running,
# the clock is wrong and only this period is reliable. Source:
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html (2026-11).
NOTICE_SECONDS = 120.0
# Time after the announced interruption within which EC2 reclaims the instance. Notices are given on a best-effort
# basis, so an instance that remains shuts down. Source: as for NOTICE_SECONDS.
RECLAIM_LIMIT_SECONDS = 180.0
# Timeout for the trainers to agree, save and exit if no instance is about to terminate.
STOP_LIMIT_SECONDS = 300.0
# The terminating lifecycle hook waits 300 s. The difference is for reports and flushing.
SCALE_IN_LIMIT_SECONDS = 240.0
SIGNAL_LIMIT_SECONDS = 20.0
# Ranks exit together. A rank that runs this long after the others is waiting for a peer that has exited.
STRAGGLER_SECONDS = 120.0


@dataclass(frozen=True)
class Departure:
    """The reason and deadline for leaving. With `train_on`, the trainers use the remaining time for training.

    `reclaim_unix` is the time until which the node waits for EC2 to reclaim the instance. None: it shuts down itself.
    """

    reason: str
    deadline_unix: float
    train_on: bool = False
    complete_hook: bool = False
    shut_down: bool = True
    reclaim_unix: float | None = None


def decide(situation: Situation) -> list[Action]:
    """Return the actions to take now, in order. An empty list means to wait."""
    if situation.active is not None:
        if situation.active.result is not None:
            return _settle(situation, situation.active, situation.active.result)
        return _while_training(situation, situation.active)
    return _between_generations(situation)


def departure(situation: Situation) -> Departure | None:
    """Return the most urgent reason for this node to leave, or None."""
    if situation.notice is not None:
        notice = situation.notice
        length_seconds = notice.reclaim_unix_seconds - situation.noticed_unix
        is_over = length_seconds <= 0
        is_terminating = situation.scale_in_since_unix is not None
        reclaim = reclaim_unix(notice, situation.noticed_unix, situation.free_until_unix)
        length_seconds = NOTICE_SECONDS if is_over else min(length_seconds, NOTICE_SECONDS)
        deadline = situation.noticed_unix + length_seconds - min(NOTICE_MARGIN_SECONDS, length_seconds / 10)
        return Departure(
            f"spot interruption ({notice.action})",
            deadline,
            train_on=not is_over,
            complete_hook=is_terminating,
            reclaim_unix=None if is_terminating else reclaim,
        )
    if situation.gpu_fault is not None:
        is_terminating = situation.scale_in_since_unix is not None
        return Departure(situation.gpu_fault, situation.now_unix, complete_hook=is_terminating)
    if situation.signalled_since_unix is not None:
        limit = SIGNAL_LIMIT_SECONDS if situation.signal_seconds is None else situation.signal_seconds
        deadline = situation.signalled_since_unix + limit
        return Departure("the supervisor received a signal", deadline, shut_down=False)
    if situation.scale_in_since_unix is not None:
        deadline = situation.scale_in_since_unix + SCALE_IN_LIMIT_SECONDS
        return Departure("scale-in", deadline, complete_hook=True)
    if situation.stopped_since_unix is not None:
        return Departure("an operator stopped the run", situation.stopped_since_unix + STOP_LIMIT_SECONDS)
    return None


def reclaim_unix(notice: InterruptionNotice, noticed_unix: float, free_until_unix: float | None) -> float | None:
    """Return the time until which the node waits for EC2 to reclaim the instance, or None if waiting saves nothing.

    AWS does not bill an instance that EC2 interrupts within its first hour, but does bill one that shuts itself down.
    """
    if free_until_unix is None or notice.reclaim_unix_seconds >= free_until_unix:
        return None
    length_seconds = min(max(0.0, notice.reclaim_unix_seconds - noticed_unix), NOTICE_SECONDS)
    return noticed_unix + length_seconds + RECLAIM_LIMIT_SECONDS


def node_state(situation: Situation) -> NodeState:
    """Return the state for this node's heartbeat."""
    if departure(situation) is not None:
        return "draining"
    active = situation.active
    if active is not None and active.fenced_by is not None and active.pending is None and active.result is None:
        return "ready"
    if active is not None:  # until it is concluded, so that this node is not elected earlier
        return "training"
    if situation.recorded is not None or situation.judgement is not None:
        return "finished"
    return "ready"


def _while_training(situation: Situation, active: Active) -> list[Action]:
    if situation.gpu_fault is not None:
        # This is not a run failure: the peers resume from the last save with a replacement for this instance.
        return [Kill("lost_peer", situation.gpu_fault)]
    leaving = departure(situation)
    if leaving is not None and active.fenced_by is not None:
        return [Kill("lost_peer", leaving.reason)]  # its trainers have nothing to save
    waiting = hold(situation, active)
    if waiting is not None:
        return [waiting]
    in_place = _change_in_place(situation, active, leaving)
    if in_place is not None:
        return in_place
    lost = _lost_member(situation, active)
    if lost is not None:
        return [lost]
    newest = situation.newest
    if newest is not None and newest.generation > active.record.generation and leaving is None:
        return [Kill("lost_peer", f"generation {newest.generation} started without this node")]
    recorded = situation.recorded
    if recorded is not None and recorded.outcome != "finished" and recorded.run_digest == active.record.run_digest:
        return [Kill(recorded.outcome, f"the run has failed: {recorded.message}")]
    stop = _wanted_stop(situation, active, leaving)
    if stop is not None:
        deadline = active.stop_deadline_unix
        if deadline is None or stop.deadline_unix < deadline - 1:
            return [stop]
    if active.stop_deadline is not None:
        if situation.now > active.stop_deadline:
            return [Kill("failed", f"the trainer did not exit in time after: {active.stop_reason}")]
        return []
    return [RequestSave()] if situation.rebalance_pending else []


def _change_in_place(situation: Situation, active: Active, leaving: Departure | None) -> list[Action] | None:
    """Return the actions for this node or the others to continue from memory, or None to end the generation."""
    recorded = situation.recorded
    if recorded is not None and recorded.run_digest == active.record.run_digest:
        return None
    # After a signal, an operator's stop or a GPU fault, there is no time or no reason to wait for the others.
    leaves = (
        leaving is not None
        and situation.gpu_fault is None
        and (situation.notice is not None or situation.scale_in_since_unix is not None)
    )
    if leaving is not None and (not leaves or situation.signalled_since_unix or situation.stopped_since_unix):
        return None
    situation = replace(situation, leaves_in_place=leaves)
    actions = change(situation, active, _joiners(situation, active), leaves=leaves)
    if actions == [] and situation.rebalance_pending:
        return [RequestSave()]
    return actions


def _wanted_stop(situation: Situation, active: Active, leaving: Departure | None) -> RequestStop | None:
    if leaving is not None:
        # Do not downgrade a pending stop, because its requester is waiting for it.
        train_on = leaving.train_on and active.stop_deadline_unix is None
        return RequestStop(leaving.reason, leaving.deadline_unix, train_on)
    # A pending stop keeps its deadline unless the new deadline is more urgent.
    deadline = active.stop_deadline_unix or situation.now_unix + STOP_LIMIT_SECONDS
    if situation.wanted.digest != active.record.run_digest:
        return RequestStop("the run document changed", deadline)
    if active.record.generation <= situation.restart_generation:
        return RequestStop("an operator requested a restart", deadline)
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
    """Return the action for a generation with a lost member, or None."""
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
            outcome = "failed" if peer.outcome == "killed" else peer.outcome
            return Kill(outcome, f"{name} ended its part: {peer.outcome}")
        # The peer may already be silent because its part has ended. The ranks of all nodes end together.
        if peer.ended_seconds <= STRAGGLER_SECONDS:
            return None
        return Kill("failed", f"{name} {peer.outcome} {peer.ended_seconds:.0f} s ago, but this node is still running")
    if _is_silent(situation, active, peer):
        return Kill("lost_peer", _silence(situation, name, peer))
    if peer is None or takes_part or awaits(active, peer):
        return None
    observed_seconds = _observed_seconds(situation, active)
    if name in active.seen or observed_seconds > situation.timings.heartbeat_timeout_seconds:
        return Kill("lost_peer", f"{name} is alive but is not taking part in generation {active.record.generation}")
    return None


def _is_silent(situation: Situation, active: Active, peer: Peer | None) -> bool:
    # Ignore silence before the start of the generation.
    observed_seconds = _observed_seconds(situation, active)
    if peer is None:
        return observed_seconds > situation.timings.heartbeat_timeout_seconds
    return peer.is_silent(situation.timings, observed_seconds)


def _silence(situation: Situation, name: str, peer: Peer | None) -> str:
    unanswering = peer is not None and peer.is_unanswering(situation.timings)
    return f"{name} does not send heartbeats or respond to pings" if unanswering else f"{name} does not send heartbeats"


def _observed_seconds(situation: Situation, active: Active) -> float:
    return situation.observed_at - active.started_at if situation.observed_at is not None else 0.0


def _settle(situation: Situation, active: Active, result: Result) -> list[Action]:
    """Conclude a generation whose trainers have exited.

    If a peer is lost, this node's trainer fails long before the supervisor notices the peer's silence. Losing a peer is
    not a run failure, so conclude a failure only after the other members' states are known.
    """
    if result.outcome == "failed" and situation.gpu_fault is not None:
        lost = f"{situation.gpu_fault}; trainer: {result.message}"
        return [Conclude(Result("lost_peer", result.step, lost))]
    newest = situation.newest
    if result.outcome == "killed":
        if newest is not None and newest.generation > active.record.generation and newest.survivors > 0:
            lost = f"generation {newest.generation} continues without this node; trainer: {result.message}"
            return [Conclude(Result("lost_peer", result.step, lost))]
        result = Result("failed", result.step, result.message)
    if result.outcome != "failed" or departure(situation) is not None:
        return [Conclude(result)]
    peers = {peer.instance_id: peer for peer in situation.peers}
    generation, all_ended = active.record.generation, True
    for member in active.record.members:
        if member.instance_id == situation.me.instance_id:
            continue
        peer = peers.get(member.instance_id)
        if _is_silent(situation, active, peer):
            lost = f"{_silence(situation, member.instance_id, peer)}; trainer: {result.message}"
            return [Conclude(Result("lost_peer", result.step, lost))]
        if peer is not None and peer.generation != generation and member.instance_id in active.seen:
            lost = f"{member.instance_id} restarted; trainer: {result.message}"
            return [Conclude(Result("lost_peer", result.step, lost))]
        if peer is not None and peer.generation == generation and peer.outcome == "lost_peer":
            return [Conclude(Result("lost_peer", result.step, f"{member.instance_id} lost a peer; {result.message}"))]
        all_ended &= peer is not None and peer.generation == generation and peer.outcome is not None
    waited = situation.now - (active.ended_at if active.ended_at is not None else situation.now)
    if all_ended or waited > situation.timings.verdict_seconds:
        return [Conclude(result)]
    return []


def _between_generations(situation: Situation) -> list[Action]:
    leaving = departure(situation)
    judgement = situation.judgement
    if leaving is not None:
        run_continues = judgement is None and situation.recorded is None
        leave = Leave(
            leaving.reason, leaving.complete_hook, leaving.shut_down, run_continues, reclaim_unix=leaving.reclaim_unix
        )
        if judgement is None or situation.recorded is not None:
            return [leave]
        # Other nodes would record the outcome late or never.
        return [RecordRunOutcome(judgement.verdict, judgement.step, judgement.message), leave]
    if situation.recorded is not None:
        return [Leave("the run has ended", False, False)] if situation.ends_with_run else []
    if judgement is not None:
        waited = situation.now - judgement.since
        if judgement.mine or waited > situation.timings.verdict_seconds:
            return [RecordRunOutcome(judgement.verdict, judgement.step, judgement.message)]
        return []
    if situation.loaded_digest != situation.wanted.digest:
        if situation.loading == "failed":
            return [RecordRunOutcome("failed", 0, situation.loading_message)]
        return [LoadRun()] if situation.loading == "idle" else []
    newest = situation.newest
    if newest is not None and newest.generation > situation.floor and newest.run_digest == situation.loaded_digest:
        rank = newest.rank_of(situation.me.instance_id)
        # A survivor whose trainers have exited cannot take part. The others detect this and elect a new generation.
        if rank is not None and (newest.survivors == 0 or rank >= newest.survivors):
            return [Start(newest, rank)]
    return _election(situation)


def _election(situation: Situation) -> list[Action]:
    """Propose the next generation if this node is the first in join order."""
    newest = situation.newest.generation if situation.newest is not None else 0
    if situation.observed_at is None or situation.ready_since is None:
        return []
    if is_anyone_training(situation.peers, newest, situation.timings):
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
    # Only the first node in join order writes the record, because it becomes the master and has selected a free port.
    if members[0] != situation.me:
        return []
    return [Elect(max(newest, situation.floor, situation.last_generation) + 1, members)]


def _patience_seconds(situation: Situation, members: tuple[Member, ...]) -> float:
    """Return the time that an incomplete gang waits for more nodes.

    Survivors of a generation wait only for each other, because idle nodes cost money. The gang grows when others join.
    """
    timings, newest = situation.timings, situation.newest
    if newest is None or newest.run_digest != situation.wanted.digest:
        return timings.gang_timeout_seconds
    present = {member.instance_id for member in members}
    survivors = {member.instance_id for member in newest.members} & (present | _staying(situation))
    if not survivors & present:
        return timings.gang_timeout_seconds
    return 0.0 if survivors <= present else min(timings.gang_timeout_seconds, timings.heartbeat_timeout_seconds)


def _staying(situation: Situation) -> set[str]:
    """Return the peers that are alive and not leaving."""
    return {
        peer.instance_id
        for peer in situation.peers
        if not peer.is_silent(situation.timings) and peer.state not in ("draining", "finished")
    }


def ready_peers(situation: Situation, digest: str) -> list[Peer]:
    """Return the live peers that can take part in the next generation for a run document."""
    return [peer for peer in situation.peers if peer.is_ready(situation.timings) and peer.run_digest == digest]


def is_anyone_training(peers: Iterable[Peer], newest_generation: int, timings: SuperviseTimings) -> bool:
    """Return True if a live peer may still be training or saving. The next generation must wait for this peer."""
    return any(
        not peer.is_silent(timings)
        and peer.outcome is None
        and (peer.state == "training" or (peer.state == "draining" and peer.generation == newest_generation > 0))
        for peer in peers
    )
