"""Edits of a deployment file and their expected reviews; the cases are in cases/*.yaml."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from stacks.changes.causes import edits
from stacks.changes.effects.nodes import Impact
from stacks.changes.formats import to_json
from stacks.changes.review import Level, Review, review
from stacks.changes.templates.template_set import read_cloud_assembly
from stacks.errors import ConfigError
from stacks.loading import read
from tests.stacks.changes.expectations import check_verdict, read_cases
from tests.stacks.conftest import ROOT, Synthesis

CASES = read_cases("cases")


class Sides:
    """Deployment files and their templates, each synthesized once."""

    def __init__(self, synthesis: Synthesis, directory: Path) -> None:
        self._synthesis = synthesis
        self._directory = directory
        self._made: dict[str, tuple[Path, Path]] = {}

    def of(self, base: str, changes: Mapping[str, Any], context: Mapping[str, str]) -> tuple[Path, Path]:
        """Return a copy of a base file with changed keys, and the folder of its templates."""
        label = json.dumps([base, dict(changes), dict(context)], sort_keys=True)
        if label not in self._made:
            path = self.path(len(self._made))
            document = yaml.safe_load((ROOT / "config" / f"{base}.yaml").read_text())
            for key, value in changes.items():
                *parents, last = key.split(".")
                section = document
                for name in parents:
                    section = section.setdefault(name, {})
                section[last] = value
            path.write_text(yaml.safe_dump(document, sort_keys=True))
            made = self._synthesis.run(path, f"changes-{len(self._made)}", **context)
            self._made[label] = path, made.directory
        return self._made[label]

    def path(self, number: int) -> Path:
        return self._directory / f"{number}.yaml"


@pytest.fixture(scope="module")
def sides(synthesis: Synthesis, tmp_path_factory: pytest.TempPathFactory) -> Sides:
    return Sides(synthesis, tmp_path_factory.mktemp("changes"))


def reviewed(case: Mapping[str, Any], sides: Sides) -> Review:
    old_file, old = sides.of(case["base"], case.get("from", {}), {})
    new_file, new = sides.of(case["base"], case.get("changes", {}), case.get("context", {}))
    if case.get("reordered"):
        # Compare the original example with a copy without comments and with sorted keys.
        old_file = ROOT / "config" / f"{case['base']}.yaml"
        old = sides._synthesis.of(case["base"]).directory
    changed = list(edits(read(old_file).model_dump(mode="json"), read(new_file).model_dump(mode="json")))
    return review(read_cloud_assembly(old), read_cloud_assembly(new), edits=changed)


def test_each_exit_code_and_each_impact_on_nodes_has_a_case() -> None:
    expected = [case["expect"] for case in CASES.values()]
    assert {each.get("exit_code") for each in expected} >= set(Level)
    assert {each.get("nodes") for each in expected} >= set(get_args(Impact))


def test_most_harmless_edits_pass_and_no_dangerous_edit_does() -> None:
    """The cases cover each verdict: a review that always requires approval is as useless as one that never does."""
    harmless, dangerous = (
        [case["expect"]["exit_code"] for case in CASES.values() if case.get(kind)] for kind in ("harmless", "dangerous")
    )
    assert len(harmless) >= 60
    assert sum(code < Level.NEEDS_APPROVAL for code in harmless) >= len(harmless) * 5 / 6
    assert dangerous and min(dangerous) >= Level.NEEDS_APPROVAL


MARKED = [pytest.param(name, marks=[pytest.mark.slow] if case.get("slow") else []) for name, case in CASES.items()]


@pytest.mark.parametrize("name", MARKED)
def test_edit_has_the_expected_review_and_keys(name: str, sides: Sides) -> None:
    case = CASES[name]
    expected = case["expect"]
    if "error" in expected:
        with pytest.raises(ConfigError, match=expected["error"]):
            reviewed(case, sides)
        return
    found = reviewed(case, sides)
    output = to_json(found)
    check_verdict(found, expected)
    if "nodes" in expected:
        assert found.nodes.impact == expected["nodes"]
    if "data" in expected:
        assert (output["data"][0]["direction"] if output["data"] else "same") == expected["data"]
    assert bool(found.left_behind) == expected.get("left_behind", False)
    if "keys" in expected:
        _check_keys(output, expected)


def _check_keys(output: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    lines = [*output["resources"], *output["data"], *output["iam"], *output["network"]]
    assert not [one for one in lines if not one["keys"]], "lines without a key"
    assert {key for one in [*lines, output["nodes"]] for key in one["keys"]} == set(expected["keys"])
    if "node_keys" in expected:
        assert output["nodes"]["keys"] == expected["node_keys"]
