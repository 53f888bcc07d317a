"""The structure of the packages: no import cycle, no import of a higher layer, at most 20 entries per level."""

from __future__ import annotations

from pathlib import Path

import pytest

from .import_graph import ROOT, cycles, graph, imports, modules, name_of
from .layers import LAYERS
from .test_imports import PACKAGES

MAX_ENTRIES = 20
MAX_ENTRIES_OF = {"training": 15}
"""Entries are modules and packages; `__init__.py` and `__main__.py` are not counted."""


def entries(folder: Path) -> set[str]:
    """Return the names of the modules and packages in a folder."""
    found = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")}
    return found | {path.name for path in folder.iterdir() if (path / "__init__.py").exists()}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_import_cycle(package: str) -> None:
    assert not cycles(graph(package))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_level_has_more_entries_than_a_reader_holds(package: str) -> None:
    folders = {path.parent for path in modules(package)}
    too_many = {
        str(folder.relative_to(ROOT)): len(entries(folder))
        for folder in folders
        if len(entries(folder)) > MAX_ENTRIES_OF.get(str(folder.relative_to(ROOT)), MAX_ENTRIES)
    }
    assert not too_many


@pytest.mark.parametrize("package", sorted(LAYERS))
def test_every_entry_has_its_layer(package: str) -> None:
    listed = [entry for layer in LAYERS[package] for entry in layer.split()]
    assert sorted(listed) == sorted(entries(ROOT / package.replace(".", "/")))


@pytest.mark.parametrize("package", sorted(LAYERS))
def test_no_import_of_a_higher_layer(package: str) -> None:
    height = {entry: number for number, layer in enumerate(LAYERS[package]) for entry in layer.split()}
    upward = []
    depth = package.count(".") + 1
    for path in modules(package.replace(".", "/")):
        own = name_of(path).split(".")[depth : depth + 1]
        if not own or own[0].startswith("__"):
            continue
        for name in imports(path):
            if not name.startswith(f"{package}."):
                continue
            other = name.split(".")[depth]
            if height.get(other, -1) > height[own[0]]:
                upward.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not upward


def test_every_package_describes_itself() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("__init__.py")
        if not path.read_text(encoding="utf-8").startswith('"""')
    ]
    assert not silent


def test_cycles_are_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]
