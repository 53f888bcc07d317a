"""The checkpoint tool's output: tables and progress for a terminal, and JSON for scripts."""

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

from training.checkpoint.storage.parallel import Report

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Presenter:
    """Writes results to standard output, and progress and notes to standard error.

    Args:
        as_json: True to write the result as one JSON document instead of text and tables.
    """

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        # If this is not a terminal, do not truncate lines, so that the output can be searched and piped.
        self._out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 200)
        self._err = Console(stderr=True, highlight=False, soft_wrap=True)

    def result(self, document: Mapping[str, Any] | Sequence[Any]) -> None:
        """Write the result for scripts; no effect without ``as_json``."""
        if self.as_json:
            sys.stdout.write(json.dumps(document, indent=2) + "\n")

    def print(self, text: str) -> None:
        """Write a text line that is part of the result; no effect with ``as_json``."""
        if not self.as_json:
            self._out.print(text, markup=False)

    def note(self, text: str) -> None:
        """Write a note that is not part of the result, such as the reason why it is empty."""
        self._err.print(text, markup=False)

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Write a table if it has rows; no effect with ``as_json``. Number columns are right-aligned."""
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
    def progress(self, action: str, total_bytes: int) -> Iterator[Report]:
        """Show progress: a bar on a terminal, otherwise a line at the end."""
        lock = threading.Lock()
        done = 0
        bar = Progress(
            TextColumn("{task.description}"),
            *(BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn()),
            console=self._err,
            disable=not self._err.is_terminal,
        )
        with bar:
            task = bar.add_task(action, total=total_bytes)

            def report(amount_bytes: int) -> None:
                nonlocal done
                with lock:
                    done += amount_bytes
                bar.advance(task, amount_bytes)

            yield report
        if not self._err.is_terminal:
            self.note(f"{action}: {size(done)}")


def size(amount_bytes: int | None) -> str:
    """Format a number of bytes with a binary unit."""
    if amount_bytes is None:
        return "-"
    power = min(max(amount_bytes.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return f"{amount_bytes} B" if power == 0 else f"{amount_bytes / 1024**power:.1f} {_UNITS[power]}"
