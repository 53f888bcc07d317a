"""Edits of a deployment file, a case each in cases/*.yaml, with the verdict that they must get."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from stacks.changes.assembly import read_assembly
from stacks.changes.causes import edits
from stacks.changes.formats import to_json
from stacks.changes.review import Review, review
from stacks.config import read
from stacks.errors import ConfigError
from tests.stacks.changes.expectations import check_verdict, read_cases
from tests.stacks.conftest import ROOT, Synthesis

CASES = read_cases("cases")


class Sides:
    """Deployment files and their templates, each made once."""

    def __init__(self, synthesis: Synthesis, directory: Path) -> None:
        self._synthesis = synthesis
        self._directory = directory
        self._made: dict[str, tuple[Path, Path]] = {}

    def of(self, base: str, changes: Mapping[str, Any], context: Mapping[str, str]) -> tuple[Path, Path]:
        """Return the file of a base with some keys changed, and the folder of its templates."""
        label = json.dumps([base, dict(changes), dict(context)], sort_keys=True)
        if label not in self._made:
            path = self._directory / f"{len(self._made)}.yaml"
            document = yaml.safe_load((ROOT / "config" / f"{base}.yaml").read_text())
            for key, value in changes.items():
                *parents, last = key.split(".")
                place = document
                for name in parents:
                    place = place.setdefault(name, {})
                place[last] = value
            path.write_text(yaml.safe_dump(document, sort_keys=True))
            made = self._synthesis.run(path, f"changes-{len(self._made)}", **context)
            self._made[label] = path, made.directory
        return self._made[label]


@pytest.fixture(scope="module")
def sides(synthesis: Synthesis, tmp_path_factory: pytest.TempPathFactory) -> Sides:
    return Sides(synthesis, tmp_path_factory.mktemp("changes"))


def reviewed(case: Mapping[str, Any], sides: Sides) -> Review:
    old_file, old = sides.of(case["base"], case.get("from", {}), {})
    new_file, new = sides.of(case["base"], case.get("changes", {}), case.get("context", {}))
    if case.get("reordered"):
        # The example as a person wrote it, against the same without comments and with its keys sorted.
        old_file = ROOT / "config" / f"{case['base']}.yaml"
        old = sides._synthesis.of(case["base"]).directory
    changed = list(edits(read(old_file).model_dump(mode="json"), read(new_file).model_dump(mode="json")))
    return review(read_assembly(old), read_assembly(new), edits=changed)


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 70
    assert sum(not case.get("slow", False) for case in CASES.values()) >= 40


MARKED = [pytest.param(name, marks=[pytest.mark.slow] if case.get("slow") else []) for name, case in CASES.items()]


@pytest.mark.parametrize("name", MARKED)
def test_an_edit_gets_its_verdict_and_every_line_names_its_keys(name: str, sides: Sides) -> None:
    case = CASES[name]
    expected = case["expect"]
    if "error" in expected:
        with pytest.raises(ConfigError, match=expected["error"]):
            reviewed(case, sides)
        return
    found = reviewed(case, sides)
    told = to_json(found)
    check_verdict(found, expected)
    if "nodes" in expected:
        assert found.nodes.fate == expected["nodes"]
    if "data" in expected:
        assert (told["data"][0]["direction"] if told["data"] else "same") == expected["data"]
    assert bool(found.left_behind) == expected.get("left_behind", False)
    if "keys" in expected:
        _names_keys(told, expected)


def _names_keys(told: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    lines = [*told["resources"], *told["data"], *told["iam"], *told["network"]]
    assert not [one for one in lines if not one["keys"]], "lines that name no key"
    assert {key for one in [*lines, told["nodes"]] for key in one["keys"]} == set(expected["keys"])
    if "node_keys" in expected:
        assert told["nodes"]["keys"] == expected["node_keys"]
