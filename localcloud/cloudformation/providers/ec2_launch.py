"""What EC2 launches by: launch templates, placement groups, capacity reservations."""

from __future__ import annotations

from typing import Any

from ..provider import ResourceContext
from .ec2_resource import Ec2Resource
from .resource import Create, Delete, Describe, Place, Properties, changed, codes
from .tagging import tag_map


class LaunchTemplate(Ec2Resource):
    """AWS::EC2::LaunchTemplate.

    An update makes a new version and leaves the default version where it is: who uses the template asks for
    LatestVersionNumber. Stack tags do not reach the template; only its own TagSpecifications do.
    """

    type_name = "AWS::EC2::LaunchTemplate"
    create_only = frozenset({"LaunchTemplateName"})
    updatable = frozenset({"LaunchTemplateData", "VersionDescription", "TagSpecifications"})
    creates = Create("create_launch_template", "LaunchTemplate.LaunchTemplateId")
    describes = Describe("describe_launch_templates", "LaunchTemplateIds", "LaunchTemplates.0", listed=True)
    deletes = Delete("delete_launch_template", "LaunchTemplateId")
    gone = codes(
        "InvalidLaunchTemplateId.NotFound",
        "InvalidLaunchTemplateId.NotFoundException",
        "InvalidLaunchTemplateName.NotFoundException",
    )
    name_property = "LaunchTemplateName"
    name_length = 128
    tag_kind = "launch-template"
    tags_property = "TagSpecifications"

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Make a new version when the data or its description differ."""
        if changed(old, new, "LaunchTemplateData", "VersionDescription"):
            at.call(
                "create_launch_template_version",
                LaunchTemplateId=physical_id,
                LaunchTemplateData=new["LaunchTemplateData"],
                VersionDescription=new.get("VersionDescription"),
            )

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the id, and the version numbers as text, as templates pass them on."""
        versions = {name: str(found[name]) for name in ("LatestVersionNumber", "DefaultVersionNumber")}
        return {"LaunchTemplateId": found["LaunchTemplateId"], **versions}

    def name_of(self, physical_id: str) -> str:
        """Return the id: the calls want that, not the name."""
        return physical_id

    def own_tags(self, properties: Properties) -> dict[str, str]:
        """Return the tags of the specifications."""
        return _specified_tags(properties)

    def wanted_tags(self, context: ResourceContext, properties: Properties) -> dict[str, str]:
        """Return the template's own tags only: the type is not taggable by stacks."""
        return self.own_tags(properties)


def _specified_tags(properties: Properties) -> dict[str, str]:
    specifications = properties.get("TagSpecifications") or []
    return {key: value for item in specifications for key, value in tag_map(item.get("Tags")).items()}


class PlacementGroup(Ec2Resource):
    """AWS::EC2::PlacementGroup; its id is its name, which templates cannot choose."""

    type_name = "AWS::EC2::PlacementGroup"
    create_only = frozenset({"Strategy", "SpreadLevel", "PartitionCount", "Tags"})
    describes = Describe("describe_placement_groups", "GroupNames", "PlacementGroups.0", listed=True)
    deletes = Delete("delete_placement_group", "GroupName")
    gone = codes("InvalidPlacementGroup.Unknown")
    tag_kind = "placement-group"
    system_tags = False
    ready_states = ("State", frozenset({"available"}))
    gone_states = ("State", frozenset({"deleted"}))

    def make(self, at: Place, properties: Properties) -> str:
        """Create the group under a generated name."""
        name = at.context.generated_name(maximum_length=255)
        arguments = {**self.arguments(at, properties), **self.creation_tags(at, properties)}
        at.call("create_placement_group", GroupName=name, **arguments)
        return name

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return name and id."""
        return {"GroupName": found["GroupName"], "GroupId": found.get("GroupId")}

    def retag(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Leave the tags: they are create-only for this type."""


class CapacityReservation(Ec2Resource):
    """AWS::EC2::CapacityReservation; it bills from the moment that it is made."""

    type_name = "AWS::EC2::CapacityReservation"
    create_only = frozenset(
        {"InstanceType", "InstancePlatform", "AvailabilityZone", "AvailabilityZoneId", "Tenancy", "EbsOptimized"}
        | {"EphemeralStorage", "PlacementGroupArn", "OutPostArn"}
    )
    updatable = frozenset({"InstanceCount", "EndDate", "EndDateType", "InstanceMatchCriteria", "TagSpecifications"})
    undroppable = frozenset({"InstanceMatchCriteria"})
    creates = Create("create_capacity_reservation", "CapacityReservation.CapacityReservationId")
    describes = Describe(
        "describe_capacity_reservations", "CapacityReservationIds", "CapacityReservations.0", listed=True
    )
    deletes = Delete("cancel_capacity_reservation", "CapacityReservationId")
    gone = codes("InvalidCapacityReservationId.NotFound")
    tag_kind = "capacity-reservation"
    tags_property = "TagSpecifications"
    ready_states = ("State", frozenset({"active", "scheduled"}))
    gone_states = ("State", frozenset({"cancelled", "expired"}))

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Change size, end and matching in one call."""
        settings = changed(old, new, "InstanceCount", "EndDate", "EndDateType", "InstanceMatchCriteria")
        if "EndDateType" in settings or "EndDate" in settings:
            settings |= {"EndDateType": new.get("EndDateType") or "unlimited", "EndDate": new.get("EndDate")}
        if settings:
            at.call("modify_capacity_reservation", CapacityReservationId=physical_id, **settings)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the reservation's state and counts."""
        names: tuple[str, ...] = (
            "AvailableInstanceCount",
            "TotalInstanceCount",
            "CapacityReservationArn",
            "State",
            "OwnerId",
        )
        names += ("ReservationType", "CapacityReservationFleetId", "DeliveryPreference")
        dates: dict[str, Any] = {name: found[name].isoformat() for name in ("StartDate", "CreateDate") if name in found}
        rest: dict[str, Any] = {name: found.get(name) for name in (*names, "CapacityAllocations", "CommitmentInfo")}
        rest["CapacityAllocationSet"] = rest.pop("CapacityAllocations")
        return {"Id": found["CapacityReservationId"], **rest, **dates}

    def own_tags(self, properties: Properties) -> dict[str, str]:
        """Return the tags of the specifications."""
        return _specified_tags(properties)


PROVIDERS = (LaunchTemplate(), PlacementGroup(), CapacityReservation())
