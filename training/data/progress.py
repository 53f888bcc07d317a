"""Progress bar for long operations."""

from __future__ import annotations

import sys
from typing import Any


class Progress:
    """A progress bar, shown only if stderr is a terminal."""

    def __init__(self) -> None:
        self._bar: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn, TransferSpeedColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def stage(self, description: str, total_bytes: int | None = None) -> None:
        """Start a stage; ``total_bytes`` is the stage's amount of work, if known."""
        if self._bar is not None:
            self._bar.reset(self._task, description=description, total=total_bytes)

    def advance(self, done_bytes: int) -> None:
        """Add to the work done in this stage."""
        if self._bar is not None:
            self._bar.advance(self._task, done_bytes)
