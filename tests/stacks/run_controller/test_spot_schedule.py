"""The randomized schedule: its phases, and its published numbers (arXiv 2601.14612, Theorem 2)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stacks.functions.run_controller.causes import Cause
from stacks.functions.run_controller.placement import Task
from stacks.functions.run_controller.places import HOUR, Offer, Place, Record
from stacks.functions.run_controller.spot_schedule import (
    Injection,
    cost_bound,
    decide_randomised,
    draw,
    warm_up_limit,
)

SPOT = Offer(Place("r", "r-1a", "t", "spot"), 1.0)
ON_DEMAND = Offer(Place("r", "r-1a", "t", "on_demand"), 4.0)
TASK = Task(work_hours=12.0, deadline_unix_seconds=20.0 * HOUR, planned_share=0.6, restart_hours=0.0, period_hours=0.0)


def action(task: Task, hours: float, injection: Injection | None, current: Place | None = None) -> str:
    decision, _ = decide_randomised(task, [SPOT, ON_DEMAND], current, hours * HOUR, injection, 0.5)
    return decision.action


@pytest.mark.parametrize(
    ("price_ratio", "time_over_work", "bound"),
    # sqrt(K) from the limit on, and 1 + (K - 1) (2 - D / L) below it. The two agree at the limit.
    [
        (4.0, 5 / 3, 2.0),
        (4.0, 3.0, 2.0),
        (4.0, 1.25, 3.25),
        (4.0, 1.0, 4.0),
        (9.0, 1.75, 3.0),
        (9.0, 7 / 4 - 1e-9, 3.0),
    ],
)
def test_published_bounds(price_ratio: float, time_over_work: float, bound: float) -> None:
    assert cost_bound(price_ratio, time_over_work) == pytest.approx(bound)


def test_limit_of_the_warm_up() -> None:
    assert warm_up_limit(4.0) == pytest.approx(5 / 3)
    assert warm_up_limit(9.0) == pytest.approx(7 / 4)


def test_interval_on_demand() -> None:
    # At the limit, W / (1 + sqrt(K)) = 4 h and 2 W - R = 4 h. It starts in the first 8 of 12 h.
    for uniform, start in ((0.0, 0.0), (0.5, 4.0), (1.0, 8.0)):
        injection = draw(TASK, 4.0, 0.0, uniform)
        assert injection.start_unix_seconds == pytest.approx(start * HOUR)
        assert injection.end_unix_seconds == pytest.approx((start + 4.0) * HOUR)
        assert injection.closes_unix_seconds == pytest.approx(12.0 * HOUR)
    tight = draw(replace(TASK, deadline_unix_seconds=15.0 * HOUR), 4.0, 0.0, 0.0)
    assert tight.end_unix_seconds == pytest.approx(9.0 * HOUR)  # 2 x 12 - 15


def test_phases() -> None:
    early = replace(TASK, deadline_unix_seconds=30.0 * HOUR)
    decision, injection = decide_randomised(early, [SPOT, ON_DEMAND], None, 0.0, None, 0.5)
    assert (decision.action, injection) == ("place", None)  # warm-up
    decision, injection = decide_randomised(TASK, [SPOT, ON_DEMAND], None, 0.0, None, 0.5)
    assert decision.action == "place"
    assert injection == draw(TASK, 4.0, 0.0, 0.5)
    half_done = replace(TASK, work_hours=8.0)
    assert action(half_done, 5.0, injection) == "on_demand"
    assert action(half_done, 5.0, injection, SPOT.place) == "on_demand"
    assert action(half_done, 9.0, injection) == "place"
    assert action(replace(TASK, work_hours=2.0), 13.0, injection) == "place"  # catch-up


def test_no_slack() -> None:
    injection = Injection(0.0, 1.0, 0.0, 1.0)
    task = replace(TASK, work_hours=7.1)
    assert action(task, 13.0, injection, ON_DEMAND.place) == "place"  # a restart takes no time
    assert action(task, 13.0, injection) == "on_demand"  # a refused request would
    assert action(replace(task, restart_hours=0.1), 13.0, injection, ON_DEMAND.place) == "on_demand"


def test_waits_for_a_place_that_may_not_be_asked() -> None:
    refused = replace(SPOT, record=Record().refused(Cause.QUOTA, 0.0))
    decision, _ = decide_randomised(TASK, [refused, ON_DEMAND], None, 0.0, Injection(0.0, 1.0, 2.0, 3.0), 0.5)
    assert decision.action == "wait"


def test_needs_a_deadline_and_a_place_on_demand() -> None:
    for task, offers in ((replace(TASK, deadline_unix_seconds=None), [SPOT, ON_DEMAND]), (TASK, [SPOT])):
        with pytest.raises(ValueError, match="needs a deadline and an On-Demand place"):
            decide_randomised(task, offers, None, 0.0, None, 0.5)
