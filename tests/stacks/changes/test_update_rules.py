"""The rules of updates against those of the embedded cloud, which were written down independently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from localcloud.cloudformation.replacement import property_changes
from localcloud.cloudformation.replacement_rules import RULES as LOCALCLOUD_RULES
from stacks.changes.differences import effect_of
from stacks.changes.schemas import paths, schema
from stacks.changes.update_rules import RULES
from tests.stacks.conftest import CONFIGS, Synthesis

KNOWN_TO_DIFFER = {
    # Told by values, not by the property: the shrinking of a volume or file system, and the end of the Advanced tier.
    ("AWS::EC2::Volume", "Size"),
    ("AWS::FSx::FileSystem", "StorageCapacity"),
    ("AWS::SSM::Parameter", "Tier"),
}


def effects(type_name: str, name: str) -> tuple[str, str]:
    """Return what a change of a top-level property does, here and in the embedded cloud."""
    before, after = ({"Type": type_name, "Properties": {name: value}} for value in ("a", "b"))
    (change,) = property_changes(type_name, before, after)
    there = "not supported" if change.problem else "replaces" if change.recreation == "Always" else "in place"
    return effect_of(type_name, (name,), before, after)[0], there


def test_every_property_of_every_type_that_deployments_hold(synthesis: Synthesis) -> None:
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
    """Whether parts of the property have verdicts of their own: compared whole, the two sides cannot agree."""
    listed = [*paths(type_name, "createOnlyProperties"), *map(_split, LOCALCLOUD_RULES.get(type_name, {}))]
    return any(path[0] == name and len(path) > 1 for path in listed)


def _split(path: str) -> tuple[str, ...]:
    return tuple(path.split("/"))


@pytest.mark.parametrize("type_name", sorted(RULES))
def test_rules_are_of_properties_that_there_are_and_name_a_page(type_name: str) -> None:
    for path, rules in RULES[type_name].items():
        described: Any = schema(type_name)["properties"].get(path.split("/")[0])
        assert described is not None, path
        assert all(rule.source.startswith("https://docs.aws.amazon.com/") for rule in rules)
