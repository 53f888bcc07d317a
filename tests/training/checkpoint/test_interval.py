"""The automatic interval: from cost and failure rate, and never shorter than a save."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from training.checkpoint.interval import AutomaticInterval, best_interval_seconds


@given(cost=st.floats(0.01, 100), failures=st.floats(60, 1e6), other=st.floats(0.1, 10))
def test_no_other_interval_loses_less(cost: float, failures: float, other: float) -> None:
    def lost(interval: float) -> float:
        return cost / interval + interval / 2 / failures

    best = best_interval_seconds(cost, failures, 0.0)
    assert lost(best) <= lost(best * other) * (1 + 1e-9)


def test_a_save_is_through_before_the_next_one_is_due() -> None:
    assert best_interval_seconds(0.01, 60.0, 500.0) == 500.0


def test_cost_is_what_the_loop_stood_still_and_what_its_steps_took_longer() -> None:
    policy = AutomaticInterval(failure_interval_seconds=1000.0, now_seconds=0.0)
    assert policy.interval_seconds() == math.sqrt(2 * 1000)
    assert not policy.is_due(40.0)
    assert policy.is_due(45.0)
    for _ in range(10):
        policy.note_step(1.0, saving=False)
    policy.note_begin(45.0)
    for _ in range(4):
        policy.note_step(1.5, saving=True)
    policy.note_commit(blocked_seconds=0.5, save_seconds=6.0)
    assert policy.interval_seconds() == math.sqrt(2 * (0.5 + 4 * 0.5) * 1000)
    assert not policy.is_due(45.0 + 70.0)
    assert policy.is_due(45.0 + 71.0)


def test_all_ranks_save_when_rank_zero_says_that_it_pays(gangs: Any, tiny_config: dict[str, Any]) -> None:
    # Failures are said to be so frequent that a save is due as soon as the one before it is through.
    checkpoint = {"interval_steps": "auto", "failure_interval_seconds": 1e-6}
    run = gangs.start("run", {**tiny_config, "steps": 100000, "checkpoint": checkpoint}, 2)
    run.wait_for(lambda: len(run.records("checkpoint")) >= 2)
    (run.directory / "stop").touch()
    assert run.wait() == [75, 75], run.errors()
    assert {record["reason"] for record in run.records("checkpoint")} == {"interval", "stop"}
    assert all(record["bytes_per_second"] > 0 for record in run.records("checkpoint"))
