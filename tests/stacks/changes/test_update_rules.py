"""The update rules compared with those of the embedded cloud, which were written independently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from localcloud.cloudformation.updates.replacement import property_changes
from localcloud.cloudformation.updates.replacement_rules import RULES as LOCALCLOUD_RULES
from stacks.changes.updates.differences import effect_of
from stacks.changes.updates.schemas import paths, schema
from stacks.changes.updates.update_rules import RULES
from tests.stacks.conftest import CONFIGS, Synthesis

KNOWN_TO_DIFFER = {
    # The values determine the effect, not the property: shrinking a volume or file system, leaving the Advanced tier.
    ("AWS::EC2::Volume", "Size"),
    ("AWS::FSx::FileSystem", "StorageCapacity"),
    ("AWS::SSM::Parameter", "Tier"),
}


def effects(type_name: str, name: str) -> tuple[str, str]:
    """Return the effect of changing a top-level property, here and in the embedded cloud."""
    before, after = ({"Type": type_name, "Properties": {name: value}} for value in ("a", "b"))
    (change,) = property_changes(type_name, before, after)
    in_cloud = "not supported" if change.problem else "replaces" if change.recreation == "Always" else "in place"
    return effect_of(type_name, (name,), before, after)[0], in_cloud


def test_all_properties_of_all_deployed_types_agree(synthesis: Synthesis) -> None:
    types = {
        resource["Type"]
        for name in CONFIGS
        for stack in synthesis.of(name).directory.glob("*.template.json")
        for resource in json.loads(Path(stack).read_text())["Resources"].values()
    }
    differing = {
        (type_name, name): effects(type_name, name)
        for type_name in sorted(types)
        for name in schema(type_name).get("properties", {})
        if (type_name, name) not in KNOWN_TO_DIFFER
        and len(set(effects(type_name, name))) > 1
        and not _is_nested(type_name, name)
    }
    assert not differing


def _is_nested(type_name: str, name: str) -> bool:
    """Return True if parts of the property have rules, so that comparing it as one value is not meaningful."""
    listed = [*paths(type_name, "createOnlyProperties"), *map(_split, LOCALCLOUD_RULES.get(type_name, {}))]
    return any(path[0] == name and len(path) > 1 for path in listed)


def _split(path: str) -> tuple[str, ...]:
    return tuple(path.split("/"))


@pytest.mark.parametrize("type_name", sorted(RULES))
def test_rules_have_an_existing_property_and_a_source(type_name: str) -> None:
    for path, rules in RULES[type_name].items():
        described: Any = schema(type_name)["properties"].get(path.split("/")[0])
        assert described is not None, path
        assert all(rule.source.startswith("https://docs.aws.amazon.com/") for rule in rules)
