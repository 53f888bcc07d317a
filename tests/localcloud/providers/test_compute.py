"""EC2 volumes, launch templates and fleets in moto, or against scripted responses where moto has no operation."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import boto3
import pytest

from localcloud.cloudformation.provider import ResourceFailure
from localcloud.cloudformation.providers import registry

Lifecycle = Callable[..., None]
TAGGED = {"Tags": [{"Key": "Name", "Value": "mine"}]}


def ec2(operation: str, **arguments: Any) -> Any:
    return getattr(boto3.client("ec2"), operation)(**arguments)


def tags(resource: str) -> dict[str, str]:
    found = ec2("describe_tags", Filters=[{"Name": "resource-id", "Values": [resource]}])["Tags"]
    return {tag["Key"]: tag["Value"] for tag in found}


RETAGGED = ({"Tags": None}, lambda identity: set(tags(identity)), {"team", "aws:cloudformation:stack-name"})


def test_launch_template(lifecycle: Lifecycle, context: Any, world: Any) -> None:
    def template(identity: str) -> Any:
        return ec2("describe_launch_templates", LaunchTemplateIds=[identity])["LaunchTemplates"][0]

    def versions(identity: str) -> Any:
        found = template(identity)
        return found["LatestVersionNumber"], found["DefaultVersionNumber"]

    data = {
        "ImageId": world.image,
        "InstanceType": "t3.micro",
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": "1",
            "InstanceMetadataTags": "enabled",
        },
        "BlockDeviceMappings": [
            {"DeviceName": "/dev/xvda", "Ebs": {"Encrypted": "true", "VolumeSize": "30", "VolumeType": "gp3"}}
        ],
        "InstanceInitiatedShutdownBehavior": "terminate",
        "IamInstanceProfile": {"Arn": "arn:aws:iam::123456789012:instance-profile/x"},
        "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "Name", "Value": "node"}]}],
        "UserData": base64.b64encode(b"#!/bin/sh\n").decode(),
    }
    labels = {"TagSpecifications": [{"ResourceType": "launch-template", "Tags": [{"Key": "a", "Value": "1"}]}]}
    lifecycle(
        "AWS::EC2::LaunchTemplate",
        {"LaunchTemplateName": "nodes", "LaunchTemplateData": data, **labels},
        ({}, versions, (1, 1)),
        ({}, tags, {"a": "1"}),
        ({"LaunchTemplateData": {**data, "InstanceType": "t3.small"}}, versions, (2, 1)),
        ({"VersionDescription": "third"}, versions, (3, 1)),
        ({"TagSpecifications": None}, tags, {}),
        ref=r"lt-\w+",
    )


def test_launch_template_returns_its_latest_version(context: Any) -> None:
    provider = registry()["AWS::EC2::LaunchTemplate"]
    old = {"LaunchTemplateData": {"InstanceType": "t3.micro"}}
    made = provider.create(context(), old)
    assert made.attributes["LatestVersionNumber"] == "1"
    again = provider.update(context(), made.physical_id, old, {"LaunchTemplateData": {"InstanceType": "t3.small"}})
    assert (again.attributes["LatestVersionNumber"], again.attributes["DefaultVersionNumber"]) == ("2", "1")
    found = ec2("describe_launch_template_versions", LaunchTemplateId=made.physical_id, Versions=["2"])
    assert found["LaunchTemplateVersions"][0]["LaunchTemplateData"]["InstanceType"] == "t3.small"


def test_unknown_launch_setting_fails(context: Any) -> None:
    wrong = {"LaunchTemplateData": {"InstanceTyp": "t3.micro", "MetadataOptions": {"Tokens": "required"}}}
    with pytest.raises(
        ResourceFailure, match=r"InstanceTyp: unknown setting; LaunchTemplateData.MetadataOptions.Tokens"
    ):
        registry()["AWS::EC2::LaunchTemplate"].create(context(), wrong)


def test_volume(lifecycle: Lifecycle) -> None:
    def volume(*names: str) -> Callable[[str], Any]:
        return lambda identity: tuple(ec2("describe_volumes", VolumeIds=[identity])["Volumes"][0][n] for n in names)

    lifecycle(
        "AWS::EC2::Volume",
        {"AvailabilityZone": "us-east-1a", "Size": "8", "VolumeType": "gp3", "Encrypted": "true", **TAGGED},
        ({"Size": 16}, volume("Size"), (16,)),
        ({"VolumeType": "io1", "Iops": 200}, volume("VolumeType"), ("io1",)),
        RETAGGED,
        ref=r"vol-\w+",
        tags=tags,
        unchanged={
            "Throughput": "moto's ModifyVolume does not store it",
            "MultiAttachEnabled": "moto's ModifyVolume does not store it",
        },
    )


def test_volume_zone_and_size_cannot_be_changed_or_removed(context: Any) -> None:
    provider = registry()["AWS::EC2::Volume"]
    old = {"AvailabilityZone": "us-east-1a", "Size": 8}
    made = provider.create(context(), old)
    with pytest.raises(ResourceFailure, match="cannot change in place: AvailabilityZone"):
        provider.update(context(), made.physical_id, old, {**old, "AvailabilityZone": "us-east-1b"})
    with pytest.raises(ResourceFailure, match="cannot be removed in place: Size"):
        provider.update(context(), made.physical_id, old, {"AvailabilityZone": "us-east-1a"})


def fleet_launch(world: Any) -> dict[str, Any]:
    return {
        "LaunchTemplateSpecification": {"LaunchTemplateId": world.template, "Version": "1"},
        "Overrides": [{"InstanceType": "t3.micro", "SubnetId": world.subnet()}],
    }


def test_ec2_fleet(lifecycle: Lifecycle, world: Any) -> None:
    target = {"TotalTargetCapacity": "1", "DefaultTargetCapacityType": "spot"}
    lifecycle(
        "AWS::EC2::EC2Fleet",
        {
            "Type": "maintain",
            "LaunchTemplateConfigs": [fleet_launch(world)],
            "TargetCapacitySpecification": target,
            "SpotOptions": {"AllocationStrategy": "price-capacity-optimized"},
        },
        ref=r"fleet-[\w-]+",
        unchanged=dict.fromkeys(
            registry()["AWS::EC2::EC2Fleet"].updatable, "moto has no ModifyFleet; a test below checks it"
        ),
    )


def test_ec2_fleet_changes_its_capacity(scripted: Any, boto: Any, context: Any) -> None:
    fleet = scripted(
        "ec2",
        {
            "modify_fleet": lambda **_: {"Return": True},
            "describe_fleets": lambda **_: {"Fleets": [{"FleetId": "fleet-1", "FleetState": "active"}]},
        },
    )
    old = {"LaunchTemplateConfigs": [], "TargetCapacitySpecification": {"TotalTargetCapacity": 1}}
    new = {**old, "TargetCapacitySpecification": {"TotalTargetCapacity": "3"}}
    registry()["AWS::EC2::EC2Fleet"].update(context(clients=boto(ec2=fleet)), "fleet-1", old, new)
    change = ("modify_fleet", {"FleetId": "fleet-1", "TargetCapacitySpecification": {"TotalTargetCapacity": 3}})
    assert change in fleet.calls


def test_spot_fleet(lifecycle: Lifecycle, world: Any) -> None:
    config = {
        "IamFleetRole": world.role_arn(),
        "AllocationStrategy": "priceCapacityOptimized",
        "TargetCapacity": 1,
        "LaunchTemplateConfigs": [fleet_launch(world)],
    }

    def capacity(identity: str) -> int:
        found = ec2("describe_spot_fleet_requests", SpotFleetRequestIds=[identity])["SpotFleetRequestConfigs"][0]
        number: int = found["SpotFleetRequestConfig"]["TargetCapacity"]
        return number

    lifecycle(
        "AWS::EC2::SpotFleet",
        {"SpotFleetRequestConfigData": config},
        ({"SpotFleetRequestConfigData": {**config, "TargetCapacity": 2}}, capacity, 2),
        ref=r"sfr-[\w-]+",
    )


def test_spot_fleet_strategy_cannot_change(world: Any, context: Any) -> None:
    provider = registry()["AWS::EC2::SpotFleet"]
    config = {
        "IamFleetRole": world.role_arn(),
        "TargetCapacity": 1,
        "LaunchTemplateConfigs": [fleet_launch(world)],
        "AllocationStrategy": "capacityOptimized",
    }
    old, new = (
        {"SpotFleetRequestConfigData": {**config, **more}} for more in ({}, {"AllocationStrategy": "lowestPrice"})
    )
    made = provider.create(context(), old)
    with pytest.raises(ResourceFailure, match="cannot change in place: AllocationStrategy"):
        provider.update(context(), made.physical_id, old, new)


def test_placement_group(lifecycle: Lifecycle, scripted: Any, boto: Any) -> None:
    groups: dict[str, dict[str, Any]] = {}

    def create(**arguments: Any) -> Any:
        groups[arguments["GroupName"]] = {**arguments, "GroupId": "pg-1", "State": "available"}
        return {}

    def describe(**arguments: Any) -> Any:
        return {"PlacementGroups": [groups[name] for name in arguments["GroupNames"] if name in groups]}

    client = scripted(
        "ec2",
        {
            "create_placement_group": create,
            "describe_placement_groups": describe,
            "delete_placement_group": lambda **arguments: groups.pop(arguments["GroupName"], {}) and {},
        },
    )
    lifecycle(
        "AWS::EC2::PlacementGroup",
        {"Strategy": "cluster", **TAGGED},
        ref=r"Demo-Thing-\w+",
        tags=lambda name: {t["Key"]: t["Value"] for t in groups[name]["TagSpecifications"][0]["Tags"]},
        clients=boto(ec2=client),
    )


def test_capacity_reservation(lifecycle: Lifecycle, scripted: Any, boto: Any) -> None:
    held: dict[str, Any] = {}

    def create(**arguments: Any) -> Any:
        counts = {"AvailableInstanceCount": 1, "TotalInstanceCount": arguments["InstanceCount"]}
        rest = dict.fromkeys(("CapacityReservationArn", "OwnerId", "ReservationType", "DeliveryPreference"), "x")
        dates = {"StartDate": stamp, "CreateDate": stamp}
        more = {"CapacityAllocations": [], "CommitmentInfo": {}, "CapacityReservationFleetId": "crf-1"}
        held.update(arguments, CapacityReservationId="cr-1", State="active", **counts, **rest, **dates, **more)
        return {"CapacityReservation": held}

    stamp = (
        ec2("describe_volumes")["ResponseMetadata"]
        and boto3.client("ec2").create_volume(AvailabilityZone="us-east-1a", Size=1)["CreateTime"]
    )
    client = scripted(
        "ec2",
        {
            "create_capacity_reservation": create,
            "describe_capacity_reservations": lambda **_: {"CapacityReservations": [held]},
            "modify_capacity_reservation": lambda **arguments: held.update(arguments) or {},
            "cancel_capacity_reservation": lambda **_: held.update(State="cancelled") or {},
            "create_tags": lambda **arguments: held.update(now=arguments["Tags"]) or {},
            "delete_tags": lambda **arguments: held.update(dropped=arguments["Tags"]) or {},
        },
    )
    own = [{"ResourceType": "capacity-reservation", "Tags": [{"Key": "a", "Value": "1"}]}]
    lifecycle(
        "AWS::EC2::CapacityReservation",
        {
            "InstanceType": "p5.48xlarge",
            "InstancePlatform": "Linux/UNIX",
            "AvailabilityZone": "us-east-1a",
            "InstanceCount": "2",
            "InstanceMatchCriteria": "targeted",
            "TagSpecifications": own,
        },
        ({"InstanceCount": 4}, lambda _: held["InstanceCount"], 4),
        ({"InstanceMatchCriteria": "open"}, lambda _: held["InstanceMatchCriteria"], "open"),
        (
            {"EndDate": "2027-01-01T00:00:00Z", "EndDateType": "limited"},
            lambda _: (held["EndDate"], held["EndDateType"]),
            ("2027-01-01T00:00:00Z", "limited"),
        ),
        ({"EndDate": None, "EndDateType": None}, lambda _: held["EndDateType"], "unlimited"),
        ({"TagSpecifications": None}, lambda _: held["dropped"], [{"Key": "a"}]),
        ref="cr-1",
        tags=lambda _: {t["Key"]: t["Value"] for t in held["TagSpecifications"][0]["Tags"]},
        clients=boto(ec2=client),
    )
