"""Nodes move to a cheaper zone while prices and capacity follow trace files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.localcloud.compute.controlled_fleets import empty
from tests.localcloud.compute.controlled_run import HOUR, ControlledRun, Plan
from tests.localcloud.compute.trace_days import Hours, run_through, written

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.usefixtures("fleet_roles", "empty_cloud")]

ZONES = A, B, C = ("eu-west-1a", "eu-west-1b", "eu-west-1c")
FIRST_HOURS, SECOND_HOURS, DAY_HOURS = 1.25, 3.5, 12.0
RESTART_HOURS = 0.25
"""Longest time from the end of the training in one zone to its start in another: a save, the boot, and four steps."""


def price_a(hour: float) -> float:
    """Cheap, expensive from the first change, and cheap again from the second."""
    return 0.030 if hour < FIRST_HOURS else 0.090 if hour < SECOND_HOURS else 0.028


DAY: dict[str, Hours] = {
    A: lambda hour: (True, price_a(hour)),
    B: lambda hour: (True, 0.034 if hour < SECOND_HOURS else 0.085),
    C: lambda hour: (True, 0.050),
}


def zones_of(run: ControlledRun) -> list[str]:
    """Return the zones in which the run had instances, in order."""
    launched = sorted(run.all_instances(), key=lambda one: one.launched_unix_seconds)
    found: list[str] = []
    for one in launched:
        if one.zone not in found[-1:]:
            found.append(one.zone)
    return found


def test_nodes_follow_the_price(cloud: Any, tmp_path: Path) -> None:
    found = written(tmp_path, DAY, DAY_HOURS)
    plan = Plan(work_hours=5.0, deadline_hours=None)
    moving = ControlledRun(cloud, plan, ZONES)
    run_through(moving, found, DAY_HOURS)
    assert zones_of(moving) == [A, B, A]
    assert [line["reason"] for line in moving.lines if "moving from" in line["reason"]], "the log explains the moves"
    assert moving.finished_at is not None
    assert max(moving.lost_seconds) == 0.0, "the terminating hook gives the nodes the time to save"
    spending = moving.lines[-1]["spending"]
    assert spending["usd"] == pytest.approx(moving.bill(), rel=0.01)
    assert spending["unpriced_hours"] == 0.0

    # The same day without moves costs more, and the moves take no more time than their restarts.
    empty(cloud, ZONES)
    staying = ControlledRun(cloud, plan, ZONES)
    settings = replace(staying.environment.settings, moves=False)
    staying.environment = replace(staying.environment, settings=settings)
    run_through(staying, found, DAY_HOURS)
    assert zones_of(staying) == [A]
    assert staying.finished_at is not None
    assert moving.bill() < 0.8 * staying.bill()
    longer = (moving.finished_at - moving.start) - (staying.finished_at - staying.start)
    assert longer <= 2 * RESTART_HOURS * HOUR
