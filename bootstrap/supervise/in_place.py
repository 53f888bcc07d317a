"""Decides about changes of a generation in place: a pure function, like `decide`, which calls it first.

The members that stay elect a record that continues the running generation. Its first `survivors` members keep their
trainers; the others join. The first member that stays writes the record, and S3 decides between two writers. Whatever
does not end in a new generation in time is left to `decide`, which ends the generation as without this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bootstrap.supervise.joins import waits_for_more
from bootstrap.supervise.membership.peers import Peer
from bootstrap.supervise.membership.records import GenerationRecord, Member
from bootstrap.supervise.situation import (
    Action,
    Active,
    AwaitChange,
    Elect,
    Fence,
    HandOver,
    Hold,
    Kill,
    Situation,
)

CHANGE_LIMIT_SECONDS = 10.0
"""Limit for a change after a loss, from its first sign. The trainers have the same limit."""
PLANNED_LIMIT_SECONDS = 300.0
"""Limit for a planned change: the time in which a joining node builds its model, and a save in flight ends."""
FENCED_LIMIT_SECONDS = 300.0
"""Time for which fenced trainers wait for a generation that they can join."""
BLIND_SECONDS = 5.0
"""Time without an observation of the control records after which the trainers are asked to wait. It is shorter than the
time for which they wait on their own (10 s), and longer than a slow response of S3."""
_LOST = ("lost_peer", "killed")


@dataclass(frozen=True)
class Standing:
    """The members of the running generation.

    Attributes:
        staying: members whose trainers hold the state, in rank order.
        lost: members whose trainers have ended.
        leaving: members that train, but are about to leave.
    """

    staying: tuple[Member, ...]
    lost: tuple[Member, ...]
    leaving: tuple[Member, ...]


def change(situation: Situation, active: Active, joiners: list[Peer], *, leaves: bool) -> list[Action] | None:
    """Return the actions for a change in place, or None if there is none: `decide` then acts as usual.

    Args:
        situation: the situation.
        active: the running generation.
        joiners: nodes that are ready and are not members.
        leaves: True if this node leaves, with time for the others to change.
    """
    if not active.is_formed or active.stop_deadline_unix is not None:
        return None
    if situation.wanted.digest != active.record.run_digest or active.record.generation <= situation.restart_generation:
        return None
    newest = situation.newest
    if newest is not None and newest.generation > active.record.generation:
        if not _continues(newest, active):
            return None
        if active.fenced_by is not None:
            return _rejoin(situation, active, active.fenced_by, newest)
        step = _follow(situation, active, newest)
        if step is not None:
            return step
    standing = stand(situation, active)
    if standing is None:
        return None
    return _propose(situation, active, standing, joiners, leaves=leaves)


def stand(situation: Situation, active: Active) -> Standing | None:
    """Return where each member stands, or None if a member has ended in a way that ends the generation."""
    peers = {peer.instance_id: peer for peer in situation.peers}
    staying: list[Member] = []
    lost: list[Member] = []
    leaving: list[Member] = []
    for member in active.record.members:
        if member.instance_id == situation.me.instance_id:
            (leaving if situation.leaves_in_place else staying).append(member)
            continue
        peer = peers.get(member.instance_id)
        if peer is not None and peer.generation == active.record.generation and peer.outcome not in (None, *_LOST):
            return None
        if _is_lost(situation, active, member, peers):
            lost.append(member)
        elif peer is not None and peer.state == "draining":
            leaving.append(member)
        else:
            staying.append(member)
    return Standing(tuple(staying), tuple(lost), tuple(leaving))


def _continues(newest: GenerationRecord, active: Active) -> bool:
    return newest.survivors > 0 and newest.run_digest == active.record.run_digest


def awaits(active: Active, peer: Peer) -> bool:
    """Return True if this node joins a running gang, whose member still trains in the generation before."""
    joins = not active.is_formed and active.rank >= active.record.survivors > 0
    trains = peer.state in ("training", "draining") and peer.outcome is None
    return joins and trains and peer.generation < active.record.generation


def hold(situation: Situation, active: Active) -> Hold | None:
    """Return the action if this node has become unable to read the control records, or able to read them again."""
    observed_at = active.started_at if situation.observed_at is None else situation.observed_at
    is_blind = situation.now - observed_at > BLIND_SECONDS
    return Hold(is_blind) if active.is_formed and is_blind != active.is_blind else None


def _rejoin(situation: Situation, active: Active, fence: GenerationRecord, newest: GenerationRecord) -> list[Action]:
    """Return the actions of a node that others have lost, until its trainers have joined a generation."""
    rank = newest.rank_of(situation.me.instance_id)
    if rank is not None and rank >= newest.survivors:
        if active.pending is None or active.pending.generation < newest.generation:
            return [HandOver(newest, rank)]
    elif newest.generation > fence.generation:
        return [Fence(newest)]
    since = active.fenced_at if active.pending is None else active.handed_at
    if situation.now - since > FENCED_LIMIT_SECONDS:
        return [Kill("lost_peer", f"joined no generation within {FENCED_LIMIT_SECONDS:.0f} s")]
    return []


def _follow(situation: Situation, active: Active, newest: GenerationRecord) -> list[Action] | None:
    """Hand the newest record to the trainers; return None if another change is necessary before they have made it."""
    rank = newest.rank_of(situation.me.instance_id)
    if rank is None and not newest.planned:
        return [Fence(newest)]
    if rank is not None and rank >= newest.survivors:
        return [Kill("lost_peer", f"generation {newest.generation} continues without this node")]
    if active.pending is None or active.pending.generation < newest.generation:
        return [HandOver(newest, rank)]
    limit_seconds = PLANNED_LIMIT_SECONDS if newest.planned else CHANGE_LIMIT_SECONDS + 2.0
    if situation.now - active.handed_at > limit_seconds and not newest.planned:
        return [Kill("lost_peer", f"generation {newest.generation} was not formed within {limit_seconds:.0f} s")]
    peers = {peer.instance_id: peer for peer in situation.peers}
    is_late = situation.now - active.handed_at > limit_seconds
    others = [member for member in newest.members if member.instance_id != situation.me.instance_id]
    if is_late or any(_is_lost(situation, active, member, peers) for member in others):
        return None
    return []


def _propose(
    situation: Situation, active: Active, standing: Standing, joiners: list[Peer], *, leaves: bool
) -> list[Action] | None:
    staying, pending = standing.staying, active.pending
    is_stale = pending is not None  # `_follow` has asked for another record
    missing = situation.wanted.nodes - len(staying)
    joining = () if standing.lost or is_stale else tuple(joiners[: max(0, missing)])
    since = active.changing_since
    if not (standing.lost or standing.leaving or joining or is_stale):
        return None if since is None else [AwaitChange(is_needed=False)]
    if since is None:
        return [AwaitChange()]
    members = (*staying, *(Member(peer.instance_id, peer.address) for peer in joining))
    if not staying or len(members) < situation.wanted.min_nodes or situation.now - since > CHANGE_LIMIT_SECONDS:
        return None
    if staying[0] != situation.me or leaves:
        return []
    if joining and not standing.leaving:
        loading = min(_loading(situation, active), missing - len(joining))
        if waits_for_more(len(joining), loading, len(staying), situation.now - since):
            return []
    planned = not standing.lost
    last = max(active.record.generation, situation.last_generation, situation.floor)
    last = max(last, 0 if situation.newest is None else situation.newest.generation)
    return [Elect(last + 1, members, survivors=len(staying), planned=planned)]


def _loading(situation: Situation, active: Active) -> int:
    """Return the number of nodes that are loading the run document's code and dataset."""
    return sum(
        peer.is_ready(situation.timings)
        and peer.run_digest != active.record.run_digest
        and active.record.rank_of(peer.instance_id) is None
        for peer in situation.peers
    )


def _is_lost(situation: Situation, active: Active, member: Member, peers: Mapping[str, Peer]) -> bool:
    """Return True if a member's trainers have ended: it is silent, has lost its part, or has started another one."""
    peer, name = peers.get(member.instance_id), member.instance_id
    observed_at = situation.observed_at
    observed_seconds = 0.0 if observed_at is None else observed_at - active.started_at
    if peer is None:
        return observed_seconds > situation.timings.heartbeat_timeout_seconds
    if peer.is_silent(situation.timings, observed_seconds):
        return True
    if peer.generation == active.record.generation:
        return peer.outcome in _LOST
    if peer.generation > active.record.generation:
        # It may have made a change that this node's trainers are still making.
        pending = active.pending
        return peer.outcome in _LOST or pending is None or peer.generation != pending.generation
    is_member = active.record.rank_of(name) is not None
    return is_member and (name in active.seen or observed_seconds > situation.timings.heartbeat_timeout_seconds)
