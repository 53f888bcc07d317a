"""How many requests may be under way."""

from __future__ import annotations

import math

LEAST = 4.0
WORTHWHILE = 1.25
"""Twice the requests must come this much faster, or the network, or the machine, has no more to give."""
_CALM_SECONDS = 1.0  # a burst of refusals is one


class Window:
    """Twice as many while that makes the copy faster, half as many when S3 asks for that."""

    def __init__(self, first: int, most: int) -> None:
        self.size = float(min(first, most))
        self._most = float(most)
        self._fastest = 0.0
        self._since_seconds = math.nan  # the first answer begins the first round
        self._bytes = self._answers = 0
        self._calm_until_seconds = -math.inf

    def came(self, count: int, now_seconds: float) -> None:
        """Count an answer of so many bytes; as many as may be under way are a round."""
        if math.isnan(self._since_seconds):
            self._since_seconds = now_seconds
            return
        self._bytes += count
        self._answers += 1
        if self._answers < self.size or now_seconds <= self._since_seconds:
            return
        rate = self._bytes / (now_seconds - self._since_seconds)
        if rate > WORTHWHILE * self._fastest:
            self._fastest = rate
            self.size = min(self._most, 2 * self.size)
        self._begin_round(now_seconds)

    def refused(self, now_seconds: float) -> None:
        """Count a refusal for too many requests."""
        if now_seconds < self._calm_until_seconds:
            return
        self.size = max(LEAST, self.size / 2)
        self._calm_until_seconds = now_seconds + _CALM_SECONDS
        self._fastest = 0.0
        self._begin_round(now_seconds)

    def _begin_round(self, now_seconds: float) -> None:
        self._since_seconds = now_seconds
        self._bytes = self._answers = 0
