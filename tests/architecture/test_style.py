"""Sizes and names of modules, and that nothing names the machine it was written on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .test_imports import PACKAGES, ROOT, modules

MOST_LINES = 400
ALL = [path for package in PACKAGES for path in modules(package)]


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_is_small_and_named_for_what_it_does(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES
    assert path.stem not in {"utils", "util", "common", "helpers", "constants", "misc"}


def test_every_package_is_on_the_map() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for package in PACKAGES:
        assert re.search(rf"\b{package}\b", page), package


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(ROOT)))
def test_sources_are_ascii(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.isascii(), [line for line in text.splitlines() if not line.isascii()]
