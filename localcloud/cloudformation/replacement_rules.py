"""What the registry schemas leave out about updates: properties that replace, stay, or cannot be changed at all.

Not here: what the schemas themselves say (`schemas`). Each rule names the page it was taken from; the verdicts are
"in_place", "replace", "conditional" (decided by `when`) and "not_supported" (the update fails, as it does on AWS).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["in_place", "replace", "conditional", "not_supported"]
Properties = Mapping[str, Any]

_PAGES = "https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference"


@dataclass(frozen=True)
class Rule:
    """How a change of one property is carried out.

    `when` decides a "conditional" rule: it gets the old and the new resource (Properties and attributes such as
    UpdatePolicy, by their template names) and tells whether the resource is replaced.
    """

    verdict: Verdict
    source: str
    seen: str = "2026-11-28"
    when: Callable[[Mapping[str, Any], Mapping[str, Any]], bool] | None = None


def rule(type_name: str, path: tuple[str, ...]) -> Rule | None:
    """Return the rule for a property path of a type, by the longest prefix that has one."""
    of_type = RULES.get(type_name, {})
    for length in range(len(path), 0, -1):
        found = of_type.get("/".join(path[:length]))
        if found is not None:
            return found
    return None


def rule_paths(type_name: str) -> list[tuple[str, ...]]:
    """Return the property paths of a type that have rules."""
    return [tuple(path.split("/")) for path in RULES.get(type_name, {})]


def _replacing_update(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    policy = new.get("UpdatePolicy", {}).get("AutoScalingReplacingUpdate", {})
    return str(policy.get("WillReplace", "false")).lower() == "true"


def _tenancy_narrows(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Only from dedicated to default is there a way without a new VPC."""
    tenancies = [item.get("Properties", {}).get("InstanceTenancy", "default") for item in (old, new)]
    return tenancies != ["dedicated", "default"]


def _host_tenancy(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    tenancies = {item.get("Properties", {}).get("Tenancy", "default") for item in (old, new)}
    return not tenancies <= {"dedicated", "host"}


def _devices_beyond_termination(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """A change of nothing but DeleteOnTermination is made on the running instance."""

    def devices(item: Mapping[str, Any]) -> list[Any]:
        mappings = item.get("Properties", {}).get("BlockDeviceMappings", [])
        return [
            {**m, "Ebs": {k: v for k, v in m["Ebs"].items() if k != "DeleteOnTermination"}} if "Ebs" in m else m
            for m in mappings
        ]

    return devices(old) != devices(new)


def _page(name: str, verdict: Verdict, *properties: str, **more: Any) -> dict[str, Rule]:
    return {prop: Rule(verdict, f"{_PAGES}/{name}.html", **more) for prop in properties}


_GROUP = "aws-resource-autoscaling-autoscalinggroup"
_INSTANCE = "aws-resource-ec2-instance"
_FSX = "aws-resource-fsx-filesystem"

RULES: Mapping[str, Mapping[str, Rule]] = {
    # The schema lists nothing; the API has no call that changes these.
    "AWS::EC2::Volume": _page(
        "aws-resource-ec2-volume", "not_supported", "AvailabilityZone", "Encrypted", "KmsKeyId", "SnapshotId"
    ),
    # A group changes these in place, unless its update policy asks for a new group.
    "AWS::AutoScaling::AutoScalingGroup": _page(
        _GROUP,
        "conditional",
        "LaunchConfigurationName",
        "LaunchTemplate",
        "MixedInstancesPolicy",
        "VPCZoneIdentifier",
        when=_replacing_update,
    ),
    # "Some interruptions" for instances with an EBS root, and the local cloud has no others.
    "AWS::EC2::Instance": {
        **_page(
            _INSTANCE,
            "in_place",
            "AdditionalInfo",
            "Affinity",
            "EbsOptimized",
            "HostId",
            "InstanceType",
            "KernelId",
            "PrivateDnsNameOptions",
            "RamdiskId",
            "SecurityGroupIds",
            "UserData",
        ),
        **_page(_INSTANCE, "conditional", "Tenancy", when=_host_tenancy),
        **_page(_INSTANCE, "conditional", "BlockDeviceMappings", when=_devices_beyond_termination),
    },
    "AWS::EC2::VPC": _page("aws-resource-ec2-vpc", "conditional", "InstanceTenancy", when=_tenancy_narrows),
    "AWS::EC2::Subnet": _page("aws-resource-ec2-subnet", "in_place", "Ipv6CidrBlock"),
    # A legacy type without handlers: its nested create-only properties are told by the documentation only.
    "AWS::FSx::FileSystem": {
        **_page(_FSX, "replace", "FileSystemTypeVersion", "StorageType"),
        **_page(
            "aws-properties-fsx-filesystem-lustreconfiguration",
            "replace",
            "LustreConfiguration/DeploymentType",
            "LustreConfiguration/DriveCacheType",
            "LustreConfiguration/EfaEnabled",
            "LustreConfiguration/ExportPath",
            "LustreConfiguration/ImportPath",
            "LustreConfiguration/ImportedFileChunkSize",
        ),
    },
    # "The update request fails, regardless of the value of the UpdateReplacePolicy": a key is never lost by an edit.
    "AWS::KMS::Key": _page("aws-resource-kms-key", "not_supported", "KeySpec", "KeyUsage", "MultiRegion", "Origin"),
    # Policies are written anew under a changed name; the schema's empty list is right and is said here on purpose.
    "AWS::IAM::Policy": _page("aws-resource-iam-policy", "in_place", "PolicyName", "Roles", "Users", "Groups"),
    "AWS::IAM::InstanceProfile": _page("aws-resource-iam-instanceprofile", "in_place", "Roles"),
    "AWS::DynamoDB::Table": _page("aws-resource-dynamodb-table", "replace", "KeySchema"),
    "AWS::Events::Rule": _page("aws-resource-events-rule", "replace", "EventBusName"),
    "AWS::SNS::Subscription": _page("aws-resource-sns-subscription", "in_place", "Region"),
    "AWS::CloudFormation::WaitCondition": _page(
        "aws-resource-cloudformation-waitcondition", "not_supported", "Count", "Handle", "Timeout"
    ),
    "AWS::CloudFormation::WaitConditionHandle": {},
}
