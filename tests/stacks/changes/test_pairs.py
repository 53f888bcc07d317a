"""Pairs of small templates for changes that the deployments in config/ do not cover; the cases are in pairs/*.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from stacks.changes.formats import to_json, to_markdown
from stacks.changes.review import Review, review
from stacks.changes.templates.template_set import StackTemplate
from tests.stacks.changes.expectations import check_verdict, read_cases

CASES = read_cases("pairs")


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
def test_pair_of_templates_has_the_expected_review(name: str) -> None:
    case = CASES[name]
    expected = case["expect"]
    found = reviewed(case)
    output = to_json(found)
    assert {one["logical_id"]: one["action"] for one in output["resources"]} == expected["actions"]
    check_verdict(found, expected)
    assert to_markdown(found).startswith("**")
