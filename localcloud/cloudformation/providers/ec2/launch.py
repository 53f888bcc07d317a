"""EC2 launch templates, placement groups and capacity reservations."""

from __future__ import annotations

from typing import Any

from localcloud.cloudformation.provider import ResourceContext
from localcloud.cloudformation.providers.base.resource import (
    Create,
    Delete,
    Describe,
    Properties,
    ResourceApi,
    changed,
    error_codes,
)
from localcloud.cloudformation.providers.base.tagging import tag_map
from localcloud.cloudformation.providers.ec2.resource import Ec2Resource


class LaunchTemplate(Ec2Resource):
    """AWS::EC2::LaunchTemplate.

    An update creates a version and does not change the default version, since references use LatestVersionNumber. The
    launch template receives only the tags in its own TagSpecifications, not the stack's tags.
    """

    type_name = "AWS::EC2::LaunchTemplate"
    create_only = frozenset({"LaunchTemplateName"})
    updatable = frozenset({"LaunchTemplateData", "VersionDescription", "TagSpecifications"})
    create_call = Create("create_launch_template", "LaunchTemplate.LaunchTemplateId")
    describe_call = Describe("describe_launch_templates", "LaunchTemplateIds", "LaunchTemplates.0", listed=True)
    delete_call = Delete("delete_launch_template", "LaunchTemplateId")
    not_found_codes = error_codes(
        "InvalidLaunchTemplateId.NotFound",
        "InvalidLaunchTemplateId.NotFoundException",
        "InvalidLaunchTemplateName.NotFoundException",
    )
    name_property = "LaunchTemplateName"
    name_length = 128
    tag_kind = "launch-template"
    tags_property = "TagSpecifications"

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Create a version if the data or the description differs."""
        if changed(old, new, "LaunchTemplateData", "VersionDescription"):
            api.call(
                "create_launch_template_version",
                LaunchTemplateId=physical_id,
                LaunchTemplateData=new["LaunchTemplateData"],
                VersionDescription=new.get("VersionDescription"),
            )

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ID and the version numbers, which are strings because templates reference them as strings."""
        versions = {name: str(found[name]) for name in ("LatestVersionNumber", "DefaultVersionNumber")}
        return {"LaunchTemplateId": found["LaunchTemplateId"], **versions}

    def name_of(self, physical_id: str) -> str:
        """Return the ID, which API calls use instead of the name."""
        return physical_id

    def template_tags(self, properties: Properties) -> dict[str, str]:
        """Return the tags in the TagSpecifications."""
        return _specified_tags(properties)

    def desired_tags(self, context: ResourceContext, properties: Properties) -> dict[str, str]:
        """Return the launch template's own tags, since stack tags do not apply to this type."""
        return self.template_tags(properties)


def _specified_tags(properties: Properties) -> dict[str, str]:
    specifications = properties.get("TagSpecifications") or []
    return {key: value for item in specifications for key, value in tag_map(item.get("Tags")).items()}


class PlacementGroup(Ec2Resource):
    """AWS::EC2::PlacementGroup. The physical ID is the name, which is always generated."""

    type_name = "AWS::EC2::PlacementGroup"
    create_only = frozenset({"Strategy", "SpreadLevel", "PartitionCount", "Tags"})
    describe_call = Describe("describe_placement_groups", "GroupNames", "PlacementGroups.0", listed=True)
    delete_call = Delete("delete_placement_group", "GroupName")
    not_found_codes = error_codes("InvalidPlacementGroup.Unknown")
    tag_kind = "placement-group"
    system_tags = False
    ready_states = ("State", frozenset({"available"}))
    deleted_states = ("State", frozenset({"deleted"}))

    def call_create(self, api: ResourceApi, properties: Properties) -> str:
        """Create the group with a generated name."""
        name = api.context.generated_name(maximum_length=255)
        arguments = {**self.arguments(api, properties), **self.creation_tags(api, properties)}
        api.call("create_placement_group", GroupName=name, **arguments)
        return name

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the name and the ID."""
        return {"GroupName": found["GroupName"], "GroupId": found.get("GroupId")}

    def retag(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Do nothing, since tags of this type can only be set at creation."""


class CapacityReservation(Ec2Resource):
    """AWS::EC2::CapacityReservation, which AWS bills from its creation."""

    type_name = "AWS::EC2::CapacityReservation"
    create_only = frozenset(
        {"InstanceType", "InstancePlatform", "AvailabilityZone", "AvailabilityZoneId", "Tenancy", "EbsOptimized"}
        | {"EphemeralStorage", "PlacementGroupArn", "OutPostArn"}
    )
    updatable = frozenset({"InstanceCount", "EndDate", "EndDateType", "InstanceMatchCriteria", "TagSpecifications"})
    unremovable = frozenset({"InstanceMatchCriteria"})
    create_call = Create("create_capacity_reservation", "CapacityReservation.CapacityReservationId")
    describe_call = Describe(
        "describe_capacity_reservations", "CapacityReservationIds", "CapacityReservations.0", listed=True
    )
    delete_call = Delete("cancel_capacity_reservation", "CapacityReservationId")
    not_found_codes = error_codes("InvalidCapacityReservationId.NotFound")
    tag_kind = "capacity-reservation"
    tags_property = "TagSpecifications"
    ready_states = ("State", frozenset({"active", "scheduled"}))
    deleted_states = ("State", frozenset({"cancelled", "expired"}))

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Update the instance count, end date and match criteria in a single call."""
        settings = changed(old, new, "InstanceCount", "EndDate", "EndDateType", "InstanceMatchCriteria")
        if "EndDateType" in settings or "EndDate" in settings:
            settings |= {"EndDateType": new.get("EndDateType") or "unlimited", "EndDate": new.get("EndDate")}
        if settings:
            api.call("modify_capacity_reservation", CapacityReservationId=physical_id, **settings)

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the reservation's state and instance counts."""
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

    def template_tags(self, properties: Properties) -> dict[str, str]:
        """Return the tags in the TagSpecifications."""
        return _specified_tags(properties)


PROVIDERS = (LaunchTemplate(), PlacementGroup(), CapacityReservation())
