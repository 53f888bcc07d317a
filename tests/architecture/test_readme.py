"""README.md names every command of `trainstack` and every target of the Makefile."""

from __future__ import annotations

import re

import typer

from trainstack.commands import app

from .import_graph import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
TARGET = re.compile(r"^([a-z][a-z-]*):.*## ", re.MULTILINE)


def test_each_command_is_in_the_list() -> None:
    section = README.partition("## Commands")[2].partition("\n## ")[0]
    listed = {
        name
        for cell in re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
        for name in re.findall("`([a-z-]+)`", cell)
    }
    assert listed == set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_each_target_is_named() -> None:
    targets = TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8"))
    assert len(targets) > 30
    missing = [
        name for name in targets if not name.startswith("bench-") and not re.search(rf"make {name}(?![a-z-])", README)
    ]
    assert missing == []
