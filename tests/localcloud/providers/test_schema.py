"""The properties of each provider agree with the registry schema of its type."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import localcloud
from localcloud.cloudformation.providers import registry

TYPES = sorted(registry())
Schema = Callable[[str], dict[str, Any]]

# Properties that can change in place according to the schema but not in the provider, with the reason.
FIXED = {
    "AWS::EC2::EIP": (["Domain"], "vpc is the only domain"),
    "AWS::EC2::Volume": (
        ["AvailabilityZone", "AvailabilityZoneId", "Encrypted", "KmsKeyId", "SnapshotId", "OutpostArn"]
        + ["VolumeInitializationRate"],
        "no call changes them; the schema lists no create-only properties",
    ),
    "AWS::FSx::FileSystem": (
        ["FileSystemTypeVersion", "StorageType"],
        "replaced according to the documentation; the legacy schema has no entry",
    ),
    "AWS::Logs::LogGroup": (["KmsKeyId", "LogGroupClass"], "moto has no call that changes them"),
    "AWS::KMS::Key": (["KeySpec", "KeyUsage", "MultiRegion", "Origin"], "KMS has no call that changes them"),
    "AWS::Events::Rule": (["EventBusName"], "a rule on another bus is a different rule"),
}


def listed(found: dict[str, Any], key: str) -> set[str]:
    """Return the top-level properties in the schema's list `key`."""
    paths = (path.removeprefix("/properties/") for path in found.get(key, []))
    return {path for path in paths if "/" not in path}


@pytest.mark.parametrize("type_name", TYPES)
def test_accepts_only_writable_properties_of_the_schema(type_name: str, schema: Schema) -> None:
    provider = registry()[type_name]
    found = schema(type_name)
    writable = set(found["properties"]) - listed(found, "readOnlyProperties")
    assert provider.create_only | provider.updatable <= writable
    assert not provider.create_only & provider.updatable
    accepted = provider.create_only | provider.updatable
    assert provider.set_after_create | provider.unremovable | set(provider.defaults) <= accepted


@pytest.mark.parametrize("type_name", TYPES)
def test_updates_in_place_agree_with_the_schema(type_name: str, schema: Schema) -> None:
    provider = registry()[type_name]
    fixed = listed(schema(type_name), "createOnlyProperties")
    assert provider.updatable & fixed == set()
    maybe = listed(schema(type_name), "conditionalCreateOnlyProperties")
    assert provider.create_only - fixed - maybe == set(FIXED.get(type_name, ([], ""))[0]) - maybe


@pytest.mark.parametrize("type_name", TYPES)
def test_required_properties_are_accepted(type_name: str, schema: Schema) -> None:
    provider = registry()[type_name]
    assert set(schema(type_name).get("required", [])) <= provider.create_only | provider.updatable


@pytest.mark.parametrize("type_name", TYPES)
def test_system_tags_only_where_cloudformation_sets_them(type_name: str, schema: Schema) -> None:
    provider = registry()[type_name]
    tagging = schema(type_name).get("tagging") or {}
    if provider.system_tags and (provider.tag_calls is not None or getattr(provider, "tag_kind", None)):
        exempt = type_name in {"AWS::EC2::LaunchTemplate"}
        assert tagging.get("cloudFormationSystemTags") or exempt


def test_readme_lists_every_type() -> None:
    readme = (Path(localcloud.__file__).parent / "README.md").read_text()
    rows = re.findall(r"^\| (AWS::\w+) \| ([\w, ]+) \|$", readme, re.MULTILINE)
    assert [f"{namespace}::{name}" for namespace, names in rows for name in names.split(", ")] == TYPES
