"""Files and modules that comments, docstrings, messages and documentation refer to must exist."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from .import_graph import ROOT

FOLDERS = "stacks|bootstrap|training|localcloud|hardware|benchmarks|tests|docs|config|examples|policy"
PATH = re.compile(rf"(?<![\w./$}}-])((?:{FOLDERS})/[\w./-]*\.(?:py|md|sh|json|yaml|txt|mjs))\b")
FILE = re.compile(r"(?<![\w/.*$}-])([a-z_]+\.(?:py|md))\b")
DOTTED = re.compile(
    r"(?<![\w./-])((?:stacks|bootstrap|training|localcloud|benchmarks|hardware)(?:\.[A-Za-z_]\w*)+)(?![\w/-])"
)
USER_FILES = {
    "train.py",
    "main.py",
    "own.py",
    "model.py",
    "setup.py",
    "configurator.py",
    "x.py",
    "handler.py",
    "index.py",
    "diff.md",
    "empty.py",
}
WORDS = {"localcloud.sent_host"}
"""Dotted names that are not modules: a key of the WSGI environment."""
USER_PATHS = (
    "config/train_shakespeare_char.py",
    "config/mine.yaml",
    "config/production.yaml",
    "config/ami.lock.json",
    "config/x.yaml",
)
"""Names that represent a user's files or nanoGPT's files."""


@cache
def listed() -> frozenset[str]:
    out = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return frozenset(path for path in out.splitlines() if (ROOT / path).exists())


def sources() -> list[str]:
    pattern = re.compile(rf"(?:(?:{FOLDERS})/.*\.(?:py|md|sh)|README\.md|app\.py)")
    return sorted(path for path in listed() if pattern.fullmatch(path) and not path.startswith("tests/"))


def prose(path: str) -> Iterator[tuple[int, str]]:
    text = (ROOT / path).read_text(encoding="utf-8")
    if not path.endswith(".py"):
        yield from enumerate(text.splitlines(), start=1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            text = re.sub(r"\{[^{}]*\}", "{}", token.string) if token.string[0] in "fF" else token.string
            yield from ((token.start[0] + number, line) for number, line in enumerate(text.splitlines()))


@cache
def deployment_keys() -> frozenset[str]:
    """Return the keys under `training:` in a deployment file; written as `training.KEY`, they look like modules."""
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    sections = [part for part in page.split("\n## ") if re.match(r"training(\.config)?\n", part)]
    return frozenset(re.findall(r"^\| `(\w+)`", "\n".join(sections), re.MULTILINE)) | {"prepare", "config"}


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return the names that a module defines, at any depth, or imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
    return frozenset(found)


def exists(dotted: str) -> bool:
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        base = ROOT.joinpath(*parts[:length])
        module = base.with_suffix(".py")
        package = base / "__init__.py"
        rest = parts[length:]
        if module.exists() or package.exists():
            return not rest or set(rest) <= names_in(module if module.exists() else package)
    return False


@pytest.mark.parametrize("path", sources())
def test_references_exist(path: str) -> None:
    basenames = {name.rsplit("/", 1)[-1] for name in listed()}
    broken = []
    for number, line in prose(path):
        broken += [
            f"{number}: {name}" for name in PATH.findall(line) if name not in listed() and name not in USER_PATHS
        ]
        broken += [f"{number}: {name}" for name in FILE.findall(line) if name not in basenames | USER_FILES]
        for name in DOTTED.findall(line):
            is_key = name.split(".")[0] == "training" and name.split(".")[1] in deployment_keys()
            if not is_key and name not in WORDS and not exists(name.removesuffix(".py")):
                broken.append(f"{number}: {name}")
    assert not broken
