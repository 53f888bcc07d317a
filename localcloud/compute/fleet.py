"""EC2 Fleet of type "instant": a synchronous, one-time launch over several pools.

Not here: fleets that keep themselves filled (`maintain`, `request`); they are refused.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from localcloud.api import ApiError, Call, Clients
from localcloud.compute.capacity import Market
from localcloud.compute.instance import Instance
from localcloud.compute.inventory import Inventory
from localcloud.compute.launch import LaunchResolver


@dataclass(frozen=True)
class _Pool:
    template: Mapping[str, Any]
    override: Mapping[str, Any]

    def parameters(self, market: Market, tags: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return RunInstances parameters for this pool."""
        passed = {
            name: self.override[name] for name in ("InstanceType", "SubnetId", "ImageId") if name in self.override
        }
        placement = dict(self.override.get("Placement", {}))
        if "AvailabilityZone" in self.override:
            placement["AvailabilityZone"] = self.override["AvailabilityZone"]
        options: dict[str, Any] = {"MarketType": "spot"}
        if "MaxPrice" in self.override:
            options["SpotOptions"] = {"MaxPrice": self.override["MaxPrice"]}
        return (
            {"LaunchTemplate": dict(self.template), "TagSpecifications": list(tags), **passed}
            | ({"Placement": placement} if placement else {})
            | ({"InstanceMarketOptions": options} if market == "spot" else {})
        )


@dataclass
class _Fleet:
    fleet_id: str
    request: Mapping[str, Any]
    created: datetime
    instances: list[tuple[_Pool, Instance]] = field(default_factory=list)
    errors: list[tuple[_Pool, Market, ApiError]] = field(default_factory=list)
    state: str = "active"


