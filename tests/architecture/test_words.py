"""The word checker finds listed words in prose, and ignores code."""

from __future__ import annotations

from .words import WORD_LIST, read_list, search

ENTRIES = read_list("# a comment\nanew -> again\nfor good -> permanently\n")


def found(path: str, text: str) -> list[str]:
    return [finding.place for finding in search(path, text, ENTRIES)]


def test_docstrings_comments_and_strings_of_python_are_searched() -> None:
    source = '"""Made anew.\n\nKept for good.\n"""\nx = "anew"  # For good\nanew = 1\n'
    assert found("a.py", source) == ["a.py:1", "a.py:3", "a.py:5", "a.py:5"]


def test_code_in_markdown_is_not_searched() -> None:
    assert found("a.md", "made anew\n```\nanew\n```\nthe flag `anew`\n") == ["a.md:1"]


def test_comments_of_yaml_are_searched() -> None:
    assert found("a.yaml", "key: anew\nother: 1  # anew\n") == ["a.yaml:2"]


def test_the_committed_list_can_be_read() -> None:
    assert all(entry.replacement for entry in read_list(WORD_LIST.read_text(encoding="utf-8")))
