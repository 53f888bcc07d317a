"""EC2 Fleet and Spot Fleet."""

from __future__ import annotations

from typing import Any

from ..provider import ResourceFailure
from .ec2_resource import Ec2Resource
from .resource import Create, Describe, Place, Properties, changed, codes
from .shapes import dig

_ENDED = frozenset({"deleted", "deleted_running", "deleted_terminating", "deleted-running", "deleted-terminating"})


class Ec2Fleet(Ec2Resource):
    """AWS::EC2::EC2Fleet; only its total capacity and excess policy change in place."""

    type_name = "AWS::EC2::EC2Fleet"
    create_only = frozenset(
        {"LaunchTemplateConfigs", "OnDemandOptions", "ReservedCapacityOptions", "ReplaceUnhealthyInstances"}
        | {"SpotOptions", "TagSpecifications", "TerminateInstancesWithExpiration", "Type", "ValidFrom", "ValidUntil"}
    )
    updatable = frozenset({"TargetCapacitySpecification", "ExcessCapacityTerminationPolicy", "Context"})
    undroppable = frozenset({"ExcessCapacityTerminationPolicy", "Context"})
    creates = Create("create_fleet", "FleetId")
    describes = Describe("describe_fleets", "FleetIds", "Fleets.0", listed=True)
    gone = codes("InvalidFleetId.NotFound")
    ready_states = ("FleetState", frozenset({"active", "modifying"}))
    gone_states = ("FleetState", _ENDED)

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Change the fleet's size or policy."""
        if changed(old, new, *self.updatable):
            at.call("modify_fleet", FleetId=physical_id, **{name: new.get(name) for name in self.updatable})

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the id."""
        return {"FleetId": found["FleetId"]}

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Delete the fleet with its instances."""
        if self.found(at, physical_id, properties) is None:
            return
        response = at.call("delete_fleets", FleetIds=[physical_id], TerminateInstances=True)
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
    renames = {"SpotFleetRequestConfigData": "SpotFleetRequestConfig"}
    creates = Create("request_spot_fleet", "SpotFleetRequestId")
    describes = Describe(
        "describe_spot_fleet_requests", "SpotFleetRequestIds", "SpotFleetRequestConfigs.0", listed=True
    )
    gone = codes("InvalidSpotFleetRequestId.NotFound")
    ready_states = ("SpotFleetRequestState", frozenset({"active", "modifying", "submitted"}))
    gone_states = (
        "SpotFleetRequestState",
        frozenset({"cancelled", "cancelled_running", "cancelled_terminating"}),
    )

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Change size, policy or launch templates."""
        before, after = (dig(side, "SpotFleetRequestConfigData") for side in (old, new))
        if before == after:
            return
        fixed = sorted(set(changed(before, after, *{*before, *after})) - set(_SPOT_UPDATABLE))
        if fixed:
            raise ResourceFailure(f"{self.type_name} cannot change in place: {', '.join(fixed)}")
        if dropped := sorted(set(before) - set(after)):
            raise ResourceFailure(f"{self.type_name}: {', '.join(dropped)} cannot be dropped in place")
        arguments = {name: after.get(name) for name in _SPOT_UPDATABLE}
        at.call("modify_spot_fleet_request", SpotFleetRequestId=physical_id, **arguments)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the id."""
        return {"Id": found["SpotFleetRequestId"]}

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Cancel the request with its instances."""
        if self.found(at, physical_id, properties) is None:
            return
        response = at.call("cancel_spot_fleet_requests", SpotFleetRequestIds=[physical_id], TerminateInstances=True)
        for failure in response.get("UnsuccessfulFleetRequests", []):
            if failure["Error"]["Code"] != "fleetRequestIdDoesNotExist":
                raise ResourceFailure(f"{physical_id}: {failure['Error']['Message']}")


PROVIDERS = (Ec2Fleet(), SpotFleet())
