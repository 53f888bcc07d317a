"""Tells whether a changed property is changed in place or replaces the resource.

The registry schemas (shipped with cfn-lint) say it through createOnlyProperties; the tables here say what they leave out.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

Verdict = Literal["Never", "Always", "Conditionally"]

# Properties that replace although the schema does not say so.
# Source: "Update requires" in https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/ (2026-11).
REPLACES: Mapping[str, tuple[str, ...]] = {
    "AWS::EC2::Volume": ("AvailabilityZone", "Encrypted", "KmsKeyId", "SnapshotId"),
    "AWS::FSx::FileSystem": ("FileSystemType", "KmsKeyId", "SubnetIds", "SecurityGroupIds", "BackupId"),
    "AWS::IAM::Policy": (),
    "AWS::CloudFormation::WaitCondition": ("Count", "Handle", "Timeout"),
    "AWS::SSM::Parameter": ("Name",),
}
# Properties whose change replaces in some cases only, and how to tell.
CONDITIONAL: Mapping[str, tuple[str, ...]] = {
    "AWS::EC2::Instance": ("InstanceType", "UserData", "EbsOptimized", "SecurityGroupIds"),
    "AWS::RDS::DBInstance": ("Engine", "Port"),
}


@lru_cache(maxsize=None)
def schema(type_name: str) -> Mapping[str, Any]:
    """Return the registry schema of a type, or an empty one for types that have none."""
    from cfnlint.schema.exceptions import ResourceNotFoundError
    from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

    try:
        found: Mapping[str, Any] = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-east-1", type_name).schema
    except ResourceNotFoundError:
        return {}
    return found


def verdict(type_name: str, property_name: str) -> Verdict:
    """Return whether a change of a top-level property replaces the resource."""
    if type_name.startswith("Custom::") or type_name == "AWS::CloudFormation::CustomResource":
        return "Always" if property_name == "ServiceToken" else "Never"
    described = schema(type_name)
    if property_name in REPLACES.get(type_name, ()) or property_name in _tops(described, "createOnlyProperties"):
        return "Always"
    conditional = _tops(described, "conditionalCreateOnlyProperties")
    if property_name in CONDITIONAL.get(type_name, ()) or property_name in conditional:
        return "Conditionally"
    return "Never"


def needs_replacement(type_name: str, changed: set[str], old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Decide, with the values known, whether these changed top-level properties need a new resource."""
    for name in changed:
        said = verdict(type_name, name)
        if said == "Always":
            nested = _nested_create_only(type_name, name)
            if not nested or any(_at(old, path) != _at(new, path) for path in nested):
                return True
        if said == "Conditionally" and _condition_replaces(type_name, name, old, new):
            return True
    return False


def required_properties(type_name: str) -> list[str]:
    """Return the properties that a type cannot be made without."""
    return list(schema(type_name).get("required", []))


def _tops(described: Mapping[str, Any], key: str) -> set[str]:
    return {path.removeprefix("/properties/").split("/", 1)[0] for path in described.get(key, [])}


def _nested_create_only(type_name: str, property_name: str) -> list[list[str]]:
    """Return the create-only paths below a property; empty when the property as a whole is create-only."""
    paths = [
        path.removeprefix("/properties/").replace("/properties/", "/").split("/")
        for path in schema(type_name).get("createOnlyProperties", [])
    ]
    mine = [path for path in paths if path[0] == property_name]
    return [] if [property_name] in mine or property_name in REPLACES.get(type_name, ()) else mine


def _at(properties: Mapping[str, Any], path: list[str]) -> Any:
    value: Any = properties
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _condition_replaces(type_name: str, name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Decide the conditional cases that templates here meet; the cautious answer otherwise is replacement.

    An Auto Scaling group changes its launch template, policy and subnets in place; only a change between the two kinds of
    template property of a group in EC2 Classic terms replaced it. Security groups, subnets' IPv6 and parameters' data
    type change in place as long as the value was there before.
    """
    if type_name == "AWS::AutoScaling::AutoScalingGroup":
        return False
    return not (name in old and name in new)
