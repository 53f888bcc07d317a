"""Statistics of interleaved timing."""

from __future__ import annotations

import random

import pytest

from benchmarks.interleaved import mean_ratio, ratio_of, time_interleaved


def pairs(slowdown: float, noise: float, count: int, seed: int) -> list[tuple[float, float]]:
    """Return pairs with a common drift, independent noise, and occasional disturbances of one side."""
    source = random.Random(seed)
    made = []
    for _ in range(count):
        drift = source.uniform(0.5, 2.0)
        first, second = (drift * (1 + source.gauss(0, noise)) for _ in range(2))
        if source.random() < 0.02:
            first, second = (first * 10, second) if source.random() < 0.5 else (first, second * 10)
        made.append((first * slowdown, second))
    return made


@pytest.mark.parametrize("slowdown", [0.95, 1.0, 1.05])
def test_ratio_is_robust_to_drift_noise_and_disturbances(slowdown: float) -> None:
    found = ratio_of(pairs(slowdown, 0.05, 600, seed=1))
    assert found.value == pytest.approx(slowdown, abs=0.01)
    assert found.lower_95 < found.value < found.upper_95
    assert found.upper_95 - found.lower_95 < 0.02


def test_bounds_have_their_nominal_coverage() -> None:
    misses = sum(ratio_of(pairs(1.0, 0.05, 200, seed)).lower_95 > 1.0 for seed in range(400))
    assert misses <= 36  # expected: 5% (20); more than 36 has a probability of 1 in 2000


def test_bounds_over_processes_have_their_nominal_coverage() -> None:
    source = random.Random(0)
    draws = [[1.02 * (1 + source.gauss(0, 0.01)) for _ in range(6)] for _ in range(400)]
    above = sum(mean_ratio(draw).lower_95 > 1.02 for draw in draws)
    below = sum(mean_ratio(draw).upper_95 < 1.02 for draw in draws)
    assert min(above, below) >= 5  # wider bounds than stated would be useless
    assert max(above, below) <= 36  # expected: 5% (20) on each side


def test_order_within_pairs_is_random() -> None:
    order: list[str] = []

    def measure(name: str) -> float:
        order.append(name)
        return {"a": 1.0, "b": 2.0}[name]

    assert time_interleaved(lambda: measure("a"), lambda: measure("b"), 100) == [(1.0, 2.0)] * 100
    assert 20 < sum(order[place] == "a" for place in range(0, 200, 2)) < 80
