"""When the next checkpoint is due: every so many steps, or as often as pays."""

from __future__ import annotations

import math
import statistics
from collections import deque

ASSUMED_COST_SECONDS = 1.0
"""Training time that a save costs, until one has been measured."""
REMEMBERED_STEPS = 101
REMEMBERED_SAVES = 5


def best_interval_seconds(cost_seconds: float, failure_interval_seconds: float, save_seconds: float) -> float:
    """Time between saves at which saving and computing again after failures cost least together.

    With a save each T seconds the share of time lost is cost / T for saving, and T / 2 out of every failure interval
    for steps that are computed again; their sum is smallest at sqrt(2 * cost * failure interval). A save must be
    through before the next one begins.
    Source: Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (9), 1974-09,
    https://doi.org/10.1145/361147.361115.

    Args:
        cost_seconds: training time that one save costs.
        failure_interval_seconds: mean time between ends without notice.
        save_seconds: from the wish for a save to its commit.
    """
    return max(save_seconds, math.sqrt(2 * cost_seconds * failure_interval_seconds))


class AutomaticInterval:
    """Measures what saves cost and says when the next one is due; on one rank, whose word all ranks follow.

    Args:
        failure_interval_seconds: mean time between ends without notice.
        now_seconds: of the same clock as all other times given here.
    """

    def __init__(self, failure_interval_seconds: float, now_seconds: float) -> None:
        self._failure_interval_seconds = failure_interval_seconds
        self._last_save_seconds = now_seconds
        self._undisturbed: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._disturbed: list[float] = []
        self._costs: deque[float] = deque(maxlen=REMEMBERED_SAVES)
        self._durations: deque[float] = deque(maxlen=REMEMBERED_SAVES)

    def note_step(self, step_seconds: float, saving: bool) -> None:
        """Take in a step, and whether a save was in flight beside it."""
        if saving:
            self._disturbed.append(step_seconds)
        else:
            self._undisturbed.append(step_seconds)

    def note_begin(self, now_seconds: float) -> None:
        """A save has begun, for whatever reason."""
        self._last_save_seconds = now_seconds
        self._disturbed = []

    def note_commit(self, blocked_seconds: float, save_seconds: float) -> None:
        """A save has been committed."""
        excess = 0.0
        if self._undisturbed:
            excess = max(0.0, sum(self._disturbed) - len(self._disturbed) * statistics.median(self._undisturbed))
        self._costs.append(blocked_seconds + excess)
        self._durations.append(save_seconds)

    def interval_seconds(self) -> float:
        """Time from one save to the next, as it pays by what has been measured."""
        cost = statistics.median(self._costs) if self._costs else ASSUMED_COST_SECONDS
        duration = statistics.median(self._durations) if self._durations else 0.0
        return best_interval_seconds(cost, self._failure_interval_seconds, duration)

    def is_due(self, now_seconds: float) -> bool:
        """Whether the next save should begin."""
        return now_seconds - self._last_save_seconds >= self.interval_seconds()