class InstantFleets:
    """The instant fleets of the account."""

    def __init__(self, clients: Clients, inventory: Inventory, resolver: LaunchResolver) -> None:
        self._clients = clients
        self._inventory = inventory
        self._resolver = resolver
        self._lock = threading.Lock()
        self._fleets: dict[str, _Fleet] = {}

    def create(self, call: Call) -> Mapping[str, Any]:
        """Answer CreateFleet."""
        request = call.parameters
        if request.get("Type", "maintain") != "instant":
            raise ApiError(
                "UnsupportedOperation",
                f"CreateFleet: type '{request.get('Type', 'maintain')}' is not emulated by the local cloud; "
                "use 'instant', or an Auto Scaling group for a fleet that keeps its size",
            )
        fleet = _Fleet(f"fleet-{secrets.token_hex(16)}", request, datetime.now(timezone.utc))
        for market, wanted in self._targets(request["TargetCapacitySpecification"]):
            self._fill(fleet, market, wanted)
        with self._lock:
            self._fleets[fleet.fleet_id] = fleet
        return {"FleetId": fleet.fleet_id, "Instances": self._instances(fleet), "Errors": self._errors(fleet)}

    def describe(self, call: Call) -> Mapping[str, Any]:
        """Answer DescribeFleets."""
        return {
            "Fleets": [
                {
                    "FleetId": fleet.fleet_id, "FleetState": fleet.state, "Type": "instant",
                    "CreateTime": fleet.created, "FulfilledCapacity": float(len(fleet.instances)),
                    "TargetCapacitySpecification": fleet.request["TargetCapacitySpecification"],
                    "LaunchTemplateConfigs": fleet.request["LaunchTemplateConfigs"],
                    "Instances": self._instances(fleet), "Errors": self._errors(fleet),
                }
                for fleet in self._chosen(call)
            ]
        }  # fmt: skip

    def describe_instances(self, call: Call) -> Mapping[str, Any]:
        """Answer DescribeFleetInstances with the instances that live."""
        with self._lock:
            fleet = self._known(call.parameters["FleetId"])
        return {
            "FleetId": fleet.fleet_id,
            "ActiveInstances": [
                {"InstanceId": one.id, "InstanceType": one.specification.instance_type, "InstanceHealth": "healthy"}
                for _, one in fleet.instances
                if one.is_live
            ],
        }

    def delete(self, call: Call) -> Mapping[str, Any]:
        """Answer DeleteFleets; an instant fleet can only be deleted with its instances."""
        if not call.parameters.get("TerminateInstances"):
            raise ApiError("InvalidParameterValue", "Instances of an instant fleet must be terminated with the fleet")
        deleted = []
        for fleet in self._chosen(call):
            self._inventory.terminate([instance.id for _, instance in fleet.instances])
            previous, fleet.state = fleet.state, "deleted_terminating"
            deleted.append(
                {"FleetId": fleet.fleet_id, "CurrentFleetState": fleet.state, "PreviousFleetState": previous}
            )
        return {"SuccessfulFleetDeletions": deleted, "UnsuccessfulFleetDeletions": []}

    def _chosen(self, call: Call) -> list[_Fleet]:
        with self._lock:
            return [self._known(one) for one in call.parameters.get("FleetIds", [])] or list(self._fleets.values())

    def _known(self, fleet_id: str) -> _Fleet:
        if fleet_id not in self._fleets:
            raise ApiError("InvalidFleetId.NotFound", f"The fleet ID '{fleet_id}' does not exist")
        return self._fleets[fleet_id]

    @staticmethod
    def _targets(target: Mapping[str, Any]) -> list[tuple[Market, int]]:
        on_demand, spot = int(target.get("OnDemandTargetCapacity", 0)), int(target.get("SpotTargetCapacity", 0))
        rest = int(target["TotalTargetCapacity"]) - on_demand - spot
        if rest < 0:
            raise ApiError("InvalidTargetCapacitySpecification", "TotalTargetCapacity is below the sum of its parts")
        if target.get("DefaultTargetCapacityType", "on-demand") == "spot":
            spot += rest
        else:
            on_demand += rest
        return [("on-demand", on_demand), ("spot", spot)]

    def _fill(self, fleet: _Fleet, market: Market, wanted: int) -> None:
        tags = [one for one in fleet.request.get("TagSpecifications", []) if one.get("ResourceType") == "instance"]
        launched = 0
        for pool in _pools(fleet.request):
            while launched < wanted:
                try:
                    specification = self._resolver.resolve(pool.parameters(market, tags))
                    (instance,) = self._inventory.launch(specification, 1)
                except ApiError as error:
                    fleet.errors.append((pool, market, error))
                    break
                self._inventory.tag(instance.id, {"aws:ec2:fleet-id": fleet.fleet_id})
                fleet.instances.append((pool, instance))
                launched += 1

    @staticmethod
    def _instances(fleet: _Fleet) -> list[dict[str, Any]]:
        return [
            {
                "LaunchTemplateAndOverrides": {
                    "LaunchTemplateSpecification": dict(pool.template), "Overrides": dict(pool.override)
                },
                "Lifecycle": instance.market, "InstanceIds": [instance.id],
                "InstanceType": instance.specification.instance_type,
            }
            for pool, instance in fleet.instances
        ]  # fmt: skip

    @staticmethod
    def _errors(fleet: _Fleet) -> list[dict[str, Any]]:
        return [
            {
                "LaunchTemplateAndOverrides": {
                    "LaunchTemplateSpecification": dict(pool.template), "Overrides": dict(pool.override)
                },
                "Lifecycle": market, "ErrorCode": error.code, "ErrorMessage": error.message,
            }
            for pool, market, error in fleet.errors
        ]  # fmt: skip


def _pools(request: Mapping[str, Any]) -> Iterator[_Pool]:
    for config in request["LaunchTemplateConfigs"]:
        overrides = config.get("Overrides") or [{}]
        if any("InstanceRequirements" in override for override in overrides):
            raise ApiError("UnsupportedOperation", "InstanceRequirements are not emulated; name instance types")
        for override in sorted(overrides, key=lambda one: float(one.get("Priority", 0))):
            yield _Pool(config["LaunchTemplateSpecification"], override)
