"""Property changes that replace a resource, update it in place, or fail."""

from __future__ import annotations

from typing import Any

import pytest

from localcloud.cloudformation.providers import registry
from localcloud.cloudformation.resource_types import (
    has_attribute,
    has_same_name,
    is_taggable,
    required_properties,
    schema,
)
from localcloud.cloudformation.templates.intrinsics import Unknown
from localcloud.cloudformation.updates.replacement import property_changes, replaces
from localcloud.cloudformation.updates.replacement_rules import RULES

GROUP = "AWS::AutoScaling::AutoScalingGroup"


def verdict(type_name: str, old: dict[str, Any], new: dict[str, Any], **attributes: Any) -> str:
    changes = property_changes(type_name, {"Properties": old}, {"Properties": new, **attributes})
    assert changes
    problems = [change.problem for change in changes if change.problem]
    return "not_supported" if problems else replaces(changes)


def target(kind: str, capacity: int) -> dict[str, Any]:
    return {"TargetCapacitySpecification": {"DefaultTargetCapacityType": kind, "TotalTargetCapacity": capacity}}


@pytest.mark.parametrize(
    ("type_name", "old", "new", "expected"),
    [
        ("AWS::S3::Bucket", {"BucketName": "a"}, {"BucketName": "b"}, "True"),
        ("AWS::S3::Bucket", {}, {"VersioningConfiguration": {"Status": "Enabled"}}, "False"),
        ("AWS::IAM::Role", {"Path": "/"}, {"Path": "/x/"}, "True"),
        ("AWS::IAM::Role", {"Description": "a"}, {"Description": "b"}, "False"),
        ("AWS::IAM::Policy", {"PolicyName": "a"}, {"PolicyName": "b"}, "False"),
        ("AWS::IAM::ManagedPolicy", {"Description": "a"}, {"Description": "b"}, "True"),
        ("AWS::IAM::InstanceProfile", {"Roles": ["a"]}, {"Roles": ["b"]}, "False"),
        ("AWS::EC2::Volume", {"AvailabilityZone": "a"}, {"AvailabilityZone": "b"}, "not_supported"),
        ("AWS::EC2::Volume", {"Size": 1}, {"Size": 2}, "False"),
        ("AWS::KMS::Key", {"KeySpec": "SYMMETRIC_DEFAULT"}, {"KeySpec": "RSA_2048"}, "not_supported"),
        ("AWS::KMS::Key", {"Description": "a"}, {"Description": "b"}, "False"),
        (GROUP, {"LaunchTemplate": {"Version": "1"}}, {"LaunchTemplate": {"Version": "2"}}, "False"),
        (GROUP, {"AutoScalingGroupName": "a"}, {"AutoScalingGroupName": "b"}, "True"),
        (GROUP, {"VPCZoneIdentifier": ["a"]}, {"VPCZoneIdentifier": ["b"]}, "False"),
        ("AWS::EC2::EC2Fleet", target("spot", 1), target("spot", 2), "False"),
        ("AWS::EC2::EC2Fleet", target("spot", 1), target("on-demand", 1), "True"),
        ("AWS::EC2::EC2Fleet", {"LaunchTemplateConfigs": [1]}, {"LaunchTemplateConfigs": [2]}, "True"),
        ("AWS::EC2::LaunchTemplate", {"LaunchTemplateData": {"a": 1}}, {"LaunchTemplateData": {"a": 2}}, "False"),
        ("AWS::EC2::VPC", {"InstanceTenancy": "dedicated"}, {"InstanceTenancy": "default"}, "False"),
        ("AWS::EC2::VPC", {"InstanceTenancy": "default"}, {"InstanceTenancy": "dedicated"}, "True"),
        (
            "AWS::FSx::FileSystem",
            {"LustreConfiguration": {"DeploymentType": "SCRATCH_2"}},
            {"LustreConfiguration": {"DeploymentType": "PERSISTENT_2"}},
            "True",
        ),
        (
            "AWS::FSx::FileSystem",
            {"LustreConfiguration": {"DeploymentType": "A", "WeeklyMaintenanceStartTime": "1:00:00"}},
            {"LustreConfiguration": {"DeploymentType": "A", "WeeklyMaintenanceStartTime": "2:00:00"}},
            "False",
        ),
        ("AWS::FSx::FileSystem", {"SubnetIds": ["a"]}, {"SubnetIds": ["b"]}, "True"),
        ("Custom::Thing", {"ServiceToken": "a"}, {"ServiceToken": "b"}, "True"),
        ("Custom::Thing", {"Anything": "a"}, {"Anything": "b"}, "False"),
    ],
)
def test_verdicts(type_name, old, new, expected):
    assert verdict(type_name, old, new) == expected


def test_unknown_value_may_replace():
    assert verdict("AWS::S3::BucketPolicy", {"Bucket": "a"}, {"Bucket": Unknown("Bucket")}) == "Conditional"
    assert verdict("AWS::S3::Bucket", {"Tags": []}, {"Tags": [{"Key": "k", "Value": Unknown("x")}]}) == "False"


def test_every_rule_has_a_property_of_its_type_and_a_source():
    for type_name, rules in RULES.items():
        for path, rule in rules.items():
            assert path.split("/")[0] in schema(type_name)["properties"], f"{type_name} {path}"
            assert rule.source.startswith("https://docs.aws.amazon.com/AWSCloudFormation/")
            assert (rule.when is not None) == (rule.verdict == "conditional"), f"{type_name} {path}"


def test_every_conditional_property_has_a_rule():
    undecided = {
        f"{type_name} {pointer}"
        for type_name in registry()
        for pointer in schema(type_name).get("conditionalCreateOnlyProperties", [])
        if pointer.removeprefix("/properties/") not in RULES.get(type_name, {})
    }
    # A function's durability cannot change after its creation.
    assert undecided == {"AWS::Lambda::Function /properties/DurableConfig"}


def test_facts_of_the_registry_schemas():
    assert required_properties("AWS::SSM::Parameter") == ["Value", "Type"]
    assert has_attribute("AWS::EC2::LaunchTemplate", "LatestVersionNumber")
    assert not has_attribute("AWS::EC2::LaunchTemplate", "Colour")
    assert has_attribute("Custom::Thing", "Whatever")
    assert has_same_name("AWS::IAM::Role", {"RoleName": "a"}, {"RoleName": "a"})
    assert not has_same_name("AWS::IAM::Role", {}, {})
    assert not has_same_name("AWS::EC2::VPC", {"CidrBlock": "a"}, {"CidrBlock": "a"})
    assert is_taggable("AWS::S3::Bucket")
    assert not is_taggable("AWS::Lambda::Permission")
