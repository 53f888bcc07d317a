"""How the checkpoint tool speaks: tables and progress for people, JSON for scripts."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from training.checkpoint.inspection import Report

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Presenter:
    """Writes results to standard output, and progress and remarks to standard error.

    Args:
        as_json: one JSON document as the result, instead of words and tables.
    """

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        # Not a terminal: as wide as the text, so that nothing is cut when it is searched or piped.
        self._out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 200)
        self._err = Console(stderr=True, highlight=False, soft_wrap=True)

    def result(self, document: Mapping[str, Any] | Sequence[Any]) -> None:
        """Write the result for scripts; for people it has been written in words."""
        if self.as_json:
            sys.stdout.write(json.dumps(document, indent=2) + "\n")

    def say(self, text: str) -> None:
        """Write a line of the result for people."""
        if not self.as_json:
            self._out.print(text, markup=False)

    def remark(self, text: str) -> None:
        """Write what is no result: why there is none, what to do next."""
        self._err.print(text, markup=False)

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Write a table for people, if it has rows; columns of numbers are aligned by themselves."""
        if self.as_json or not rows:
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for place, heading in enumerate(headings):
            numeric = all(row[place][:1].isdigit() or row[place] in ("", "-") for row in rows)
            table.add_column(heading, justify="right" if numeric else "left", no_wrap=True)
        for row in rows:
            table.add_row(*(text.replace("[", r"\[") for text in row))
        self._out.print(table)

    @contextmanager
    def progress(self, what: str, total_bytes: int) -> Iterator[Report]:
        """Show how far something is; a bar on a terminal, a line at the end elsewhere."""
        lock = threading.Lock()
        done = 0
        bar = Progress(
            TextColumn("{task.description}"),
            *(BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn()),
            console=self._err,
            disable=not self._err.is_terminal,
        )
        with bar:
            task = bar.add_task(what, total=total_bytes)

            def report(amount_bytes: int) -> None:
                nonlocal done
                with lock:
                    done += amount_bytes
                bar.advance(task, amount_bytes)

            yield report
        if not self._err.is_terminal:
            self.remark(f"{what}: {size(done)}")


def size(amount_bytes: int | None) -> str:
    """An amount of bytes for people."""
    if amount_bytes is None:
        return "-"
    power = min(max(amount_bytes.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return f"{amount_bytes} B" if power == 0 else f"{amount_bytes / 1024**power:.1f} {_UNITS[power]}"
