"""Spot Fleet API operations."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from localcloud.api import ApiError, Call, Handler
from localcloud.compute.describe import page, timestamp
from localcloud.compute.fleets.ec2_operations import FleetOperations, active_instances, activity_status
from localcloud.compute.fleets.history import history_page
from localcloud.compute.fleets.linked_roles import require_linked_roles
from localcloud.compute.fleets.model import Fleet
from localcloud.compute.fleets.plan import spot_fleet_plan
from localcloud.compute.fleets.pools import read_pools

_STATES = {
    "deleted": "cancelled", "deleted_running": "cancelled_running", "deleted_terminating": "cancelled_terminating",
}  # fmt: skip

_INVALID = "InvalidSpotFleetRequestConfig"


class SpotFleetOperations(FleetOperations):
    """Handlers for Spot Fleet operations."""

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation."""
        return {
            "RequestSpotFleet": self.request,
            "ModifySpotFleetRequest": self.modify,
            "CancelSpotFleetRequests": self.cancel,
            "DescribeSpotFleetRequests": self.describe,
            "DescribeSpotFleetInstances": self.describe_instances,
            "DescribeSpotFleetRequestHistory": self.describe_history,
        }

    def describe_history(self, call: Call) -> Mapping[str, Any]:
        """Handle DescribeSpotFleetRequestHistory."""
        with self._store.lock:
            fleet = self._store.get(call.parameters["SpotFleetRequestId"], "spot")
            return {**history_page(fleet, call.parameters), "SpotFleetRequestId": fleet.fleet_id}

    def request(self, call: Call) -> Mapping[str, Any]:
        """Handle RequestSpotFleet. The reconciler fills the fleet after the response."""
        config = dict(call.parameters["SpotFleetRequestConfig"])
        self._check_role(str(config.get("IamFleetRole") or ""))
        pools = read_pools(config.get("LaunchTemplateConfigs", []), "spot", self._resolver, config.get("SpotPrice"))
        plan = spot_fleet_plan(config, pools)
        require_linked_roles(self._clients, "AWSServiceRoleForEC2SpotFleet", "AWSServiceRoleForEC2Spot")
        if call.parameters.get("DryRun"):
            raise ApiError("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412)
        fleet = Fleet(f"sfr-{uuid.uuid4()}", plan, config, self._clock())
        self._start(fleet, [tag for one in config.get("TagSpecifications", []) for tag in one.get("Tags", [])])
        return {"SpotFleetRequestId": fleet.fleet_id}

    def modify(self, call: Call) -> Mapping[str, Any]:
        """Handle ModifySpotFleetRequest: change the target, policy or launch templates."""
        changes = call.parameters
        with self._store.lock:
            fleet = self._store.get(changes["SpotFleetRequestId"], "spot")
            if not fleet.is_active:
                raise ApiError("InvalidParameterValue", f"{fleet.fleet_id} is {_state(fleet)} and cannot be modified")
        names = ("TargetCapacity", "OnDemandTargetCapacity", "ExcessCapacityTerminationPolicy", "Context")
        config = fleet.request | {name: changes[name] for name in names if changes.get(name) is not None}
        if changes.get("LaunchTemplateConfigs"):
            config["LaunchTemplateConfigs"] = changes["LaunchTemplateConfigs"]
            pools = read_pools(config["LaunchTemplateConfigs"], "spot", self._resolver, config.get("SpotPrice"))
        else:
            pools = list(fleet.plan.pools)
        plan = spot_fleet_plan(config, pools)
        return self._change(fleet, config, targets=plan.targets, pools=pools, terminates_excess=plan.terminates_excess)

    def cancel(self, call: Call) -> Mapping[str, Any]:
        """Handle CancelSpotFleetRequests."""
        done, failed = [], []
        for fleet_id in call.parameters["SpotFleetRequestIds"]:
            try:
                with self._store.lock:
                    fleet = self._store.get(fleet_id, "spot")
                    previous = _state(fleet)
            except ApiError as error:
                refusal = {"Code": "fleetRequestIdDoesNotExist", "Message": error.message}
                failed.append({"SpotFleetRequestId": fleet_id, "Error": refusal})
                continue
            if fleet.is_active:
                self._reconciler.end(fleet, terminates=bool(call.parameters["TerminateInstances"]))
            done.append({
                "SpotFleetRequestId": fleet_id, "CurrentSpotFleetRequestState": _state(fleet),
                "PreviousSpotFleetRequestState": previous,
            })  # fmt: skip
        return {"SuccessfulFleetRequests": done, "UnsuccessfulFleetRequests": failed}

    def describe(self, call: Call) -> Mapping[str, Any]:
        """Handle DescribeSpotFleetRequests."""
        with self._store.lock:
            named = [self._store.get(one, "spot") for one in call.parameters.get("SpotFleetRequestIds", [])]
            shown = [self._view(one) for one in named or self._store.of_kind("spot")]
        return page(shown, call.parameters, "SpotFleetRequestConfigs")

    def describe_instances(self, call: Call) -> Mapping[str, Any]:
        """Handle DescribeSpotFleetInstances: return the live instances."""
        with self._store.lock:
            fleet = self._store.get(call.parameters["SpotFleetRequestId"], "spot")
            return {"SpotFleetRequestId": fleet.fleet_id} | active_instances(fleet, call.parameters)

    def _check_role(self, arn: str) -> None:
        """Check the fleet's role, which Spot Fleet assumes to tag instances."""
        invalid = ApiError(_INVALID, "Parameter: SpotFleetRequestConfig.IamFleetRole is invalid.")
        try:
            role = self._clients.direct("iam").get_role(RoleName=arn.rpartition("/")[2] or "-")["Role"]
        except ClientError as error:
            raise invalid from error
        if role["Arn"] != arn or "spotfleet.amazonaws.com" not in str(role["AssumeRolePolicyDocument"]):
            raise invalid

    def _view(self, fleet: Fleet) -> dict[str, Any]:
        tags = self._record.tags(fleet.fleet_id)
        defaults = {
            "AllocationStrategy": "lowestPrice", "OnDemandAllocationStrategy": "lowestPrice", "Type": "maintain",
            "ExcessCapacityTerminationPolicy": "default", "OnDemandTargetCapacity": 0,
            "ReplaceUnhealthyInstances": False, "TerminateInstancesWithExpiration": False,
            "InstanceInterruptionBehavior": "terminate",
        }  # fmt: skip
        return {
            "SpotFleetRequestId": fleet.fleet_id, "SpotFleetRequestState": _state(fleet),
            "ActivityStatus": activity_status(fleet),
            "CreateTime": timestamp(fleet.created),
            "SpotFleetRequestConfig": defaults | fleet.request | {
                "FulfilledCapacity": float(len(fleet.live())),
                "OnDemandFulfilledCapacity": float(len(fleet.live("on-demand"))),
            },
            "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
        }  # fmt: skip


def _state(fleet: Fleet) -> str:
    return _STATES.get(fleet.state, fleet.state)
