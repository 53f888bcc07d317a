"""Where the next instance goes: market, zone, pool. Pure functions of a group's state.

Every pool here has the same price and depth, so all allocation strategies take the overrides in their order, except
that "lowest-price" spreads over SpotInstancePools pools.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from localcloud.compute.autoscaling.model import Distribution, Group, Member, Override, Subnet
from localcloud.compute.capacity import Market


@dataclass(frozen=True)
class ZoneAttempt:
    """One try to launch in one subnet: the pools in order; `market` None leaves it to the launch template."""

    subnet: Subnet
    market: Market | None
    overrides: Sequence[Override]


def on_demand_target(distribution: Distribution, desired: int) -> int:
    """Return how much of the desired capacity is on-demand, rounded up as AWS rounds."""
    base = min(distribution.on_demand_base, desired)
    return base + math.ceil((desired - base) * distribution.on_demand_percentage / 100)


def attempts(group: Group, desired: int) -> Iterator[ZoneAttempt]:
    """Yield the tries for one more instance, the best first.

    Zones with the fewest instances come first; a group that is "balanced-only" tries no other zone.
    """
    counted = [member for member in group.members.values() if member.counts]
    distribution = group.plan.distribution
    market: Market | None = None
    overrides: Sequence[Override] = [Override(None)]
    if distribution is not None:
        overrides = group.plan.overrides or overrides
        on_demand = sum(member.weight for member in counted if member.market == "on-demand")
        market = "on-demand" if on_demand < on_demand_target(distribution, desired) else "spot"
        if market == "spot" and distribution.spot_allocation == "lowest-price":
            overrides = _spread(overrides, counted, distribution.spot_pools)
    in_zone = Counter(member.zone for member in counted)
    in_subnet = Counter(member.subnet_id for member in counted)
    order = sorted(group.subnets, key=lambda one: (in_zone[one.zone], in_subnet[one.subnet_id]))
    for subnet in order:
        if group.balanced_only and subnet.zone != order[0].zone:
            return
        yield ZoneAttempt(subnet, market, overrides)


def reservation_tries(group: Group, market: Market | None) -> list[dict[str, Any]]:
    """Return the CapacityReservationSpecification of each try in one pool, the best first; {} leaves it out.

    Source: https://docs.aws.amazon.com/autoscaling/ec2/userguide/use-ec2-capacity-reservations.html (2026-11).
    """
    preference = group.reservations.get("CapacityReservationPreference", "default")
    if market == "spot" or preference == "default":
        return [{}]
    if preference == "none":
        return [{"CapacityReservationPreference": "none"}]
    target = group.reservations.get("CapacityReservationTarget") or {}
    tries: list[dict[str, Any]] = [
        {"CapacityReservationTarget": {"CapacityReservationId": one}}
        for one in target.get("CapacityReservationIds", [])
    ] + [
        {"CapacityReservationTarget": {"CapacityReservationResourceGroupArn": one}}
        for one in target.get("CapacityReservationResourceGroupArns", [])
    ]
    if preference == "capacity-reservations-only":
        only = {"CapacityReservationPreference": preference}
        return [only | one for one in tries] or [only]
    # Without a target, reservations that are open are used by an ordinary launch.
    return [*tries, {}]


def _spread(overrides: Sequence[Override], members: Sequence[Member], pools: int) -> list[Override]:
    used = Counter(member.instance_type for member in members if member.market == "spot")
    cheapest = sorted(overrides[:pools], key=lambda one: used[one.instance_type or ""])
    return [*cheapest, *overrides[pools:]]


def victims(group: Group, excess: int, now: float) -> list[Member]:
    """Return whom a scale-in of `excess` capacity ends, after the group's termination policies.

    Source: docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-termination-policies.html, 2026-11.
    """
    chosen: list[Member] = []
    left = [
        member
        for member in group.members.values()
        if not member.is_ending and member.state != "Standby" and not member.is_protected
    ]
    while excess > 0 and left:
        candidates = [member for member in left if member.weight <= excess]
        if not candidates:
            break
        # Instances that are no good any more, or not yet, cost nothing to lose.
        unfit = [member for member in candidates if member.health != "Healthy" or member.state.startswith("Pending")]
        victim = unfit[0] if unfit else _by_policy(group, _in_fullest_zone(candidates), now)
        chosen.append(victim)
        left.remove(victim)
        excess -= victim.weight
    return chosen


def _in_fullest_zone(members: Sequence[Member]) -> list[Member]:
    in_zone = Counter(member.zone for member in members)
    most = max(in_zone.values())
    return [member for member in members if in_zone[member.zone] == most]


def _by_policy(group: Group, members: Sequence[Member], now: float) -> Member:
    left = list(members)
    for policy in group.termination_policies:
        if len(left) == 1:
            break
        left = _narrow(group, left, policy, now)
    return min(left, key=lambda member: (member.joined, member.instance_id))


def _narrow(group: Group, members: list[Member], policy: str, now: float) -> list[Member]:
    if policy == "NewestInstance":
        return [max(members, key=lambda member: member.joined)]
    if policy == "OldestInstance":
        return [min(members, key=lambda member: member.joined)]
    if policy == "ClosestToNextInstanceHour":
        return [max(members, key=lambda member: (now - member.joined) % 3600)]
    if policy in ("AllocationStrategy", "Default") and group.plan.distribution is not None:
        target = on_demand_target(group.plan.distribution, group.desired)
        on_demand = sum(one.weight for one in group.members.values() if one.market == "on-demand" and one.counts)
        surplus: Market = "on-demand" if on_demand > target else "spot"
        members = [member for member in members if member.market == surplus] or members
    if policy in ("OldestLaunchTemplate", "Default"):
        others = [member for member in members if member.template.template_id != group.plan.template.template_id]
        members = others or members
        oldest = min(int(member.template.version) for member in members)
        members = [member for member in members if int(member.template.version) == oldest]
    if policy == "Default":
        members = [max(members, key=lambda member: (now - member.joined) % 3600)]
    return members
