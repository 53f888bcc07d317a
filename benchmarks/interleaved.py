"""Interleaved timing: the ratio of two durations measured alternately, with its confidence bounds.

On a shared machine, durations drift by several percent during a benchmark, but very little between consecutive
measurements. The ratio is therefore computed within each pair, on a logarithmic scale, and averaged by a trimmed mean,
which resists a few disturbed pairs (Yuen 1974, https://doi.org/10.1093/biomet/61.1.165).
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

TRIMMED_SHARE = 0.2
"""Share of the pairs to discard at each end."""
NORMAL_95 = 1.645
"""One-sided 95% quantile of the normal distribution."""
STUDENT_95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753)
"""One-sided 95% quantiles of Student's t distribution for 1, 2, ... degrees of freedom (standard table)."""


@dataclass(frozen=True)
class Ratio:
    """Ratio of two durations, first to second: 1.02 if the first takes 2% longer.

    Attributes:
        value: the estimate.
        lower_95: one-sided lower 95% bound.
        upper_95: one-sided upper 95% bound.
        pairs: number of pairs, or of processes.
    """

    value: float
    lower_95: float
    upper_95: float
    pairs: int


def ratio_of(pairs: Sequence[tuple[float, float]], quantile: float = NORMAL_95) -> Ratio:
    """Estimate the ratio of two durations.

    Args:
        pairs: durations in seconds of the first and the second operation, measured consecutively.
        quantile: one-sided 95% quantile of the estimate's distribution; the normal quantile for 50 pairs or more.
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


def mean_ratio(ratios: Sequence[float]) -> Ratio:
    """Return the mean of ratios that were measured in separate processes.

    Memory placement makes some processes faster than others even with the same code, so the bounds come from the spread
    between processes.

    Args:
        ratios: 2 to 16 ratios.
    """
    logs = [math.log(ratio) for ratio in ratios]
    mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    reach = STUDENT_95[len(logs) - 2] * error
    return Ratio(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), len(logs))


def time_interleaved(first: Callable[[], float], second: Callable[[], float], pairs: int) -> list[tuple[float, float]]:
    """Time two operations alternately, in a random order within each pair.

    Args:
        first: performs the first operation and returns its duration in seconds.
        second: performs the second operation and returns its duration in seconds.
        pairs: number of pairs.
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
