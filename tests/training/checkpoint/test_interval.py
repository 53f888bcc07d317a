"""The automatic checkpoint interval: from cost and failure rate, and never shorter than a save."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.checkpoint.interval import AutomaticInterval, best_interval_seconds
from training.config import TrainingConfig


@given(cost=st.floats(0.01, 100), failures=st.floats(60, 1e6), other=st.floats(0.1, 10))
def test_interval_minimizes_lost_time(cost: float, failures: float, other: float) -> None:
    def lost(interval: float) -> float:
        return cost / interval + interval / 2 / failures

    best = best_interval_seconds(cost, failures, 0.0)
    assert lost(best) <= lost(best * other) * (1 + 1e-9)


def test_interval_is_at_least_the_duration_of_a_save() -> None:
    assert best_interval_seconds(0.01, 60.0, 500.0) == 500.0


def test_cost_is_blocked_time_plus_slowdown_of_steps() -> None:
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


def test_all_ranks_save_when_rank_zero_finds_a_save_due(gangs: Any, tiny_config: dict[str, Any]) -> None:
    # At this failure rate a save is due as soon as the previous one is committed.
    checkpoint = {"interval_steps": "auto", "failure_interval_seconds": 1e-6}
    run = gangs.start("run", {**tiny_config, "steps": 100000, "checkpoint": checkpoint}, 2)
    run.wait_for(lambda: len(run.records("checkpoint")) >= 2)
    (run.directory / "stop").touch()
    assert run.wait() == [75, 75], run.errors()
    assert {record["reason"] for record in run.records("checkpoint")} == {"interval", "stop"}
    assert all(record["bytes_per_second"] > 0 for record in run.records("checkpoint"))


def test_default_is_fifteen_minutes_or_500_steps_and_half_of_a_shorter_run() -> None:
    def interval(**settings: Any) -> int | None:
        return TrainingConfig.model_validate(settings).checkpoint_interval_steps

    assert TrainingConfig().checkpoint.interval_minutes == 15
    assert [interval(steps=steps) for steps in (100_000, 501, 500, 61, 60, 2, 1)] == [500, 500, 250, 31, 30, 1, 1]
    assert interval(steps=60, checkpoint={"interval_steps": 100}) == 100, "as configured"
    assert interval(checkpoint={"interval_steps": "auto"}) is None


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"steps": 1000}, "every 15 minutes or every 500 of 1000 steps, whichever is first, and at the end"),
        ({"steps": 60}, "every 15 minutes or every 30 of 60 steps, whichever is first, and at the end"),
        ({"steps": 60, "checkpoint": {"interval_steps": 60, "interval_minutes": None}}, "at the end"),
        ({"checkpoint": {"interval_steps": 5000}}, "every 15 minutes, and at the end"),
        ({"entrypoint": "own.py"}, "saved by own.py"),
    ],
)
def test_describes_the_interval(settings: dict[str, Any], text: str) -> None:
    assert TrainingConfig.model_validate(settings).describe_checkpoint_interval() == text


def test_short_run_saves_at_half_by_default(gangs: Any, tiny_config: dict[str, Any]) -> None:
    config = {key: value for key, value in tiny_config.items() if key != "checkpoint"}
    run = gangs.finish("run", {**config, "steps": 9}, 2)
    assert [record["step"] for record in run.records("checkpoint")] == [5, 9]


def test_all_ranks_save_when_the_minutes_have_passed(gangs: Any, tiny_config: dict[str, Any]) -> None:
    checkpoint = {"interval_steps": 1_000_000, "interval_minutes": 1e-6}
    run = gangs.start("run", {**tiny_config, "steps": 100000, "checkpoint": checkpoint}, 2)
    run.wait_for(lambda: len(run.records("checkpoint")) >= 2)
    (run.directory / "stop").touch()
    assert run.wait() == [75, 75], run.errors()
    assert run.records("checkpoint")[0]["reason"] == "interval"
