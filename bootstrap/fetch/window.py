"""Limits the number of requests in flight."""

from __future__ import annotations

import math

MIN_SIZE = 4.0
MIN_SPEEDUP = 1.25
"""Minimum speed-up from doubling the requests. Below it, the network or the machine is saturated."""
_COOL_DOWN_SECONDS = 1.0  # a burst of refusals halves the limit once


class Window:
    """A limit that doubles as long as the download gets faster, and halves when S3 returns SlowDown."""

    def __init__(self, initial: int, maximum: int) -> None:
        self.size = float(min(initial, maximum))
        self._max = float(maximum)
        self._fastest = 0.0
        self._since_seconds = math.nan  # the first response starts the first round
        self._bytes = self._responses = 0
        self._cool_until_seconds = -math.inf

    def received(self, count: int, now_seconds: float) -> None:
        """Count a response of `count` bytes. A round has as many responses as the limit."""
        if math.isnan(self._since_seconds):
            self._since_seconds = now_seconds
            return
        self._bytes += count
        self._responses += 1
        if self._responses < self.size or now_seconds <= self._since_seconds:
            return
        rate = self._bytes / (now_seconds - self._since_seconds)
        if rate > MIN_SPEEDUP * self._fastest:
            self._fastest = rate
            self.size = min(self._max, 2 * self.size)
        self._start_round(now_seconds)

    def refused(self, now_seconds: float) -> None:
        """Count a SlowDown response, which S3 sends to reject excess requests."""
        if now_seconds < self._cool_until_seconds:
            return
        self.size = max(MIN_SIZE, self.size / 2)
        self._cool_until_seconds = now_seconds + _COOL_DOWN_SECONDS
        self._fastest = 0.0
        self._start_round(now_seconds)

    def _start_round(self, now_seconds: float) -> None:
        self._since_seconds = now_seconds
        self._bytes = self._responses = 0
