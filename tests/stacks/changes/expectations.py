"""The cases of a folder, and the expectations common to all kinds of cases."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from stacks.changes.formats import to_json
from stacks.changes.review import Review

WIDTHS = {
    frozenset(): "same",
    frozenset(["broadened"]): "wider",
    frozenset(["narrowed"]): "narrower",
    frozenset(["broadened", "narrowed"]): "both",
}


def read_cases(folder: str) -> dict[str, dict[str, Any]]:
    """Return the cases in a folder of this package by name, in the order of its files."""
    return {
        case["name"]: case
        for path in sorted((Path(__file__).parent / folder).glob("*.yaml"))
        for case in yaml.safe_load(path.read_text())
    }


def check_verdict(found: Review, expected: Mapping[str, Any]) -> None:
    """Assert a review's exit code, part of its text, its findings about permissions and networks, and its blockers."""
    output = to_json(found)
    assert output["exit_code"] == expected["exit_code"], output
    assert expected.get("contains", "") in json.dumps(output)
    for area in ("iam", "network"):
        if area in expected:
            assert WIDTHS[frozenset(one["direction"] for one in output[area])] == expected[area], output[area]
    blocked = [f"{one.logical_id} {one.reason} {one.remedy}" for one in found.blockers]
    assert any(expected["blocked"] in one for one in blocked) if "blocked" in expected else not blocked
