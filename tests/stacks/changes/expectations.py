"""The cases of a folder, and the parts of a verdict that every kind of case can expect."""

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
    """Return the cases of this package's folder, by name, in the order of its files."""
    return {
        case["name"]: case
        for path in sorted((Path(__file__).parent / folder).glob("*.yaml"))
        for case in yaml.safe_load(path.read_text())
    }


def check_verdict(found: Review, expected: Mapping[str, Any]) -> None:
    """Assert the exit code, what is said, how wide rights and network become, and what is refused."""
    told = to_json(found)
    assert told["exit_code"] == expected["exit_code"], told
    assert expected.get("says", "") in json.dumps(told)
    for area in ("iam", "network"):
        if area in expected:
            assert WIDTHS[frozenset(one["direction"] for one in told[area])] == expected[area], told[area]
    refused = [f"{one.logical_id} {one.reason} {one.remedy}" for one in found.obstacles]
    assert any(expected["refused"] in one for one in refused) if "refused" in expected else not refused
