"""The verdict over two revisions: seldom a false alarm, never blind to five per cent."""

from __future__ import annotations

import random

import pytest

from benchmarks.perf_gate import checked_out, judge, rates_of

BETWEEN_PROCESSES = 0.015
"""Spread of the ratio of two processes of the same code, as seen between repeated starts."""


def ratios(slowdown: float, source: random.Random) -> list[float]:
    return [slowdown * (1 + source.gauss(0, BETWEEN_PROCESSES)) for _ in range(8)]


def test_identical_code_is_seldom_called_slower() -> None:
    source = random.Random(1)
    alarms = sum(judge(ratios(1.0, source)).is_slower for _ in range(2000))
    assert alarms <= 130  # 1 in 20 are 100; more than 130 happen once in 500 times


def test_five_per_cent_are_caught() -> None:
    source = random.Random(1)
    caught = sum(judge(ratios(1.05, source)).is_slower for _ in range(200))
    assert caught >= 198
    assert judge([1.04, 1.05, 1.06]).slowdown == pytest.approx(1.05, abs=1e-3)


def test_rates_are_those_of_the_ratios() -> None:
    source = random.Random(1)
    rates = rates_of(ratios(1.0, source) * 4, 8, 1.05, draws=500)
    assert rates.false_alarms <= 0.1 and rates.caught >= 0.99
    assert rates_of(ratios(1.02, source) * 4, 8, 1.05, draws=500).false_alarms > 0.5


def test_revision_that_is_none_is_said() -> None:
    with pytest.raises(SystemExit, match="no-such-revision: cannot be checked out"), checked_out("no-such-revision"):
        pass
