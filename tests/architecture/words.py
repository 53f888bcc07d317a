"""Search the project's prose for the words in docs/word-list.txt: `python -m tests.architecture.words`.

With `--extract FOLDER` it writes the docstrings of each package to a text file instead, for a prose linter.

Prose is: Markdown outside of code, and docstrings, comments and string literals of Python files.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .import_graph import ROOT

WORD_LIST = ROOT / "docs" / "word-list.txt"
SEARCHED = re.compile(r"(README\.md|Makefile|.*README\.md|docs/.*\.md|.*\.py|config/.*\.yaml|\.github/.*\.yml)")
EXEMPT = re.compile(r"tests/architecture/|docs/adr/|tests/mutate/")


class Entry(NamedTuple):
    """A word to avoid, and what to write instead."""

    pattern: re.Pattern[str]
    replacement: str


class Finding(NamedTuple):
    """An occurrence of a listed word in the project's prose."""

    place: str
    word: str
    replacement: str


def read_list(text: str) -> list[Entry]:
    """Return the entries of a word list."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    parts = [line.partition(" -> ") for line in lines]
    return [Entry(re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), use) for pattern, _, use in parts]


def prose(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and the text of each piece of prose."""
    if path.endswith(".py"):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.STRING, tokenize.COMMENT):
                yield from ((token.start[0] + number, line) for number, line in enumerate(token.string.splitlines()))
        return
    is_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif path.endswith((".yaml", ".yml")):
            yield number, line.partition("#")[2]
        elif not is_code:
            yield number, re.sub(r"`[^`]*`", "", line)


def search(path: str, text: str, entries: list[Entry]) -> list[Finding]:
    """Return the findings in one file."""
    found = []
    for number, line in prose(path, text):
        for entry in entries:
            found += [
                Finding(f"{path}:{number}", hit.group(), entry.replacement) for hit in entry.pattern.finditer(line)
            ]
    return found


def extract(paths: list[str], folder: Path) -> None:
    """Write the docstrings of each top-level package to `folder`/PACKAGE.txt."""
    texts: dict[str, list[str]] = {}
    for path in paths:
        if path.endswith(".py") and "/" in path:
            tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
            texts.setdefault(path.split("/")[0], []).extend(text for text in found if text)
    folder.mkdir(parents=True, exist_ok=True)
    for package, docstrings in texts.items():
        (folder / f"{package}.txt").write_text("\n\n".join(docstrings) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Print each finding; return 1 if there is one."""
    entries = read_list(WORD_LIST.read_text(encoding="utf-8"))
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [path for path in listed.splitlines() if (ROOT / path).exists()]
    if arguments:
        extract(paths, Path(arguments[1]))
        return 0
    findings = []
    for path in paths:
        if SEARCHED.fullmatch(path) and not EXEMPT.match(path):
            findings += search(path, (ROOT / path).read_text(encoding="utf-8"), entries)
    for finding in findings:
        print(f"{finding.place}: {finding.word!r}: {finding.replacement}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
