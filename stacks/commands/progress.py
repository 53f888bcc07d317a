"""Prints the progress of a slow command to standard error, at least every five seconds."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

SILENT_SECONDS = 4.0
"""Maximum time between lines of progress."""


class Progress:
    """Prints each step when it starts, and again with its elapsed time while it runs. Use it as a context manager."""

    def __init__(self, silent_seconds: float = SILENT_SECONDS) -> None:
        self._silent_seconds = silent_seconds
        self._step = ""
        self._started = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def __call__(self, step: str) -> None:
        """Start a step and print it."""
        self._step, self._started = step, time.monotonic()
        print(f"{step} ...", file=sys.stderr, flush=True)

    def _repeat(self) -> None:
        while not self._ended.wait(self._silent_seconds):
            if self._step:
                print(f"{self._step} ... ({time.monotonic() - self._started:.0f} s)", file=sys.stderr, flush=True)
