"""Follows the log of the trainers' standard output and error, for the event log."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

INTERVAL_SECONDS = 1.0
BYTES_PER_SECOND = 4096
"""Average limit. CloudWatch Logs bills ingestion by volume: 4 KiB/s is 10 GB per node per month."""
BURST_BYTES = 32_768
"""Burst limit. The tracebacks of 8 ranks fit, and an event in JSON stays below 200,000 bytes."""


@dataclass(frozen=True)
class Output:
    """New lines, and the number of bytes dropped before them because of the limit."""

    text: str
    dropped_bytes: int


class OutputReader:
    """Follows one log file. If it grows faster than the limit, drops the oldest bytes, because errors come last.

    Args:
        path: The log. It does not need to exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._budget_bytes = float(BURST_BYTES)
        self._read_at: float | None = None

    def read(self, now: float, *, is_last: bool = False) -> Output | None:
        """Return the lines that were completed since the last call, or None.

        Args:
            now: Monotonic seconds. Calls within INTERVAL_SECONDS of the last one return None.
            is_last: Also return an incomplete last line, without waiting for the interval.
        """
        if self._read_at is not None:
            elapsed = now - self._read_at
            if elapsed < INTERVAL_SECONDS and not is_last:
                return None
            self._budget_bytes = min(BURST_BYTES, self._budget_bytes + elapsed * BYTES_PER_SECOND)
        self._read_at = now
        try:
            with self._path.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                start = max(self._offset, size - int(self._budget_bytes))
                stream.seek(start)
                content = stream.read(int(self._budget_bytes))
        except FileNotFoundError:
            return None
        if not is_last:  # progress bars end their lines with a carriage return
            content = content[: max(content.rfind(b"\n"), content.rfind(b"\r")) + 1]
        if not content:
            return None
        dropped, self._offset = start - self._offset, start + len(content)
        self._budget_bytes -= len(content)
        return Output(content.decode(errors="replace"), dropped)
