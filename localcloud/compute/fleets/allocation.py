"""Pure functions that order a fleet's pools and select the instances to terminate if it has excess capacity.

They depend only on the fleet, the prices and the pools' capacity. Source:
docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-fleet-allocation-strategy.html, 2026-11.
"""

from __future__ import annotations

from collections.abc import Callable

from localcloud.compute.capacity import Market
from localcloud.compute.fleets.model import Fleet, FleetMember, Pool

Price = Callable[[Pool, Market], float]
"""Returns the price of an instance in the pool, in USD per hour."""
Depth = Callable[[Pool, Market], float]
"""Returns the number of instances left in the pool, or infinity without a limit."""


def order(fleet: Fleet, market: Market, price: Price, depth: Depth) -> list[Pool]:
    """Return the pools in the order in which the allocation strategy tries them for the next instance."""
    pools = fleet.plan.pools
    if market == "on-demand" and fleet.plan.on_demand_strategy == "prioritized":
        return sorted(pools, key=lambda pool: pool.priority)
    if market == "spot" and fleet.plan.spot_strategy == "capacity-optimized":
        return sorted(pools, key=lambda pool: -depth(pool, market))
    if market == "spot" and fleet.plan.spot_strategy == "price-capacity-optimized":
        return sorted(pools, key=lambda pool: (depth(pool, market) < 1, price(pool, market)))
    return sorted(pools, key=lambda pool: price(pool, market))


def excess(fleet: Fleet, market: Market) -> list[FleetMember]:
    """Return the instances to terminate to reduce the market to its target."""
    surplus = max(0, fleet.fulfilled(market) - fleet.plan.targets.of(market))
    # Terminate unhealthy instances first, then the most expensive, then the newest.
    members = fleet.counted(market)[::-1]
    return sorted(members, key=lambda one: (one.is_healthy, -one.usd_per_hour))[:surplus]
