"""What two things that were measured in turns say about each other: the ratio of their times, and how sure it is.

Times of one after the other drift by several per cent on a shared machine; times of neighbours hardly differ. So the
ratio is taken within each pair, on a logarithmic scale, and summed up by a trimmed mean, which a few disturbed pairs
do not move (Yuen 1974, https://doi.org/10.1093/biomet/61.1.165).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

TRIMMED_SHARE = 0.2
"""Of the pairs at either end."""
NORMAL_95 = 1.645
"""One-sided 95 % quantile of the normal distribution."""


@dataclass(frozen=True)
class Ratio:
    """A ratio of times, first over second; 1.02 means that the first takes 2 % longer.

    Attributes:
        value: the estimate.
        lower_95: one-sided lower 95 % bound.
        upper_95: one-sided upper 95 % bound.
        pairs: that it comes from.
    """

    value: float
    lower_95: float
    upper_95: float
    pairs: int


def ratio_of(pairs: Sequence[tuple[float, float]], quantile: float = NORMAL_95) -> Ratio:
    """Estimate the ratio from pairs of seconds.

    Args:
        pairs: seconds of first and second, measured one right after the other.
        quantile: one-sided 95 % quantile of the estimate's distribution; the normal one's suits 50 pairs and more.
    """
    logs = sorted(math.log(first / second) for first, second in pairs)
    cut = int(TRIMMED_SHARE * len(logs))
    kept = logs[cut : len(logs) - cut]
    mean = sum(kept) / len(kept)
    winsorised = [min(max(value, kept[0]), kept[-1]) for value in logs]
    centre = sum(winsorised) / len(winsorised)
    variance = sum((value - centre) ** 2 for value in winsorised) / (len(logs) - 1)
    error = math.sqrt(variance / len(logs)) / (1 - 2 * TRIMMED_SHARE)
    return Ratio(math.exp(mean), math.exp(mean - quantile * error), math.exp(mean + quantile * error), len(logs))


def in_turns(first: Callable[[], float], second: Callable[[], float], pairs: int) -> list[tuple[float, float]]:
    """Measure both so many times, one right after the other, in an order drawn for each pair.

    Args:
        first: does one piece of work, and returns its seconds.
        second: likewise.
        pairs: number of them.
    """
    order = random.Random(0)  # noqa: S311
    measured = []
    for _ in range(pairs):
        if order.random() < 0.5:
            measured.append((first(), second()))
        else:
            later = second()
            measured.append((first(), later))
    return measured
