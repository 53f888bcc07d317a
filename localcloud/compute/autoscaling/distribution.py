"""Pure functions that place the next instance (market, zone, pool) and select instances for scale-in.

Every allocation strategy tries the overrides in order, except "lowest-price", which spreads instances across
SpotInstancePools pools.
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
    """A launch attempt in one subnet, with the overrides to try in order.

    If `market` is None, the launch template determines the market.
    """

    subnet: Subnet
    market: Market | None
    overrides: Sequence[Override]


def on_demand_target(distribution: Distribution, desired: int) -> int:
    """Return the on-demand share of the desired capacity, rounded up as on AWS."""
    base = min(distribution.on_demand_base, desired)
    return base + math.ceil((desired - base) * distribution.on_demand_percentage / 100)


def attempts(group: Group, desired: int) -> Iterator[ZoneAttempt]:
    """Yield the attempts to launch one more instance, best first.

    The zone with the fewest instances comes first.
    """
    counted = [member for member in group.members.values() if member.counts]
    distribution = group.plan.distribution
    market: Market | None = None
    overrides: Sequence[Override] = [Override(None)]
    if distribution is not None:
        overrides = group.plan.overrides or overrides
        on_demand = sum(member.market == "on-demand" for member in counted)
        market = "on-demand" if on_demand < on_demand_target(distribution, desired) else "spot"
        if market == "spot" and distribution.spot_allocation == "lowest-price":
            overrides = _spread(overrides, counted, distribution.spot_pools)
    in_zone = Counter(member.zone for member in counted)
    in_subnet = Counter(member.subnet_id for member in counted)
    for subnet in sorted(group.subnets, key=lambda one: (in_zone[one.zone], in_subnet[one.subnet_id])):
        yield ZoneAttempt(subnet, market, overrides)


def reservation_attempts(group: Group, market: Market | None) -> list[dict[str, Any]]:
    """Return the CapacityReservationSpecifications to try in a pool, best first.

    An empty dictionary represents a launch without a specification.

    Source: https://docs.aws.amazon.com/autoscaling/ec2/userguide/use-ec2-capacity-reservations.html (2026-11).
    """
    preference = group.reservations.get("CapacityReservationPreference", "default")
    if market == "spot" or preference == "default":
        return [{}]
    if preference == "none":
        return [{"CapacityReservationPreference": "none"}]
    target = group.reservations.get("CapacityReservationTarget") or {}
    targets: list[dict[str, Any]] = [
        {"CapacityReservationTarget": {"CapacityReservationId": one}}
        for one in target.get("CapacityReservationIds", [])
    ] + [
        {"CapacityReservationTarget": {"CapacityReservationResourceGroupArn": one}}
        for one in target.get("CapacityReservationResourceGroupArns", [])
    ]
    if preference == "capacity-reservations-only":
        only = {"CapacityReservationPreference": preference}
        return [only | one for one in targets] or [only]
    # Launches without a target use open reservations by default.
    return [*targets, {}]


def _spread(overrides: Sequence[Override], members: Sequence[Member], pools: int) -> list[Override]:
    used = Counter(member.instance_type for member in members if member.market == "spot")
    cheapest = sorted(overrides[:pools], key=lambda one: used[one.instance_type or ""])
    return [*cheapest, *overrides[pools:]]


def victims(group: Group, excess: int, now: float) -> list[Member]:
    """Return the instances that the default termination policy selects to remove `excess` capacity.

    Source: docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-termination-policies.html, 2026-11.
    """
    chosen: list[Member] = []
    left = [member for member in group.members.values() if not member.is_ending]
    while len(chosen) < excess and left:
        # Terminate unhealthy and pending instances first.
        unfit = [member for member in left if member.health != "Healthy" or member.state.startswith("Pending")]
        victim = unfit[0] if unfit else _first_to_leave(group, _in_fullest_zone(left), now)
        chosen.append(victim)
        left.remove(victim)
    return chosen


def _in_fullest_zone(members: Sequence[Member]) -> list[Member]:
    in_zone = Counter(member.zone for member in members)
    maximum = max(in_zone.values())
    return [member for member in members if in_zone[member.zone] == maximum]


def _first_to_leave(group: Group, members: Sequence[Member], now: float) -> Member:
    """Return the instance to terminate first.

    The instance is in the surplus market, has the oldest template there, and is closest to its next full hour.
    """
    left = list(members)
    if group.plan.distribution is not None:
        target = on_demand_target(group.plan.distribution, group.desired)
        on_demand = sum(one.market == "on-demand" and one.counts for one in group.members.values())
        surplus: Market = "on-demand" if on_demand > target else "spot"
        left = [member for member in left if member.market == surplus] or left
    left = [member for member in left if member.template.template_id != group.plan.template.template_id] or left
    oldest = min(int(member.template.version) for member in left)
    left = [member for member in left if int(member.template.version) == oldest]
    return max(left, key=lambda member: (now - member.joined) % 3600)
