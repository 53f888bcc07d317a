"""Automatic checkpoint interval: balances the cost of saves against the steps lost in a failure."""

from __future__ import annotations

import math
import statistics
from collections import deque

ASSUMED_COST_SECONDS = 1.0
"""Assumed cost of a save in training time, until a save has been measured."""
REMEMBERED_STEPS = 101
REMEMBERED_SAVES = 5


def best_interval_seconds(cost_seconds: float, failure_interval_seconds: float, save_seconds: float) -> float:
    """Return the time between saves that minimizes the time spent on saving and on recomputing steps after failures.

    With a save every T seconds, saving takes the fraction cost / T of the time, and recomputing steps costs half of T
    per failure on average. The sum is smallest at sqrt(2 * cost * failure interval). A save must finish before the next
    save begins.
    Source: Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (9), 1974-09,
    https://doi.org/10.1145/361147.361115.

    Args:
        cost_seconds: training time that a save costs.
        failure_interval_seconds: mean time between failures without notice.
        save_seconds: time from the request for a save to its commit.
    """
    return max(save_seconds, math.sqrt(2 * cost_seconds * failure_interval_seconds))


class AutomaticInterval:
    """Measures the cost of saves, and decides when the next save is due. Rank 0 decides for all ranks.

    Args:
        failure_interval_seconds: mean time between failures without notice.
        now_seconds: current time, from the same clock as all other times.
    """

    def __init__(self, failure_interval_seconds: float, now_seconds: float) -> None:
        self._failure_interval_seconds = failure_interval_seconds
        self._last_save_seconds = now_seconds
        self._undisturbed: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._disturbed: list[float] = []
        self._costs: deque[float] = deque(maxlen=REMEMBERED_SAVES)
        self._durations: deque[float] = deque(maxlen=REMEMBERED_SAVES)

    def note_step(self, step_seconds: float, saving: bool) -> None:
        """Record a step, and whether a save was in flight during it."""
        if saving:
            self._disturbed.append(step_seconds)
        else:
            self._undisturbed.append(step_seconds)

    def note_begin(self, now_seconds: float) -> None:
        """Record the start of a save, regardless of its reason."""
        self._last_save_seconds = now_seconds
        self._disturbed = []

    def note_commit(self, blocked_seconds: float, save_seconds: float) -> None:
        """Record that a save has been committed."""
        excess = 0.0
        if self._undisturbed:
            excess = max(0.0, sum(self._disturbed) - len(self._disturbed) * statistics.median(self._undisturbed))
        self._costs.append(blocked_seconds + excess)
        self._durations.append(save_seconds)

    def interval_seconds(self) -> float:
        """Return the optimal time between saves for the measured costs."""
        cost = statistics.median(self._costs) if self._costs else ASSUMED_COST_SECONDS
        duration = statistics.median(self._durations) if self._durations else 0.0
        return best_interval_seconds(cost, self._failure_interval_seconds, duration)

    def is_due(self, now_seconds: float) -> bool:
        """Return True if the next save should begin."""
        return now_seconds - self._last_save_seconds >= self.interval_seconds()
