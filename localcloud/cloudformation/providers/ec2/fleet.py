"""EC2 Fleet and Spot Fleet."""

from __future__ import annotations

from typing import Any

from localcloud.cloudformation.provider import ResourceFailure
from localcloud.cloudformation.providers.base.resource import (
    Create,
    Describe,
    Properties,
    ResourceApi,
    changed,
    error_codes,
)
from localcloud.cloudformation.providers.base.shapes import get_path
from localcloud.cloudformation.providers.ec2.resource import Ec2Resource

_DELETED = frozenset({"deleted", "deleted_running", "deleted_terminating", "deleted-running", "deleted-terminating"})


class Ec2Fleet(Ec2Resource):
    """AWS::EC2::EC2Fleet. Only the total capacity and the excess capacity policy can change in place."""

    type_name = "AWS::EC2::EC2Fleet"
    create_only = frozenset(
        {"LaunchTemplateConfigs", "OnDemandOptions", "ReservedCapacityOptions", "ReplaceUnhealthyInstances"}
        | {"SpotOptions", "TagSpecifications", "TerminateInstancesWithExpiration", "Type", "ValidFrom", "ValidUntil"}
    )
    updatable = frozenset({"TargetCapacitySpecification", "ExcessCapacityTerminationPolicy", "Context"})
    unremovable = frozenset({"ExcessCapacityTerminationPolicy", "Context"})
    create_call = Create("create_fleet", "FleetId")
    describe_call = Describe("describe_fleets", "FleetIds", "Fleets.0", listed=True)
    not_found_codes = error_codes("InvalidFleetId.NotFound")
    ready_states = ("FleetState", frozenset({"active", "modifying"}))
    deleted_states = ("FleetState", _DELETED)

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Update the fleet's capacity or excess capacity policy."""
        if changed(old, new, *self.updatable):
            api.call("modify_fleet", FleetId=physical_id, **{name: new.get(name) for name in self.updatable})

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ID."""
        return {"FleetId": found["FleetId"]}

    def call_delete(self, api: ResourceApi, physical_id: str, properties: Properties) -> None:
        """Delete the fleet and terminate its instances."""
        if self.find(api, physical_id, properties) is None:
            return
        response = api.call("delete_fleets", FleetIds=[physical_id], TerminateInstances=True)
        for failure in response.get("UnsuccessfulFleetDeletions", []):
            if failure["Error"]["Code"] not in {"fleetIdDoesNotExist", "fleetIdMalformed"}:
                raise ResourceFailure(f"{physical_id}: {failure['Error']['Message']}")


_SPOT_UPDATABLE = (
    *("TargetCapacity", "OnDemandTargetCapacity", "ExcessCapacityTerminationPolicy", "LaunchTemplateConfigs"),
    "Context",
)


class SpotFleet(Ec2Resource):
    """AWS::EC2::SpotFleet."""

    type_name = "AWS::EC2::SpotFleet"
    updatable = frozenset({"SpotFleetRequestConfigData"})
    parameter_names = {"SpotFleetRequestConfigData": "SpotFleetRequestConfig"}
    create_call = Create("request_spot_fleet", "SpotFleetRequestId")
    describe_call = Describe(
        "describe_spot_fleet_requests", "SpotFleetRequestIds", "SpotFleetRequestConfigs.0", listed=True
    )
    not_found_codes = error_codes("InvalidSpotFleetRequestId.NotFound")
    ready_states = ("SpotFleetRequestState", frozenset({"active", "modifying", "submitted"}))
    deleted_states = (
        "SpotFleetRequestState",
        frozenset({"cancelled", "cancelled_running", "cancelled_terminating"}),
    )

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Update the capacity, excess capacity policy or launch templates."""
        before, after = (get_path(side, "SpotFleetRequestConfigData") for side in (old, new))
        if before == after:
            return
        fixed = sorted(set(changed(before, after, *{*before, *after})) - set(_SPOT_UPDATABLE))
        if fixed:
            raise ResourceFailure(f"{self.type_name}: properties cannot change in place: {', '.join(fixed)}")
        if dropped := sorted(set(before) - set(after)):
            raise ResourceFailure(f"{self.type_name}: properties cannot be removed in place: {', '.join(dropped)}")
        arguments = {name: after.get(name) for name in _SPOT_UPDATABLE}
        api.call("modify_spot_fleet_request", SpotFleetRequestId=physical_id, **arguments)

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ID."""
        return {"Id": found["SpotFleetRequestId"]}

    def call_delete(self, api: ResourceApi, physical_id: str, properties: Properties) -> None:
        """Cancel the Spot Fleet request and terminate its instances."""
        if self.find(api, physical_id, properties) is None:
            return
        response = api.call("cancel_spot_fleet_requests", SpotFleetRequestIds=[physical_id], TerminateInstances=True)
        for failure in response.get("UnsuccessfulFleetRequests", []):
            if failure["Error"]["Code"] != "fleetRequestIdDoesNotExist":
                raise ResourceFailure(f"{physical_id}: {failure['Error']['Message']}")


PROVIDERS = (Ec2Fleet(), SpotFleet())
