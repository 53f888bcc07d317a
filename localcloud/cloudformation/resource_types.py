"""Resource type data: registry schemas, custom resources, accepted types and types that support snapshots.

The registry schemas are read from cfn-lint's files, since importing cfn-lint takes longer than creating a change set.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

RECORDED_TYPES = {
    **dict.fromkeys(
        ("AWS::PCS::Cluster", "AWS::PCS::ComputeNodeGroup", "AWS::PCS::Queue"),
        "a Slurm cluster of AWS Parallel Computing Service: recorded only, nothing runs",
    ),
    **dict.fromkeys(
        ("AWS::EKS::AccessEntry", "AWS::EKS::Addon", "AWS::EKS::Cluster", "AWS::EKS::PodIdentityAssociation"),
        "an EKS cluster: recorded only, nothing runs",
    ),
    "AWS::SageMaker::Cluster": "a SageMaker HyperPod cluster: recorded only, nothing runs",
}
"""Types whose resources exist only as records of their stacks, with the reason for each."""
ACCEPTED_TYPES = {
    "AWS::CDK::Metadata": "describes the CDK app to AWS and does not create anything",
    **RECORDED_TYPES,
}
"""Types that templates may contain even though no provider creates them, with the reason for each."""
SNAPSHOT_TYPES = ("AWS::EC2::Volume",)
"""Types that support Snapshot as their DeletionPolicy or UpdateReplacePolicy."""
CUSTOM_TYPE = "AWS::CloudFormation::CustomResource"
# The region with the most types. The embedded cloud does not model which types each region supports.
_REGION = "us-east-1"


def is_custom(type_name: str) -> bool:
    """Return True for custom resource types."""
    return type_name.startswith("Custom::") or type_name == CUSTOM_TYPE


@cache
def _folder() -> Path:
    found = importlib.util.find_spec("cfnlint")
    assert found is not None and found.origin is not None, "cfn-lint is a pinned requirement"
    return Path(found.origin).parent / "data" / "schemas"


@cache
def _files_by_type() -> Mapping[str, str]:
    files: Mapping[str, str] = json.loads((_folder() / "providers" / f"{_REGION}.json").read_text())
    return files


@cache
def schema(type_name: str) -> Mapping[str, Any]:
    """Return a type's registry schema, which is empty for types without one (Custom::* and third-party types)."""
    file = _files_by_type().get(type_name)
    if file is None:
        return {}
    loaded: Mapping[str, Any] = json.loads((_folder() / "resources" / f"{file}.json").read_text())
    return loaded


def paths(type_name: str, key: str) -> list[tuple[str, ...]]:
    """Return the property paths in one of the schema's lists, such as "createOnlyProperties", without "*" parts."""
    return [
        tuple(part for part in pointer.removeprefix("/properties/").split("/") if part not in ("properties", "*"))
        for pointer in schema(type_name).get(key, [])
    ]


def required_properties(type_name: str) -> list[str]:
    """Return a type's required properties."""
    return list(schema(type_name).get("required", []))


def has_attribute(type_name: str, attribute: str) -> bool:
    """Return True if Fn::GetAtt accepts an attribute. Free-form types and types without a schema accept all."""
    described = schema(type_name)
    if not described or "patternProperties" in described:
        return True
    return attribute.split(".", 1)[0] in described.get("properties", {})


def read_only_attributes(type_name: str) -> list[str]:
    """Return the attributes of a type that the service assigns and that are text."""
    properties = schema(type_name).get("properties", {})
    names = [path[0] for path in paths(type_name, "readOnlyProperties") if len(path) == 1]
    return [name for name in names if properties.get(name, {}).get("type") == "string"]


def has_same_name(type_name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return True if two resources of a type have the same identifier and the template sets that identifier."""
    names = paths(type_name, "primaryIdentifier")
    read_only = set(paths(type_name, "readOnlyProperties"))
    if not names or any(len(name) > 1 or name in read_only for name in names):
        return False
    return all(name[0] in old and old[name[0]] == new.get(name[0]) for name in names)


def is_taggable(type_name: str) -> bool:
    """Return True if stack tags apply to resources of this type."""
    described = schema(type_name)
    tagging = described.get("tagging")
    if isinstance(tagging, Mapping):
        return bool(tagging.get("taggable", True))
    return bool(described.get("taggable", "Tags" in described.get("properties", {})))


def is_compared(type_name: str) -> bool:
    """Return True if drift detection supports a type. This requires a read handler (AWS::IAM::Policy has none)."""
    return "read" in schema(type_name).get("handlers", {})
