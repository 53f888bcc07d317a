"""Progress of a download, as events."""

from __future__ import annotations

from bootstrap.context import Context
from bootstrap.events.schema import StagingProgress

INTERVAL_SECONDS = 5.0


class Progress:
    """Counts bytes and emits `staging_progress` events."""

    def __init__(self, context: Context, total_bytes: int) -> None:
        self._context = context
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._received_bytes = 0
        self._started_seconds = self._reported_seconds = context.system.monotonic_seconds()

    def add(self, count: int, *, received: bool = False) -> None:
        """Count bytes on disk. Only newly `received` bytes count toward the rate."""
        self._done_bytes += count
        self._received_bytes += count if received else 0
        now = self._context.system.monotonic_seconds()
        if not received or now - self._reported_seconds < INTERVAL_SECONDS:
            return
        self._reported_seconds = now
        rate = self._received_bytes / (now - self._started_seconds)
        self._context.events.emit(
            StagingProgress(
                bytes_done=self._done_bytes,
                bytes_total=self._total_bytes,
                mib_per_second=round(rate / 1024**2, 1),
                remaining_seconds=round((self._total_bytes - self._done_bytes) / rate, 1),
            )
        )
