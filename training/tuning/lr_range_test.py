"""The learning-rate range test: raises the learning rate in each step until the loss diverges.

Source: Smith 2017, https://arxiv.org/abs/1506.01186, section 3.3.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from training.process.distributed import ControlFlags, Gang

logger = logging.getLogger(__name__)

SMOOTHING = 0.9
DIVERGED_FACTOR = 4.0
"""The test ends when the smoothed loss exceeds its minimum by this factor, as in fast.ai's learning-rate finder."""


@dataclass(frozen=True)
class Point:
    """One step in the test: its learning rate, and the smoothed loss so far."""

    learning_rate: float
    loss: float


@dataclass(frozen=True)
class RangeTest:
    """A learning-rate range test.

    Attributes:
        lowest: learning rate at the first step.
        highest: learning rate at the last step.
        steps: number of steps, at least 2.
    """

    lowest: float
    highest: float
    steps: int

    def run(
        self, gang: Gang, take_step: Callable[[float], float], wants_stop: Callable[[], bool]
    ) -> tuple[list[Point], bool]:
        """Run the test; return its points, and False if the ranks agreed to stop. All ranks call it together.

        Args:
            gang: all ranks.
            take_step: function that takes a step at a learning rate, and returns this rank's share of the loss.
            wants_stop: function that returns True if this rank received a stop request.
        """
        points: list[Point] = []
        average, weight = 0.0, 0.0
        for number in range(self.steps):
            rate = self.lowest * (self.highest / self.lowest) ** (number / (self.steps - 1))
            loss = take_step(rate)
            agreed = gang.agree(ControlFlags(loss=loss, stop=float(wants_stop())))
            if agreed.stop:
                return points, False
            average = SMOOTHING * average + (1 - SMOOTHING) * agreed.loss
            weight = SMOOTHING * weight + (1 - SMOOTHING)
            points.append(Point(rate, average / weight))
            if gang.rank == 0:
                logger.info("step %d of %d: rate %.3g, loss %.4f", number + 1, self.steps, rate, points[-1].loss)
            smallest = min(point.loss for point in points)
            if not math.isfinite(agreed.loss) or points[-1].loss > DIVERGED_FACTOR * smallest:
                break
        return points, True


def suggest(points: list[Point]) -> float | None:
    """Return the rate at which the smoothed loss falls most steeply over the log rate; None if it never falls."""
    slopes = [
        ((later.loss - earlier.loss) / math.log(later.learning_rate / earlier.learning_rate), earlier.learning_rate)
        for earlier, later in zip(points, points[1:], strict=False)
    ]
    falling = [(slope, rate) for slope, rate in slopes if slope < 0]
    return min(falling)[1] if falling else None
