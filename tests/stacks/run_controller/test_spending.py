"""The limits of a run: when the controller stops it, why, and what lifts the stop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stacks.functions.run_controller import records
from stacks.functions.run_controller.causes import Cause
from stacks.functions.run_controller.policy import (
    ControllerState,
    FleetState,
    Instance,
    Outcome,
    Resize,
    Run,
    Settings,
    Situation,
    decide,
)
from stacks.functions.run_controller.records import InvalidRecord
from stacks.functions.run_controller.spending import Limits, Spending

SETTINGS = Settings(("subnet-a",), False, 600, 3, limits=Limits(usd=10.0, run_hours=8.0))
FULL = FleetState(2, 2, ("subnet-a",), "1", (Instance("i-1", "InService"), Instance("i-2", "InService")))
EMPTY = replace(FULL, desired=0, instances=())
RUNNING = ControllerState(run_digest="d1", template="1", phase="running")
SPENT = Spending(usd=9.99, on_demand_usd=20.0, usd_per_hour=1.2, run_hours=7.99)


def situation(**changes: object) -> Situation:
    base = Situation(
        now_unix_seconds=10_000.0,
        settings=SETTINGS,
        run=Run("run-1", "d1", nodes=2, min_nodes=2),
        outcome=None,
        fleet=FULL,
        heard_from=frozenset({"i-1", "i-2"}),
        interrupted=frozenset(),
        state=RUNNING,
        spending=SPENT,
    )
    return replace(base, **changes)


@pytest.mark.parametrize(
    ("spent", "reason"),
    [
        (replace(SPENT, usd=10.0), "have cost 10.00 USD, and limits.usd is 10"),
        (replace(SPENT, usd=9.0, run_hours=8.0), "has had instances for 8.00 h, and limits.run_hours is 8"),
    ],
)
def test_a_run_at_its_limit_is_scaled_to_zero_with_the_cause(spent: Spending, reason: str) -> None:
    found = decide(situation(spending=spent))
    assert found.actions == (Resize(0),)
    assert (found.state.phase, found.state.cause) == ("limited", Cause.SPEND_LIMIT)
    assert reason in found.state.reason and "Remedy: raise the limit" in found.state.reason
    assert found.state.spending == spent


def test_a_run_below_its_limit_continues() -> None:
    assert decide(situation()).actions == () and decide(situation()).state.phase == "running"


def test_a_stopped_run_stays_at_zero_and_resumes_after_the_limit_was_raised() -> None:
    spent = replace(SPENT, usd=10.5)
    stopped = decide(situation(spending=spent)).state
    waiting = decide(situation(spending=spent, state=stopped, fleet=EMPTY))
    assert waiting.actions == () and waiting.state == stopped
    raised = replace(SETTINGS, limits=Limits(usd=20.0))
    resumed = decide(situation(spending=spent, state=stopped, fleet=EMPTY, settings=raised))
    assert resumed.actions == (Resize(2),) and resumed.state.phase == "running"


def test_a_retry_does_not_lift_the_limit() -> None:
    spent = replace(SPENT, usd=10.5)
    found = decide(situation(spending=spent, fleet=EMPTY, retry_requested=True))
    assert found.actions == () and found.state.phase == "limited"


def test_without_a_ledger_the_last_known_costs_count() -> None:
    known = replace(RUNNING, spending=replace(SPENT, usd=11.0))
    assert decide(situation(spending=None, state=known)).state.phase == "limited"
    assert decide(situation(spending=None)).state.phase == "running"


def test_a_finished_run_has_ended_even_if_it_reached_its_limit() -> None:
    found = decide(situation(spending=replace(SPENT, usd=11.0), outcome=Outcome("d1", "finished")))
    assert found.state.phase == "ended"


def test_a_spending_of_another_version_is_read() -> None:
    older = {"usd": 1.0, "on_demand_usd": 2.0, "usd_per_hour": 0.5, "run_hours": 3.0}
    assert records.state_of({"spending": older | {"later": 1}}, 0.0).spending == Spending(1.0, 2.0, 0.5, 3.0)


@pytest.mark.parametrize("value", [3, {"usd": 1.0}, {**vars(SPENT), "usd": -1.0}, {**vars(SPENT), "usd": float("nan")}])
def test_an_invalid_spending_is_refused(value: object) -> None:
    with pytest.raises(InvalidRecord, match="must be"):
        records.state_of({"spending": value}, 0.0)
