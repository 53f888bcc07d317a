"""Size, name and encoding of modules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .import_graph import ROOT, modules
from .test_imports import PACKAGES

MAX_LINES = 400
ALL = [path for package in PACKAGES for path in modules(package)]


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_has_a_bounded_size_and_a_specific_name(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES
    assert path.stem not in {"utils", "util", "common", "helpers", "constants", "misc"}


def test_architecture_page_has_each_package() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for package in PACKAGES:
        assert re.search(rf"\b{package}\b", page), package


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(ROOT)))
def test_sources_are_ascii(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.isascii(), [line for line in text.splitlines() if not line.isascii()]
