"""The performance gate: rare false alarms, and detection of a slowdown of 5%."""

from __future__ import annotations

import random

import pytest

from benchmarks.perf_gate import checked_out, judge, rates_of

BETWEEN_PROCESSES = 0.015
"""Observed standard deviation of the ratio of two processes with the same code."""


def ratios(slowdown: float, source: random.Random) -> list[float]:
    return [slowdown * (1 + source.gauss(0, BETWEEN_PROCESSES)) for _ in range(8)]


def test_false_alarms_are_rare() -> None:
    source = random.Random(1)
    alarms = sum(judge(ratios(1.0, source)).is_slower for _ in range(2000))
    assert alarms <= 130  # expected: 1 in 20 (100); more than 130 has a probability of 1 in 500


def test_detects_a_slowdown_of_5_percent() -> None:
    source = random.Random(1)
    caught = sum(judge(ratios(1.05, source)).is_slower for _ in range(200))
    assert caught >= 198
    assert judge([1.04, 1.05, 1.06]).slowdown == pytest.approx(1.05, abs=1e-3)


def test_error_rates_follow_the_ratios() -> None:
    source = random.Random(1)
    rates = rates_of(ratios(1.0, source) * 4, 8, 1.05, draws=500)
    assert rates.false_alarms <= 0.1 and rates.caught >= 0.99
    assert rates_of(ratios(1.02, source) * 4, 8, 1.05, draws=500).false_alarms > 0.5


def test_unknown_revision() -> None:
    with pytest.raises(SystemExit, match="no-such-revision: cannot check it out"), checked_out("no-such-revision"):
        pass
