"""Update effects that the registry schemas do not define. Each rule names its source.

`differences` applies these rules before the createOnlyProperties and conditionalCreateOnlyProperties of the schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stacks.changes.templates.template_set import PropertyPath
from stacks.changes.templates.values import mapping, number

Effect = Literal["in place", "replaces", "not supported"]
Resource = Mapping[str, Any]
_REFERENCE = "https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference"


@dataclass(frozen=True)
class UpdateRule:
    """The effect of updating a property. The rule applies if `when` returns True for the old and new resources."""

    effect: Effect
    source: str
    read: str = "2026-11-28"
    when: Callable[[Resource, Resource], bool] | None = None


def update_rule(type_name: str, path: PropertyPath, before: Resource, after: Resource) -> UpdateRule | None:
    """Return the rule with the longest path that matches a changed property, or None if the schema applies."""
    of_type = RULES.get(type_name, {})
    for length in range(len(path), 0, -1):
        for rule in of_type.get("/".join(path[:length]), ()):
            if rule.when is None or rule.when(before, after):
                return rule
    return None


def _property(resource: Resource, name: str, default: Any = None) -> Any:
    return resource.get("Properties", {}).get(name, default)


def _shrinks(name: str) -> Callable[[Resource, Resource], bool]:
    def when(before: Resource, after: Resource) -> bool:
        old, new = number(_property(before, name)), number(_property(after, name))
        return old is not None and new is not None and new < old

    return when


def _replaces_group(before: Resource, after: Resource) -> bool:
    policy = mapping(mapping(after.get("UpdatePolicy")).get("AutoScalingReplacingUpdate"))
    return str(policy.get("WillReplace", False)).lower() == "true"


def _ends_dedicated_tenancy(before: Resource, after: Resource) -> bool:
    tenancies = [_property(one, "InstanceTenancy", "default") for one in (before, after)]
    return bool(tenancies == ["dedicated", "default"])


def _leaves_advanced_tier(before: Resource, after: Resource) -> bool:
    return bool(_property(before, "Tier") == "Advanced" and _property(after, "Tier", "Standard") == "Standard")


def _rules(page: str, effect: Effect, *names: str, **more: Any) -> dict[str, tuple[UpdateRule, ...]]:
    return {name: (UpdateRule(effect, f"{_REFERENCE}/{page}.html", **more),) for name in names}


_GROUP = "aws-resource-autoscaling-autoscalinggroup"
_GROUP_PARTS = ("LaunchConfigurationName", "LaunchTemplate", "MixedInstancesPolicy", "VPCZoneIdentifier")
_LUSTRE = "aws-properties-fsx-filesystem-lustreconfiguration"
_TIERS = "https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-advanced-parameters.html"

RULES: Mapping[str, Mapping[str, tuple[UpdateRule, ...]]] = {
    # The group is kept unless its update policy requests a new one. The policy determines what happens to instances.
    "AWS::AutoScaling::AutoScalingGroup": {
        name: (
            UpdateRule("replaces", f"{_REFERENCE}/{_GROUP}.html", when=_replaces_group),
            UpdateRule("in place", f"{_REFERENCE}/{_GROUP}.html"),
        )
        for name in _GROUP_PARTS
    },
    # The schema does not list these properties, and EC2 does not provide a call to change them.
    "AWS::EC2::Volume": {
        **_rules("aws-resource-ec2-volume", "not supported", "AvailabilityZone", "Encrypted", "KmsKeyId", "SnapshotId"),
        **_rules("aws-resource-ec2-volume", "not supported", "Size", when=_shrinks("Size")),
    },
    "AWS::EC2::VPC": _rules("aws-resource-ec2-vpc", "in place", "InstanceTenancy", when=_ends_dedicated_tenancy),
    "AWS::EC2::Subnet": _rules("aws-resource-ec2-subnet", "in place", "Ipv6CidrBlock"),
    # This type does not have handlers, so only its documentation covers nested properties.
    "AWS::FSx::FileSystem": {
        **_rules("aws-resource-fsx-filesystem", "replaces", "FileSystemTypeVersion", "StorageType"),
        **_rules("aws-resource-fsx-filesystem", "not supported", "StorageCapacity", when=_shrinks("StorageCapacity")),
        **_rules(
            _LUSTRE,
            "replaces",
            "LustreConfiguration/DeploymentType",
            "LustreConfiguration/DriveCacheType",
            "LustreConfiguration/EfaEnabled",
            "LustreConfiguration/ExportPath",
            "LustreConfiguration/ImportPath",
            "LustreConfiguration/ImportedFileChunkSize",
        ),
    },
    # The update fails regardless of the UpdateReplacePolicy, because an edit cannot delete a key.
    "AWS::KMS::Key": _rules("aws-resource-kms-key", "not supported", "KeySpec", "KeyUsage", "MultiRegion", "Origin"),
    "AWS::Events::Rule": _rules("aws-resource-events-rule", "replaces", "EventBusName"),
    "AWS::SSM::Parameter": {"Tier": (UpdateRule("not supported", _TIERS, when=_leaves_advanced_tier),)},
}
