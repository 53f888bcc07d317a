"""Describes the effects of property updates that the registry schemas do not cover.

Each rule includes its source URL. The verdicts are "in_place", "replace", "conditional" (decided by `when`) and
"not_supported" (the update fails, as on AWS).
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
    """Effect of changing a property.

    `when` decides a "conditional" rule. It receives the old and new resources (Properties and attributes such as
    UpdatePolicy, under their template names) and returns True if the resource is replaced.
    """

    verdict: Verdict
    source: str
    seen: str = "2026-11-28"
    when: Callable[[Mapping[str, Any], Mapping[str, Any]], bool] | None = None


def rule(type_name: str, path: tuple[str, ...]) -> Rule | None:
    """Return the rule for the longest matching prefix of a property path, or None."""
    of_type = RULES.get(type_name, {})
    for length in range(len(path), 0, -1):
        found = of_type.get("/".join(path[:length]))
        if found is not None:
            return found
    return None


def rule_paths(type_name: str) -> list[tuple[str, ...]]:
    """Return the property paths for which a type has rules."""
    return [tuple(path.split("/")) for path in RULES.get(type_name, {})]


def _tenancy_replaces(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return True unless the tenancy changes from dedicated to default, the only change possible in place."""
    tenancies = [item.get("Properties", {}).get("InstanceTenancy", "default") for item in (old, new)]
    return tenancies != ["dedicated", "default"]


def _page(name: str, verdict: Verdict, *properties: str, **more: Any) -> dict[str, Rule]:
    return {prop: Rule(verdict, f"{_PAGES}/{name}.html", **more) for prop in properties}


_FSX = "aws-resource-fsx-filesystem"

RULES: Mapping[str, Mapping[str, Rule]] = {
    # The schema omits these properties, and no API operation changes them.
    "AWS::EC2::Volume": _page(
        "aws-resource-ec2-volume", "not_supported", "AvailabilityZone", "Encrypted", "KmsKeyId", "SnapshotId"
    ),
    # These are updated in place, because the provider rejects update policies that replace the group.
    "AWS::AutoScaling::AutoScalingGroup": _page(
        "aws-resource-autoscaling-autoscalinggroup",
        "in_place",
        "LaunchConfigurationName",
        "LaunchTemplate",
        "MixedInstancesPolicy",
        "VPCZoneIdentifier",
    ),
    "AWS::EC2::VPC": _page("aws-resource-ec2-vpc", "conditional", "InstanceTenancy", when=_tenancy_replaces),
    "AWS::EC2::Subnet": _page("aws-resource-ec2-subnet", "in_place", "Ipv6CidrBlock"),
    # This legacy type does not have handlers. Only the documentation lists its nested create-only properties.
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
    # "The update request fails, regardless of the value of the UpdateReplacePolicy": an edit never deletes a key.
    "AWS::KMS::Key": _page("aws-resource-kms-key", "not_supported", "KeySpec", "KeyUsage", "MultiRegion", "Origin"),
    # A renamed policy is stored under the new name. The schema's empty list is correct; this rule makes it explicit.
    "AWS::IAM::Policy": _page("aws-resource-iam-policy", "in_place", "PolicyName", "Roles", "Users", "Groups"),
    "AWS::IAM::InstanceProfile": _page("aws-resource-iam-instanceprofile", "in_place", "Roles"),
    "AWS::Events::Rule": _page("aws-resource-events-rule", "replace", "EventBusName"),
    "AWS::SNS::Subscription": _page("aws-resource-sns-subscription", "in_place", "Region"),
}
