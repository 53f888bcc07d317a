"""The API calls of EC2 Fleet."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from localcloud.api import ApiError, Call, Clients, Handler
from localcloud.compute.capacity import Market
from localcloud.compute.filters import matches
from localcloud.compute.fleets.history import FleetHistory
from localcloud.compute.fleets.keeper import FleetKeeper
from localcloud.compute.fleets.launcher import FleetLauncher
from localcloud.compute.fleets.linked_roles import require_linked_roles
from localcloud.compute.fleets.model import Fleet, FleetStore
from localcloud.compute.fleets.plan import ec2_fleet_plan, read_targets
from localcloud.compute.fleets.pools import read_pools, shown_pool
from localcloud.compute.inventory import Inventory
from localcloud.compute.launch import LaunchResolver
from localcloud.compute.moments import moment_of, unix_seconds
from localcloud.compute.moto_record import MotoRecord
from localcloud.compute.paging import page

_SHOWN = ("LaunchTemplateConfigs", "SpotOptions", "OnDemandOptions", "ValidFrom", "ValidUntil", "Context")
_FILTERS = {
    "activity-status": "ActivityStatus", "excess-capacity-termination-policy": "ExcessCapacityTerminationPolicy",
    "fleet-state": "FleetState", "replace-unhealthy-instances": "ReplaceUnhealthyInstances", "type": "Type",
}  # fmt: skip
_MARKETS: tuple[Market, ...] = ("on-demand", "spot")


class Ec2FleetOperations:
    """Handlers of the calls about EC2 Fleets."""

    def __init__(
        self, store: FleetStore, clients: Clients, inventory: Inventory, resolver: LaunchResolver, record: MotoRecord,
        launcher: FleetLauncher, keeper: FleetKeeper, history: FleetHistory, clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._store = store
        self._clients = clients
        self._inventory = inventory
        self._resolver = resolver
        self._record = record
        self._launcher = launcher
        self._keeper = keeper
        self._history = history
        self._clock = clock

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by operation."""
        return {
            "CreateFleet": self.create,
            "ModifyFleet": self.modify,
            "DeleteFleets": self.delete,
            "DescribeFleets": self.describe,
            "DescribeFleetInstances": self.describe_instances,
            "DescribeFleetHistory": self.describe_history,
        }

    def create(self, call: Call) -> Mapping[str, Any]:
        """Answer CreateFleet; an instant fleet is filled when this returns, another by and by."""
        request = dict(call.parameters)
        plan = ec2_fleet_plan(request, read_pools(request["LaunchTemplateConfigs"], "ec2", self._resolver))
        if plan.fleet_type != "instant":
            require_linked_roles(self._clients, "AWSServiceRoleForEC2Fleet")
        if request.get("DryRun"):
            raise ApiError("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412)
        fleet = Fleet(f"fleet-{uuid.uuid4()}", plan, request, self._clock())
        tags = [one for one in request.get("TagSpecifications", []) if one.get("ResourceType") == "fleet"]
        self._record.add_tags(
            fleet.fleet_id, {tag["Key"]: tag.get("Value", "") for one in tags for tag in one.get("Tags", [])}
        )
        with self._store.lock:
            self._store.fleets[fleet.fleet_id] = fleet
            self._history.changed(fleet, "submitted")
            self._history.changed(fleet, "active")
        if plan.fleet_type != "instant":
            self._store.wake.set()
            return {"FleetId": fleet.fleet_id}
        self._fill_instant(fleet)
        return {"FleetId": fleet.fleet_id, "Instances": _instances(fleet), "Errors": _errors(fleet)}

    def _fill_instant(self, fleet: Fleet) -> None:
        for market in _MARKETS:
            self._launcher.fill(fleet, market)
        if any(fleet.fulfilled(market) < fleet.plan.least[market] for market in _MARKETS):
            # Less than MinTargetCapacity is nothing.
            with self._store.lock:
                ids, fleet.members = list(fleet.members), {}
            self._inventory.terminate(ids)

    def modify(self, call: Call) -> Mapping[str, Any]:
        """Answer ModifyFleet: a fleet of type maintain gets another size, policy, or launch templates."""
        changes = call.parameters
        with self._store.lock:
            fleet = self._store.get(changes["FleetId"], "ec2")
            if fleet.plan.fleet_type != "maintain":
                raise ApiError(
                    "InvalidParameterValue", f"{fleet.fleet_id}: only fleets of type maintain can be modified"
                )
            if not fleet.is_active:
                raise ApiError("InvalidFleetState", f"{fleet.fleet_id} is {fleet.state} and cannot be modified")
        pools = read_pools(changes["LaunchTemplateConfigs"], "ec2", self._resolver) if (
            changes.get("LaunchTemplateConfigs")
        ) else fleet.plan.pools  # fmt: skip
        names = ("LaunchTemplateConfigs", "ExcessCapacityTerminationPolicy", "Context")
        request = fleet.request | {name: changes[name] for name in names if changes.get(name)}
        if target := changes.get("TargetCapacitySpecification"):
            # What the change does not name goes to the default type that the fleet was made with.
            kept = {"DefaultTargetCapacityType": fleet.request["TargetCapacitySpecification"].get(
                "DefaultTargetCapacityType", "on-demand")}  # fmt: skip
            request["TargetCapacitySpecification"] = kept | dict(target)
        targets = read_targets(request["TargetCapacitySpecification"])
        policy = request.get("ExcessCapacityTerminationPolicy", "termination")
        with self._store.lock:
            fleet.request = request
            fleet.plan = replace(fleet.plan, targets=targets, pools=pools, terminates_excess=policy == "termination")
            fleet.retry_at, fleet.failures = 0.0, 0
            self._history.changed(fleet, "modify_succeeded")
        self._store.wake.set()
        return {"Return": True}

    def delete(self, call: Call) -> Mapping[str, Any]:
        """Answer DeleteFleets; an instant fleet can only be deleted with its instances."""
        terminates = bool(call.parameters.get("TerminateInstances"))
        deleted, failed = [], []
        for fleet_id in call.parameters["FleetIds"]:
            try:
                with self._store.lock:
                    fleet = self._store.get(fleet_id, "ec2")
                    previous = fleet.state
                if fleet.plan.fleet_type == "instant" and not terminates:
                    raise ApiError("InvalidParameterValue", "Instances of an instant fleet end with the fleet")
            except ApiError as error:
                code = "fleetIdDoesNotExist" if error.code == "InvalidFleetId.NotFound" else "unexpectedError"
                failed.append({"FleetId": fleet_id, "Error": {"Code": code, "Message": error.message}})
                continue
            if previous in ("submitted", "active"):
                self._keeper.end(fleet, terminates=terminates)
            deleted.append(
                {"FleetId": fleet_id, "CurrentFleetState": fleet.state, "PreviousFleetState": previous}
            )  # fmt: skip
        return {"SuccessfulFleetDeletions": deleted, "UnsuccessfulFleetDeletions": failed}

    def describe(self, call: Call) -> Mapping[str, Any]:
        """Answer DescribeFleets; instant fleets are shown only to those who name them."""
        with self._store.lock:
            named = [self._store.get(one, "ec2") for one in call.parameters.get("FleetIds", [])]
            known = [one for one in self._store.of_kind("ec2") if one.plan.fleet_type != "instant"]
            shown = [self._view(one) for one in named or known]
        filters = call.parameters.get("Filters", [])
        return page([one for one in shown if matches(filters, one, _FILTERS)], call.parameters, "Fleets")

    def describe_instances(self, call: Call) -> Mapping[str, Any]:
        """Answer DescribeFleetInstances with the instances that run."""
        with self._store.lock:
            fleet = self._store.get(call.parameters["FleetId"], "ec2")
            shown = [
                {"InstanceId": one.instance_id, "InstanceType": one.pool.instance_type,
                 "InstanceHealth": "healthy" if one.is_healthy else "unhealthy"}
                | ({"SpotInstanceRequestId": one.spot_request_id} if one.spot_request_id else {})
                for one in fleet.live()
            ]  # fmt: skip
        return {"FleetId": fleet.fleet_id} | page(shown, call.parameters, "ActiveInstances")

    def describe_history(self, call: Call) -> Mapping[str, Any]:
        """Answer DescribeFleetHistory: what happened from StartTime on, the oldest first."""
        since: datetime = call.parameters["StartTime"]
        wanted = call.parameters.get("EventType")
        with self._store.lock:
            fleet = self._store.get(call.parameters["FleetId"], "ec2")
            events = list(fleet.events)
        kept = [one for one in events if one.unix_seconds >= unix_seconds(since) and wanted in (None, one.kind)]
        shown = [
            {
                "EventType": one.kind, "Timestamp": moment_of(one.unix_seconds),
                "EventInformation": {"EventSubType": one.sub_type, "EventDescription": one.description}
                | ({"InstanceId": one.instance_id} if one.instance_id else {}),
            }
            for one in kept
        ]  # fmt: skip
        return {"FleetId": fleet.fleet_id, "StartTime": since} | page(shown, call.parameters, "HistoryRecords")

    def _view(self, fleet: Fleet) -> dict[str, Any]:
        targets, request = fleet.plan.targets, fleet.request
        tags = self._record.tags(fleet.fleet_id)
        shown: dict[str, Any] = {
            "FleetId": fleet.fleet_id, "FleetState": fleet.state, "Type": fleet.plan.fleet_type,
            "ActivityStatus": activity_status(fleet),
            "CreateTime": moment_of(fleet.created),
            "FulfilledCapacity": sum(one.pool.weight for one in fleet.live()),
            "FulfilledOnDemandCapacity": sum(one.pool.weight for one in fleet.live("on-demand")),
            "TargetCapacitySpecification": {
                "TotalTargetCapacity": targets.total, "OnDemandTargetCapacity": targets.on_demand,
                "SpotTargetCapacity": targets.spot,
                "DefaultTargetCapacityType": request["TargetCapacitySpecification"].get(
                    "DefaultTargetCapacityType", "on-demand"
                ),
            },
            "ExcessCapacityTerminationPolicy": "termination" if fleet.plan.terminates_excess else "no-termination",
            "ReplaceUnhealthyInstances": fleet.plan.replaces_unhealthy,
            "TerminateInstancesWithExpiration": fleet.plan.terminates_on_expiry,
            "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
            **{name: request[name] for name in _SHOWN if request.get(name)},
        }  # fmt: skip
        if fleet.plan.fleet_type == "instant":
            shown |= {"Instances": _instances(fleet), "Errors": _errors(fleet)}
        return shown


def activity_status(fleet: Fleet) -> str:
    """Return how far a fleet is, as both fleet APIs spell it."""
    if not fleet.is_active:
        return "pending_termination" if fleet.live() and fleet.state == "deleted_terminating" else "fulfilled"
    if any(fleet.fulfilled(one) < fleet.plan.targets.of(one) for one in _MARKETS):
        return "error" if fleet.failures else "pending_fulfillment"
    return "fulfilled"


def _instances(fleet: Fleet) -> list[dict[str, Any]]:
    return [
        {
            "LaunchTemplateAndOverrides": shown_pool(one.pool), "Lifecycle": one.market,
            "InstanceIds": [one.instance_id], "InstanceType": one.pool.instance_type,
        }
        for one in fleet.members.values()
    ]  # fmt: skip


def _errors(fleet: Fleet) -> list[dict[str, Any]]:
    return [
        {
            "LaunchTemplateAndOverrides": shown_pool(one.pool), "Lifecycle": one.market,
            "ErrorCode": one.code, "ErrorMessage": one.message,
        }
        for one in fleet.refusals
    ]  # fmt: skip
