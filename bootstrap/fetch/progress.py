"""How far a copy has come: an event now and then."""

from __future__ import annotations

from bootstrap.plan import Context

EVERY_SECONDS = 5.0


class Progress:
    """Counts bytes, and emits `staging` events."""

    def __init__(self, context: Context, total_bytes: int) -> None:
        self._context = context
        self._total_bytes = total_bytes
        self._there_bytes = 0
        self._came_bytes = 0
        self._started_seconds = self._said_seconds = context.system.monotonic_seconds()

    def add(self, count: int, *, came: bool = False) -> None:
        """Count bytes: those that `came` just now tell the rate, those found there do not."""
        self._there_bytes += count
        self._came_bytes += count if came else 0
        now = self._context.system.monotonic_seconds()
        if not came or now - self._said_seconds < EVERY_SECONDS:
            return
        self._said_seconds = now
        rate = self._came_bytes / (now - self._started_seconds)
        self._context.events.emit(
            "staging",
            state="progress",
            bytes_done=self._there_bytes,
            bytes_total=self._total_bytes,
            mib_per_second=round(rate / 1024**2, 1),
            remaining_seconds=round((self._total_bytes - self._there_bytes) / rate, 1),
        )
