"""What the registry schemas leave out about updates, for the types that deployments hold; each rule names its source.

The schemas' createOnlyProperties and conditionalCreateOnlyProperties are read in `replacement`, after these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stacks.changes.schemas import PropertyPath

Effect = Literal["in place", "replaces", "not supported"]
Resource = Mapping[str, Any]
_REFERENCE = "https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference"


@dataclass(frozen=True)
class UpdateRule:
    """What an update of a property does; `when`, given the old and the new resource, tells whether the rule applies."""

    effect: Effect
    source: str
    read: str = "2026-11-28"
    when: Callable[[Resource, Resource], bool] | None = None


def update_rule(type_name: str, path: PropertyPath, before: Resource, after: Resource) -> UpdateRule | None:
    """Return the rule for a changed property, that of the longest path that has one; None: the schema decides."""
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
        old, new = _property(before, name), _property(after, name)
        return isinstance(old, (int, str)) and isinstance(new, (int, str)) and int(new) < int(old)

    return when


def _replaces_group(before: Resource, after: Resource) -> bool:
    policy = after.get("UpdatePolicy", {}).get("AutoScalingReplacingUpdate", {})
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
    # The group keeps its identity and its update policy decides about the machines, unless it asks for a new group.
    "AWS::AutoScaling::AutoScalingGroup": {
        name: (
            UpdateRule("replaces", f"{_REFERENCE}/{_GROUP}.html", when=_replaces_group),
            UpdateRule("in place", f"{_REFERENCE}/{_GROUP}.html"),
        )
        for name in _GROUP_PARTS
    },
    # The schema lists nothing, and EC2 has no call that changes these.
    "AWS::EC2::Volume": {
        **_rules("aws-resource-ec2-volume", "not supported", "AvailabilityZone", "Encrypted", "KmsKeyId", "SnapshotId"),
        **_rules("aws-resource-ec2-volume", "not supported", "Size", when=_shrinks("Size")),
    },
    "AWS::EC2::VPC": _rules("aws-resource-ec2-vpc", "in place", "InstanceTenancy", when=_ends_dedicated_tenancy),
    "AWS::EC2::Subnet": _rules("aws-resource-ec2-subnet", "in place", "Ipv6CidrBlock"),
    # A type without handlers: of its nested properties the pages alone tell.
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
    # The update fails whatever the UpdateReplacePolicy says: no key is lost by an edit.
    "AWS::KMS::Key": _rules("aws-resource-kms-key", "not supported", "KeySpec", "KeyUsage", "MultiRegion", "Origin"),
    "AWS::Events::Rule": _rules("aws-resource-events-rule", "replaces", "EventBusName"),
    "AWS::SSM::Parameter": {"Tier": (UpdateRule("not supported", _TIERS, when=_leaves_advanced_tier),)},
}
