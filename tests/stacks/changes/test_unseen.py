"""Edits that were chosen without knowledge of the review's rules; the cases are in unseen/*.yaml.

The review compares the templates only, as with `--against deployed`: it does not know which keys were edited.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from stacks.changes.review import Level, review
from stacks.changes.templates.template_set import read_cloud_assembly
from tests.stacks.changes.test_edits import Sides
from tests.stacks.conftest import ROOT, Synthesis

FOLDER = Path(__file__).parent / "unseen"
DANGEROUS, HARMLESS = (yaml.safe_load((FOLDER / f"{each}.yaml").read_text()) for each in ("dangerous", "harmless"))


class RepositorySides(Sides):
    """Deployment files of one name in the repository. A pipeline accepts only such files, and contains their names."""

    def of(self, base: str, changes: Mapping[str, Any], context: Mapping[str, str]) -> tuple[Path, Path]:
        file, made = super().of(base, changes, context)
        kept = file.with_name(f"{made.name}.kept.yaml")
        if not kept.exists():
            file.replace(kept)
        return kept, made

    def path(self, number: int) -> Path:
        return self._directory / "deployment.yaml"


def _marked(cases: list[dict[str, Any]]) -> list[Any]:
    return [
        pytest.param(case, id=case["name"], marks=[] if case.get("quick") else [pytest.mark.slow]) for case in cases
    ]


@pytest.fixture(scope="module")
def sides(synthesis: Synthesis) -> Iterator[Sides]:
    (ROOT / "build").mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="unseen-", dir=ROOT / "build"))
    yield RepositorySides(synthesis, folder)
    shutil.rmtree(folder)


def exit_code(case: Mapping[str, Any], sides: Sides) -> int:
    before = case.get("from", {})
    _, old = sides.of(case["base"], before, {})
    _, new = sides.of(case["base"], {**before, **case["changes"]}, case.get("context", {}))
    return int(review(read_cloud_assembly(old), read_cloud_assembly(new)).level)


@pytest.mark.parametrize("case", _marked(DANGEROUS))
def test_dangerous_edit_needs_approval(case: dict[str, Any], sides: Sides) -> None:
    assert exit_code(case, sides) >= Level.NEEDS_APPROVAL


@pytest.mark.parametrize("case", _marked(HARMLESS))
def test_harmless_edit_passes_or_is_marked(case: dict[str, Any], sides: Sides) -> None:
    assert (exit_code(case, sides) >= Level.NEEDS_APPROVAL) == case.get("asks", False)


def test_enough_edits_and_few_that_ask() -> None:
    names = [case["name"] for case in [*DANGEROUS, *HARMLESS]]
    assert len(names) == len(set(names))
    assert len(DANGEROUS) >= 40 and len(HARMLESS) >= 60
    assert sum(not case.get("asks", False) for case in HARMLESS) >= len(HARMLESS) * 5 / 6
