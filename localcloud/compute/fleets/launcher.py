"""Launches instances for fleets, trying one pool after another. Does not hold the store's lock during EC2 calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from localcloud.api import ApiError
from localcloud.compute.capacity import CapacityPools, Market
from localcloud.compute.fleets.allocation import order
from localcloud.compute.fleets.history import FleetHistory
from localcloud.compute.fleets.model import Fleet, FleetMember, FleetStore, Kind, Pool
from localcloud.compute.fleets.pools import launch_parameters
from localcloud.compute.launch.instance_types import InstanceTypes
from localcloud.compute.launch.resolver import LaunchResolver
from localcloud.compute.machines.instance import Instance
from localcloud.compute.machines.inventory import Inventory
from localcloud.control_loop import retry_seconds

FLEET_TAGS: dict[Kind, str] = {"ec2": "aws:ec2:fleet-id", "spot": "aws:ec2spot:fleet-request-id"}
_ROLES: dict[Kind, str] = {
    "ec2": "ec2fleet.amazonaws.com/AWSServiceRoleForEC2Fleet",
    "spot": "spotfleet.amazonaws.com/AWSServiceRoleForEC2SpotFleet",
}


class FleetLauncher:
    """Adds one instance at a time to fleets."""

    def __init__(
        self, store: FleetStore, inventory: Inventory, resolver: LaunchResolver, types: InstanceTypes,
        pools: CapacityPools, history: FleetHistory, clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._store = store
        self._inventory = inventory
        self._resolver = resolver
        self._types = types
        self._pools = pools
        self._history = history
        self._clock = clock

    def fill(self, fleet: Fleet, market: Market) -> bool:
        """Launch instances up to the market's target. Return False if the pools do not have enough capacity."""
        while True:
            with self._store.lock:
                if not fleet.is_active or fleet.fulfilled(market) >= fleet.plan.targets.of(market):
                    return True
                tries = order(fleet, market, self.price, self._depth)
            if not any(self._launch(fleet, market, pool) for pool in tries):
                return False

    def postpone(self, fleet: Fleet) -> None:
        """Delay the fleet's next attempt. The delay grows with each failure."""
        with self._store.lock:
            fleet.failures += 1
            fleet.retry_at = self._clock() + retry_seconds(fleet.failures)

    def price(self, pool: Pool, market: Market) -> float:
        """Return the price of an instance in the pool, in USD per hour."""
        if market == "spot":
            return self._types.spot_usd_per_hour(pool.instance_type, pool.zone or "")
        return self._types.on_demand_usd_per_hour(pool.instance_type)

    def _depth(self, pool: Pool, market: Market) -> float:
        return self._pools.depth(market, pool.instance_type, pool.zone) if pool.zone else float("inf")

    def _launch(self, fleet: Fleet, market: Market, pool: Pool) -> bool:
        tag = {"Key": FLEET_TAGS[fleet.plan.kind], "Value": fleet.fleet_id}
        tags = [{"ResourceType": "instance", "Tags": [tag]}]
        try:
            specification = self._resolver.resolve(launch_parameters(pool, market, tags))
            (instance,) = self._inventory.launch(specification, 1, group=fleet.fleet_id, by=_ROLES[fleet.plan.kind])
        except ApiError as error:
            with self._store.lock:
                self._history.refused(fleet, pool, market, error)
            return False
        self._join(fleet, pool, instance)
        return True

    def _join(self, fleet: Fleet, pool: Pool, instance: Instance) -> None:
        price = self.price(replace(pool, zone=instance.zone), instance.market)
        member = FleetMember(instance.id, pool, instance.market, instance.zone, instance.spot_request_id, price)
        with self._store.lock:
            fleet.members[instance.id] = member
            fleet.failures, fleet.retry_at = 0, 0.0
            fleet.refusals = []
            self._history.instance(fleet, member, "launched", instance.specification.image_id)
            is_orphan = not fleet.is_active
        if is_orphan:  # the fleet was deleted during the launch
            self._inventory.terminate([instance.id])
