"""Pairs of small templates, a case each in pairs/*.yaml: what the deployments of config/ do not come to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from stacks.changes.assembly import StackTemplate
from stacks.changes.formats import to_json, to_markdown
from stacks.changes.review import Review, review

CASES: dict[str, dict[str, Any]] = {
    case["name"]: case
    for path in sorted((Path(__file__).parent / "pairs").glob("*.yaml"))
    for case in yaml.safe_load(path.read_text())
}
WIDTHS = {
    frozenset(): "same",
    frozenset(["broadened"]): "wider",
    frozenset(["narrowed"]): "narrower",
    frozenset(["broadened", "narrowed"]): "both",
}


def assembly(stacks: Mapping[str, Any], exports: Mapping[str, Any], parameters: Any) -> dict[str, StackTemplate]:
    made = {}
    for stack_id, resources in stacks.items():
        owned = {name: value for name, value in exports.items() if _target(value) in resources}
        outputs = {f"O{name}": {"Value": value, "Export": {"Name": name}} for name, value in owned.items()}
        made[stack_id] = StackTemplate(
            stack_id, stack_id, {"Resources": resources, "Outputs": outputs, "Parameters": parameters}
        )
    return made


def _target(value: Mapping[str, Any]) -> str:
    return str(value["Ref"])


def reviewed(case: Mapping[str, Any]) -> Review:
    exports, parameters = case.get("exports", {}), case.get("parameters", [{}, {}])
    before, after = (
        assembly(case[side], exports, defaults) for side, defaults in zip(("before", "after"), parameters, strict=True)
    )
    return review(before, after)


@pytest.mark.parametrize("name", CASES)
def test_a_pair_of_templates_gets_its_verdict(name: str) -> None:
    case = CASES[name]
    expected = case["expect"]
    found = reviewed(case)
    told = to_json(found)
    assert {one["logical_id"]: one["action"] for one in told["resources"]} == expected["actions"]
    assert told["exit_code"] == expected["exit_code"], told
    assert expected.get("says", "") in json.dumps(told)
    for area in ("iam", "network"):
        if area in expected:
            assert WIDTHS[frozenset(one["direction"] for one in told[area])] == expected[area], told[area]
    refused = [f"{one.logical_id} {one.reason} {one.remedy}" for one in found.obstacles]
    assert any(expected["refused"] in one for one in refused) if "refused" in expected else not refused
    assert to_markdown(found).startswith("**")
