"""What each provider accepts is what the type's registry schema says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from localcloud.cloudformation.providers import registry

TYPES = sorted(registry())
Schema = Callable[[str], dict[str, Any]]

# Properties that the schema lets change in place and the provider does not; the reason.
FIXED = {
    "AWS::EC2::EIP": (["Domain"], "vpc is the only domain there is"),
    "AWS::EC2::Volume": (
        ["AvailabilityZone", "AvailabilityZoneId", "Encrypted", "KmsKeyId", "SnapshotId", "OutpostArn"]
        + ["VolumeInitializationRate"],
        "no call changes them; the schema lists no create-only property at all",
    ),
    "AWS::EC2::Instance": (
        ["Affinity", "BlockDeviceMappings", "CreditSpecification", "HostId", "MetadataOptions", "Tenancy"]
        + ["PropagateTagsToVolumeOnCreation"],
        "the local EC2 has no call that changes them",
    ),
    "AWS::FSx::FileSystem": (
        ["FileSystemTypeVersion", "StorageType"],
        "replaced as the documentation says; the legacy schema is silent",
    ),
    "AWS::Logs::LogGroup": (["KmsKeyId", "LogGroupClass"], "the local Logs has no call that changes them"),
    "AWS::KMS::Key": (["KeySpec", "KeyUsage", "MultiRegion", "Origin"], "KMS has no call that changes them"),
    "AWS::DynamoDB::Table": (
        ["AttributeDefinitions", "GlobalSecondaryIndexes", "KeySchema", "LocalSecondaryIndexes"],
        "keys and secondary indexes are made with the table",
    ),
    "AWS::Events::Rule": (["EventBusName"], "a rule of another bus is another rule"),
}


def listed(found: dict[str, Any], key: str) -> set[str]:
    """Return the top-level properties that the schema's list `key` names as a whole."""
    paths = (path.removeprefix("/properties/") for path in found.get(key, []))
    return {path for path in paths if "/" not in path}


@pytest.mark.parametrize("type_name", TYPES)
def test_accepts_only_what_the_schema_has(type_name: str, schema: Schema) -> None:
    provider = registry()[type_name]
    found = schema(type_name)
    writable = set(found["properties"]) - listed(found, "readOnlyProperties")
    assert provider.create_only | provider.updatable <= writable
    assert not provider.create_only & provider.updatable
    assert (
        provider.afterwards | provider.undroppable | set(provider.defaults) <= provider.create_only | provider.updatable
    )


@pytest.mark.parametrize("type_name", TYPES)
def test_changes_in_place_what_the_schema_lets_change(type_name: str, schema: Schema) -> None:
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
