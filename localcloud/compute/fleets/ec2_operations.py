"""EC2 Fleet API operations."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from localcloud.api import ApiError, Call, Clients, Handler
from localcloud.compute.capacity import Market
from localcloud.compute.describe import matches, page, timestamp
from localcloud.compute.fleets.history import FleetHistory, history_page
from localcloud.compute.fleets.linked_roles import require_linked_roles
from localcloud.compute.fleets.model import Fleet, FleetStore
from localcloud.compute.fleets.plan import ec2_fleet_plan, read_targets
from localcloud.compute.fleets.pools import read_pools
from localcloud.compute.fleets.reconciler import FleetReconciler
from localcloud.compute.launch.moto_record import MotoRecord
from localcloud.compute.launch.resolver import LaunchResolver

_SHOWN = ("LaunchTemplateConfigs", "SpotOptions", "OnDemandOptions", "Context")
_FILTERS = {
    "activity-status": "ActivityStatus", "excess-capacity-termination-policy": "ExcessCapacityTerminationPolicy",
    "fleet-state": "FleetState", "replace-unhealthy-instances": "ReplaceUnhealthyInstances", "type": "Type",
}  # fmt: skip
_MARKETS: tuple[Market, ...] = ("on-demand", "spot")


class FleetOperations:
    """The parts that the operations of both fleet APIs share."""

    def __init__(
        self, store: FleetStore, clients: Clients, resolver: LaunchResolver, record: MotoRecord,
        reconciler: FleetReconciler, history: FleetHistory, clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._store = store
        self._clients = clients
        self._resolver = resolver
        self._record = record
        self._reconciler = reconciler
        self._history = history
        self._clock = clock

    def _start(self, fleet: Fleet, tags: Iterable[Mapping[str, str]]) -> None:
        """Store a new fleet, which the reconciler fills."""
        self._record.add_tags(fleet.fleet_id, {tag["Key"]: tag.get("Value", "") for tag in tags})
        with self._store.lock:
            self._store.fleets[fleet.fleet_id] = fleet
            self._history.changed(fleet, "submitted")
            self._history.changed(fleet, "active")
        self._store.wake.set()

    def _change(self, fleet: Fleet, request: dict[str, Any], **plan: Any) -> Mapping[str, Any]:
        """Change a fleet's request and plan, and return the response."""
        with self._store.lock:
            fleet.request = request
            fleet.plan = replace(fleet.plan, **plan)
            fleet.retry_at, fleet.failures = 0.0, 0
            self._history.changed(fleet, "modify_succeeded")
        self._store.wake.set()
        return {"Return": True}


