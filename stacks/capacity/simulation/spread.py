"""The distribution of a quantity over simulated runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """The distribution of a quantity over all simulated runs."""

    mean: float
    low: float
    median: float
    high: float
    worst: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the mean, the 10th, 50th and 90th percentiles, and the maximum."""
        ordered = sorted(values)

        def at(share: float) -> float:
            return ordered[min(len(ordered) - 1, math.floor(share * len(ordered)))]

        return cls(statistics.fmean(ordered), at(0.1), at(0.5), at(0.9), ordered[-1])
