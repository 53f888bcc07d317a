"""Pure functions that order a fleet's pools and select the instances to terminate if it has excess capacity.

They depend only on the fleet, the prices and the pools' capacity. Source:
docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-fleet-allocation-strategy.html, 2026-11.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localcloud.compute.capacity import Market
from localcloud.compute.fleets.model import Fleet, FleetMember, Pool
from localcloud.compute.fleets.pools import launched_from

Price = Callable[[Pool, Market], float]
"""Returns the price of an instance in the pool, in USD per hour."""
Depth = Callable[[Pool, Market], float]
"""Returns the number of instances left in the pool, or infinity without a limit."""


def order(fleet: Fleet, market: Market, price: Price, depth: Depth) -> list[Pool]:
    """Return the pools in the order in which the allocation strategy tries them for the next instance."""
    plan = fleet.plan
    pools = list(plan.pools)

    def unit_price(pool: Pool) -> float:
        return price(pool, market) / pool.weight

    if market == "on-demand":
        return sorted(pools, key=unit_price if plan.on_demand_strategy == "lowest-price" else _priority)
    strategy = plan.spot_strategy
    if strategy == "capacity-optimized":
        return sorted(pools, key=lambda pool: -depth(pool, market))
    if strategy == "capacity-optimized-prioritized":
        return sorted(pools, key=lambda pool: (-depth(pool, market), pool.priority))
    if strategy == "price-capacity-optimized":
        return sorted(pools, key=lambda pool: (depth(pool, market) < 1, unit_price(pool)))
    by_price = sorted(pools, key=unit_price)
    if strategy == "diversified":
        return sorted(by_price, key=lambda pool: _used(fleet, pool))
    cheapest = sorted(by_price[: plan.spot_pools], key=lambda pool: _used(fleet, pool))
    return [*cheapest, *by_price[plan.spot_pools :]]


def excess(fleet: Fleet, market: Market) -> list[FleetMember]:
    """Return the instances to terminate to reduce the market to its target, as closely as their weights allow."""
    surplus = fleet.fulfilled(market) - fleet.plan.targets.of(market)
    chosen = []
    # Terminate unhealthy instances first, then the most expensive per unit, then the newest.
    members = fleet.counted(market)[::-1]
    for member in sorted(members, key=lambda one: (one.is_healthy, -one.usd_per_hour / one.pool.weight)):
        if member.pool.weight <= surplus:
            chosen.append(member)
            surplus -= member.pool.weight
    return chosen


def within_total_price(fleet: Fleet, market: Market, pool: Pool, price: Price) -> bool:
    """Return True if one more instance from the pool keeps the market within the fleet's maximum total price."""
    limit = fleet.plan.max_total_price[market]
    spent = sum(one.usd_per_hour for one in fleet.live(market))
    return limit is None or spent + price(pool, market) <= limit


def _priority(pool: Pool) -> float:
    return pool.priority


def _used(fleet: Fleet, pool: Pool) -> int:
    members: Sequence[FleetMember] = fleet.counted("spot")
    return sum(1 for member in members if launched_from(member, pool))