class Ec2FleetOperations(FleetOperations):
    """Handlers for EC2 Fleet operations."""

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation."""
        return {
            "CreateFleet": self.create,
            "ModifyFleet": self.modify,
            "DeleteFleets": self.delete,
            "DescribeFleets": self.describe,
            "DescribeFleetInstances": self.describe_instances,
            "DescribeFleetHistory": self.describe_history,
        }

    def describe_history(self, call: Call) -> Mapping[str, Any]:
        """Handle DescribeFleetHistory."""
        with self._store.lock:
            fleet = self._store.get(call.parameters["FleetId"], "ec2")
            return {**history_page(fleet, call.parameters), "FleetId": fleet.fleet_id}

    def create(self, call: Call) -> Mapping[str, Any]:
        """Handle CreateFleet. The reconciler fills the fleet after the response."""
        request = dict(call.parameters)
        plan = ec2_fleet_plan(request, read_pools(request["LaunchTemplateConfigs"], "ec2", self._resolver))
        require_linked_roles(self._clients, "AWSServiceRoleForEC2Fleet")
        if request.get("DryRun"):
            raise ApiError("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412)
        fleet = Fleet(f"fleet-{uuid.uuid4()}", plan, request, self._clock())
        tags = [one for one in request.get("TagSpecifications", []) if one.get("ResourceType") == "fleet"]
        self._start(fleet, [tag for one in tags for tag in one.get("Tags", [])])
        return {"FleetId": fleet.fleet_id}

    def modify(self, call: Call) -> Mapping[str, Any]:
        """Handle ModifyFleet: change the target, policy or launch templates."""
        changes = call.parameters
        with self._store.lock:
            fleet = self._store.get(changes["FleetId"], "ec2")
            if not fleet.is_active:
                raise ApiError("InvalidFleetState", f"{fleet.fleet_id} is {fleet.state} and cannot be modified")
        pools = read_pools(changes["LaunchTemplateConfigs"], "ec2", self._resolver) if (
            changes.get("LaunchTemplateConfigs")
        ) else fleet.plan.pools  # fmt: skip
        names = ("LaunchTemplateConfigs", "ExcessCapacityTerminationPolicy", "Context")
        request = fleet.request | {name: changes[name] for name in names if changes.get(name)}
        if target := changes.get("TargetCapacitySpecification"):
            # The original request's default target capacity type still applies.
            kept = {"DefaultTargetCapacityType": fleet.request["TargetCapacitySpecification"].get(
                "DefaultTargetCapacityType", "on-demand")}  # fmt: skip
            request["TargetCapacitySpecification"] = kept | dict(target)
        targets = read_targets(request["TargetCapacitySpecification"])
        policy = request.get("ExcessCapacityTerminationPolicy", "termination")
        return self._change(fleet, request, targets=targets, pools=pools, terminates_excess=policy == "termination")

    def delete(self, call: Call) -> Mapping[str, Any]:
        """Handle DeleteFleets."""
        terminates = bool(call.parameters.get("TerminateInstances"))
        deleted, failed = [], []
        for fleet_id in call.parameters["FleetIds"]:
            try:
                with self._store.lock:
                    fleet = self._store.get(fleet_id, "ec2")
                    previous = fleet.state
            except ApiError as error:
                refusal = {"Code": "fleetIdDoesNotExist", "Message": error.message}
                failed.append({"FleetId": fleet_id, "Error": refusal})
                continue
            if previous in ("submitted", "active"):
                self._reconciler.end(fleet, terminates=terminates)
            deleted.append(
                {"FleetId": fleet_id, "CurrentFleetState": fleet.state, "PreviousFleetState": previous}
            )  # fmt: skip
        return {"SuccessfulFleetDeletions": deleted, "UnsuccessfulFleetDeletions": failed}

    def describe(self, call: Call) -> Mapping[str, Any]:
        """Handle DescribeFleets."""
        with self._store.lock:
            named = [self._store.get(one, "ec2") for one in call.parameters.get("FleetIds", [])]
            shown = [self._view(one) for one in named or self._store.of_kind("ec2")]
        filters = call.parameters.get("Filters", [])
        return page([one for one in shown if matches(filters, one, _FILTERS)], call.parameters, "Fleets")

    def describe_instances(self, call: Call) -> Mapping[str, Any]:
        """Handle DescribeFleetInstances: return the live instances."""
        with self._store.lock:
            fleet = self._store.get(call.parameters["FleetId"], "ec2")
            return {"FleetId": fleet.fleet_id} | active_instances(fleet, call.parameters)

    def _view(self, fleet: Fleet) -> dict[str, Any]:
        targets, request = fleet.plan.targets, fleet.request
        tags = self._record.tags(fleet.fleet_id)
        return {
            "FleetId": fleet.fleet_id, "FleetState": fleet.state, "Type": "maintain",
            "ActivityStatus": activity_status(fleet),
            "CreateTime": timestamp(fleet.created),
            "FulfilledCapacity": float(len(fleet.live())),
            "FulfilledOnDemandCapacity": float(len(fleet.live("on-demand"))),
            "TargetCapacitySpecification": {
                "TotalTargetCapacity": targets.total, "OnDemandTargetCapacity": targets.on_demand,
                "SpotTargetCapacity": targets.spot,
                "DefaultTargetCapacityType": request["TargetCapacitySpecification"].get(
                    "DefaultTargetCapacityType", "on-demand"
                ),
            },
            "ExcessCapacityTerminationPolicy": "termination" if fleet.plan.terminates_excess else "no-termination",
            "ReplaceUnhealthyInstances": fleet.plan.replaces_unhealthy,
            "TerminateInstancesWithExpiration": False,
            "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
            **{name: request[name] for name in _SHOWN if request.get(name)},
        }  # fmt: skip


def activity_status(fleet: Fleet) -> str:
    """Return a fleet's ActivityStatus, which both fleet APIs share."""
    if not fleet.is_active:
        return "pending_termination" if fleet.live() and fleet.state == "deleted_terminating" else "fulfilled"
    if any(fleet.fulfilled(one) < fleet.plan.targets.of(one) for one in _MARKETS):
        return "error" if fleet.failures else "pending_fulfillment"
    return "fulfilled"


def active_instances(fleet: Fleet, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a page of a fleet's live instances, in the format that both fleet APIs use."""
    shown = [
        {"InstanceId": one.instance_id, "InstanceType": one.pool.instance_type,
         "InstanceHealth": "healthy" if one.is_healthy else "unhealthy"}
        | ({"SpotInstanceRequestId": one.spot_request_id} if one.spot_request_id else {})
        for one in fleet.live()
    ]  # fmt: skip
    return page(shown, parameters, "ActiveInstances")
