"""Measures the phases of a change to the gang."""

from __future__ import annotations

import time


class Phases:
    """Measures the phases of a change. Seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = self._began = time.monotonic()

    def end(self, name: str) -> None:
        """Assign the time since the last phase to ``name``."""
        now = time.monotonic()
        self.seconds[f"{name}_seconds"] = now - self._since
        self._since = now

    @property
    def total_seconds(self) -> float:
        """Time since the beginning."""
        return time.monotonic() - self._began
