"""Assembles the services "ec2" (which uses moto for some operations), "autoscaling" and "compute" (HTTP endpoints)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from localcloud import api
from localcloud.compute.autoscaling.activities import ActivityLog
from localcloud.compute.autoscaling.group_operations import GroupOperations
from localcloud.compute.autoscaling.hook_operations import HookOperations
from localcloud.compute.autoscaling.instance_operations import InstanceOperations
from localcloud.compute.autoscaling.launcher import GroupLauncher
from localcloud.compute.autoscaling.lifecycle import Lifecycle
from localcloud.compute.autoscaling.model import GroupStore
from localcloud.compute.autoscaling.reconciler import GroupReconciler
from localcloud.compute.autoscaling.refresh import InstanceRefresher, RefreshOperations
from localcloud.compute.autoscaling.service import AutoScalingService
from localcloud.compute.capacity import CapacityPools
from localcloud.compute.control import ComputeControl
from localcloud.compute.ec2.account_queries import AccountQueries
from localcloud.compute.ec2.service import Ec2Service
from localcloud.compute.ec2.volumes import VolumeOperations
from localcloud.compute.fleets.ec2_operations import Ec2FleetOperations
from localcloud.compute.fleets.history import FleetHistory
from localcloud.compute.fleets.launcher import FleetLauncher
from localcloud.compute.fleets.model import FleetStore
from localcloud.compute.fleets.reconciler import FleetReconciler
from localcloud.compute.fleets.spot_operations import SpotFleetOperations
from localcloud.compute.launch.instance_types import InstanceTypes
from localcloud.compute.launch.moto_record import MotoRecord
from localcloud.compute.launch.placement import PlacementGroups
from localcloud.compute.launch.reservations import ReservationStore
from localcloud.compute.launch.resolver import LaunchResolver
from localcloud.compute.launch.zones import Zones
from localcloud.compute.machines.inventory import Inventory
from localcloud.compute.machines.metadata import InstanceCredentials, MetadataSources
from localcloud.compute.machines.metadata_server import MetadataServers
from localcloud.compute.reservations.blocks import CapacityBlocks, block_expiry
from localcloud.compute.reservations.operations import ReservationOperations
from localcloud.compute.spot import NOTICE_SECONDS, SpotMarket
from localcloud.journal import RecordLog


class ComputeServices:
    """The compute services for one account in one region.

    Args:
        clients: Clients for this cloud. `direct` must call the moto in this process.
        bus: Receives events about instances, fleets and groups.
        credentials: Issues the instances' role sessions.
        state_directory: Directory that contains `instances/<id>/` and `records.jsonl`.
        reservations_of: Returns the ARNs of the capacity reservations in a resource group, which launches can target.
        may_encrypt: Returns True if a service-linked role may encrypt volumes with a KMS key.
        clock: Returns Unix seconds for hooks, notices, tokens and credentials. Tests pass their own clock.
    """

    def __init__(
        self, clients: api.Clients, bus: api.EventBus, credentials: api.CredentialIssuer, state_directory: Path,
        reservations_of: Callable[[str], Sequence[str]], may_encrypt: Callable[[str, str], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        state_directory = state_directory.resolve()
        self._clients = clients
        zones = Zones(clients)
        self._vpc_cidrs: dict[str, str] = {}
        records = RecordLog(state_directory / "records.jsonl", clock)
        record = MotoRecord(clients.account, clients.region, clock)
        placement = PlacementGroups(record)
        pools = CapacityPools(records)
        sources = MetadataSources(
            record,
            InstanceCredentials(credentials, clock),
            clients.region,
            clients.account,
            zones.ids,
            self._vpc_cidr,
        )
        self._servers = MetadataServers(sources, clock)
        reservations = ReservationStore(reservations_of, clock)
        self.inventory = Inventory(
            clients,
            bus,
            records,
            record,
            placement,
            pools,
            reservations,
            self._servers,
            state_directory,
            may_encrypt,
            clock,
        )
        types = InstanceTypes()
        resolver = LaunchResolver(clients, types, placement)
        self._spot = SpotMarket(self.inventory, clients, bus, records, clock)
        fleets = FleetStore()
        fleet_history = FleetHistory(clients, bus, records, clock)
        fleet_launcher = FleetLauncher(fleets, self.inventory, resolver, types, pools, fleet_history, clock)
        self._fleets = FleetReconciler(fleets, self.inventory, fleet_launcher, fleet_history, clock)
        reserving = ReservationOperations(
            reservations, pools, types, zones, record,
            lambda instance_id: self._spot.interrupt(instance_id, NOTICE_SECONDS), clock,
        )  # fmt: skip
        self._ec2 = Ec2Service(
            clients, self.inventory, resolver, placement, record,
            reserving.handlers(),
            AccountQueries(clients, types, zones, pools, clock).handlers(),
            VolumeOperations(clients, self.inventory, types, clock).handlers(),

            CapacityBlocks(reservations, reserving, types, zones, clock).handlers(),
            Ec2FleetOperations(
                fleets, clients, resolver, record, self._fleets, fleet_history, clock
            ).handlers(),
            SpotFleetOperations(fleets, clients, resolver, record, self._fleets, fleet_history, clock).handlers(),
        )  # fmt: skip
        store = GroupStore()
        activities = ActivityLog(clients, bus, records, clock)
        lifecycle = Lifecycle(self.inventory, activities, clock)
        self._groups = GroupReconciler(
            store, self.inventory, lifecycle, GroupLauncher(store, self.inventory, resolver, activities, clock),
            InstanceRefresher(lifecycle, clock), clock,
        )  # fmt: skip
        self._autoscaling = AutoScalingService(
            self._groups.loop,
            GroupOperations(store, clients, resolver, lifecycle, activities, clock).handlers(),
            InstanceOperations(store, self.inventory, activities).handlers(),
            HookOperations(store, lifecycle).handlers(),
            RefreshOperations(store, resolver, clock).handlers(),
        )
        self._control = ComputeControl(
            self.inventory, self._spot, pools, self._capacity_changed, self._close, types, zones, clock
        )
        self.inventory.listen(lambda instance: self.wake())
        self._spot.listen(self._groups.rebalance_recommended)
        self._spot.listen(self._fleets.rebalance_recommended)
        blocks = block_expiry(reservations, self.inventory, clock)
        self._loops = (self._groups.loop, self._fleets.loop, blocks)
        for loop in self._loops:
            loop.start()

    def wake(self) -> None:
        """Wake every control loop after an instance or the clock has changed."""
        for loop in self._loops:
            loop.wake()

    def _capacity_changed(self) -> None:
        self._groups.capacity_changed()
        self._fleets.capacity_changed()

    def services(self) -> list[api.Service]:
        """Return the services for the gateway. Closing them terminates every instance."""
        return [self._control, self._ec2, self._autoscaling]

    def _close(self) -> None:
        for loop in self._loops:
            loop.close()
        self._spot.close()
        self.inventory.close()
        self._servers.close()

    def _vpc_cidr(self, vpc_id: str) -> str:
        if vpc_id not in self._vpc_cidrs:
            answer = self._clients.direct("ec2").describe_vpcs(VpcIds=[vpc_id])
            self._vpc_cidrs[vpc_id] = answer["Vpcs"][0]["CidrBlock"]
        return self._vpc_cidrs[vpc_id]
