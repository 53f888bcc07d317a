"""Puts compute together: the services "ec2" (in part), "autoscaling" (all of it) and "compute" (http verbs)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from localcloud import api
from localcloud.account.pricing import Pricing
from localcloud.account.quotas import ServiceQuotas
from localcloud.compute.account_queries import AccountQueries
from localcloud.compute.autoscaling.activities import ActivityLog
from localcloud.compute.autoscaling.group_operations import GroupOperations
from localcloud.compute.autoscaling.hook_operations import HookOperations
from localcloud.compute.autoscaling.instance_operations import InstanceOperations
from localcloud.compute.autoscaling.launcher import GroupLauncher
from localcloud.compute.autoscaling.lifecycle import Lifecycle
from localcloud.compute.autoscaling.model import GroupStore
from localcloud.compute.autoscaling.notifications import HookNotifier
from localcloud.compute.autoscaling.reconciler import Reconciler
from localcloud.compute.autoscaling.refresh import InstanceRefresher
from localcloud.compute.autoscaling.refresh_operations import RefreshOperations
from localcloud.compute.autoscaling.service import AutoScalingService
from localcloud.compute.autoscaling.tag_operations import TagOperations
from localcloud.compute.capacity import CapacityPools
from localcloud.compute.control import ComputeControl
from localcloud.compute.ec2_service import Ec2Service
from localcloud.compute.fleets.ec2_operations import Ec2FleetOperations
from localcloud.compute.fleets.history import FleetHistory
from localcloud.compute.fleets.keeper import FleetKeeper
from localcloud.compute.fleets.launcher import FleetLauncher
from localcloud.compute.fleets.model import FleetStore
from localcloud.compute.fleets.spot_operations import SpotFleetOperations
from localcloud.compute.instance_credentials import InstanceCredentials
from localcloud.compute.instance_types import InstanceTypes
from localcloud.compute.inventory import Inventory
from localcloud.compute.launch import LaunchResolver
from localcloud.compute.metadata import MetadataSources
from localcloud.compute.metadata_server import MetadataServers
from localcloud.compute.moto_record import MotoRecord
from localcloud.compute.placement import PlacementGroups
from localcloud.compute.records import RecordLog
from localcloud.compute.reservations.blocks import CapacityBlocks
from localcloud.compute.reservations.keeper import ReservationKeeper
from localcloud.compute.reservations.model import ReservationStore
from localcloud.compute.reservations.operations import ReservationOperations
from localcloud.compute.spot import NOTICE_SECONDS, SpotMarket
from localcloud.compute.volume_modifications import VolumeModifications
from localcloud.compute.volumes import VolumeOperations
from localcloud.compute.zones import Zones
from localcloud.resource_groups import ResourceGroups


class ComputeServices:
    """The compute of one account in one region.

    Args:
        clients: Clients of this cloud; `direct` must reach the moto that lives in this process.
        bus: Where instances and groups say what happened.
        credentials: Issues the instances' role sessions.
        state_directory: Holds `instances/<id>/` and `records.jsonl`.
        clock: Unix seconds for hooks, notices, tokens and credentials; another clock is for tests.
    """

    def __init__(
        self, clients: api.Clients, bus: api.EventBus, credentials: api.CredentialIssuer, state_directory: Path,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        state_directory = state_directory.resolve()
        self._clients = clients
        self._groups = ResourceGroups(clients)
        zones = Zones(clients)
        self._vpc_cidrs: dict[str, str] = {}
        records = RecordLog(state_directory / "records.jsonl", clock)
        record = MotoRecord(clients.account, clients.region)
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
        reservations = ReservationStore(self._groups.members, clock)
        self.inventory = Inventory(
            clients, bus, records, record, placement, pools, reservations, self._servers, state_directory, clock
        )
        types = InstanceTypes()
        resolver = LaunchResolver(clients, types, placement)
        self._spot = SpotMarket(self.inventory, clients, bus, records, clock)
        fleets = FleetStore()
        fleet_history = FleetHistory(clients, bus, records, clock)
        fleet_launcher = FleetLauncher(fleets, self.inventory, resolver, types, pools, fleet_history, clock)
        self._fleet_keeper = FleetKeeper(fleets, self.inventory, fleet_launcher, fleet_history, clock)
        self._reservation_keeper = ReservationKeeper(reservations, self.inventory, clock)
        reserving = ReservationOperations(
            reservations, pools, types, zones, record,
            lambda instance_id: self._spot.interrupt(instance_id, NOTICE_SECONDS), clock,
        )  # fmt: skip
        self._ec2 = Ec2Service(
            clients, self.inventory, resolver, placement, record,
            reserving.handlers(),
            AccountQueries(clients, types, zones, pools, clock).handlers(),
            VolumeOperations(clients, self.inventory, types, clock).handlers(),
            VolumeModifications(clients, clock).handlers(),
            CapacityBlocks(reservations, reserving, types, zones, clock).handlers(),
            Ec2FleetOperations(
                fleets, clients, self.inventory, resolver, record, fleet_launcher, self._fleet_keeper, fleet_history,
                clock,
            ).handlers(),
            SpotFleetOperations(
                fleets, clients, resolver, record, self._fleet_keeper, fleet_history, clock
            ).handlers(),
        )  # fmt: skip
        store = GroupStore()
        activities = ActivityLog(clients, bus, records, clock)
        self._notifier = HookNotifier(clients, clock)
        lifecycle = Lifecycle(self.inventory, activities, self._notifier, clock)
        self._reconciler = Reconciler(
            store, self.inventory, lifecycle, GroupLauncher(store, self.inventory, resolver, activities, clock),
            InstanceRefresher(lifecycle, clock), clock,
        )  # fmt: skip
        self._autoscaling = AutoScalingService(
            self._reconciler,
            GroupOperations(store, clients, resolver, lifecycle, activities, placement.resolve, clock).handlers(),
            InstanceOperations(store, self.inventory, lifecycle, activities, clock).handlers(),
            HookOperations(store, lifecycle).handlers(),
            RefreshOperations(store, resolver, clock).handlers(),
            TagOperations(store).handlers(),
        )
        self._wakes = (store.wake, fleets.wake, reservations.wake)
        self._control = ComputeControl(self.inventory, self._spot, pools, self._capacity_changed, self._close)
        for keeper in (self._reconciler, self._fleet_keeper):
            self.inventory.listen(keeper.instance_changed)
            self._spot.listen(keeper.rebalance_recommended)
            keeper.start()
        self._reservation_keeper.start()

    def wake(self) -> None:
        """Let groups and fleets look at the time."""
        for event in self._wakes:
            event.set()

    def _capacity_changed(self) -> None:
        self._reconciler.capacity_changed()
        self._fleet_keeper.capacity_changed()

    def services(self) -> list[api.Service]:
        """Return the services for the gateway; closing them all ends every instance."""
        others: list[api.Service] = [ServiceQuotas(), Pricing(InstanceTypes(), self._clients.region)]
        return [self._control, self._ec2, self._autoscaling, self._groups, *others]

    def _close(self) -> None:
        self._reconciler.close()
        self._fleet_keeper.close()
        self._reservation_keeper.close()
        self._spot.close()
        self.inventory.close()
        self._servers.close()
        self._notifier.close()

    def _vpc_cidr(self, vpc_id: str) -> str:
        if vpc_id not in self._vpc_cidrs:
            answer = self._clients.direct("ec2").describe_vpcs(VpcIds=[vpc_id])
            self._vpc_cidrs[vpc_id] = answer["Vpcs"][0]["CidrBlock"]
        return self._vpc_cidrs[vpc_id]
