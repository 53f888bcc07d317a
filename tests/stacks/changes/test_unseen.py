"""Edits that were chosen without knowledge of the review's rules; the cases are in unseen/*.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from stacks.changes.review import Level
from tests.stacks.changes.test_edits import Sides, reviewed
from tests.stacks.conftest import Synthesis

FOLDER = Path(__file__).parent / "unseen"
DANGEROUS, HARMLESS = (yaml.safe_load((FOLDER / f"{each}.yaml").read_text()) for each in ("dangerous", "harmless"))


def _marked(cases: list[dict[str, Any]]) -> list[Any]:
    return [
        pytest.param(case, id=case["name"], marks=[] if case.get("quick") else [pytest.mark.slow]) for case in cases
    ]


@pytest.fixture(scope="module")
def sides(synthesis: Synthesis, tmp_path_factory: pytest.TempPathFactory) -> Sides:
    return Sides(synthesis, tmp_path_factory.mktemp("unseen"))


def _exit_code(case: Mapping[str, Any], sides: Sides) -> int:
    before = case.get("from", {})
    found = reviewed({**case, "changes": {**before, **case["changes"]}}, sides)
    return int(found.level)


@pytest.mark.parametrize("case", _marked(DANGEROUS))
def test_dangerous_edit_needs_approval(case: dict[str, Any], sides: Sides) -> None:
    assert _exit_code(case, sides) >= Level.NEEDS_APPROVAL


@pytest.mark.parametrize("case", _marked(HARMLESS))
def test_harmless_edit_passes_or_is_marked(case: dict[str, Any], sides: Sides) -> None:
    assert (_exit_code(case, sides) >= Level.NEEDS_APPROVAL) == case.get("asks", False)


def test_enough_edits_and_few_that_ask() -> None:
    names = [case["name"] for case in [*DANGEROUS, *HARMLESS]]
    assert len(names) == len(set(names))
    assert len(DANGEROUS) >= 40 and len(HARMLESS) >= 60
    assert sum(not case.get("asks", False) for case in HARMLESS) >= len(HARMLESS) * 5 / 6
