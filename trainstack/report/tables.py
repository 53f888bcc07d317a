"""Builds the HTML of tables, sections and folded parts of a report's page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, figures: int, total: Sequence[str] = ()) -> str:
    """Return a table whose last `figures` columns are numbers. Cells contain HTML."""
    rows = list(rows)
    if not rows:
        return '<p class="empty">None.</p>'
    first_figure = len(head) - figures

    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=figure' if number >= first_figure else ''}>{value}</{tag}>"
            for number, value in enumerate(values)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    foot = f"<tfoot><tr>{cells('td', total)}</tr></tfoot>" if total else ""
    top = f"<thead><tr>{cells('th', head)}</tr></thead>" if any(head) else ""
    return f'<div class="scroll"><table>{top}<tbody>{body}</tbody>{foot}</table></div>'


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of names and values. Values contain HTML."""
    cells = "".join(f"<tr><td>{escape(name)}</td><td>{value}</td></tr>" for name, value in rows)
    return f'<table class="facts"><tbody>{cells}</tbody></table>'


def section(title: str, note: str, content: str) -> str:
    """Return a section with a title and an optional note. The content is HTML."""
    line = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2>{line}{content}</section>"


def details(title: str, content: str) -> str:
    """Return a folded section. The content is HTML."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def code(text: str) -> str:
    """Return text in a fixed-width font."""
    return f"<code>{escape(text)}</code>"
