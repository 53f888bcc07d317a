"""A bad day of spot capacity, from trace files: the deadline, the lost steps, and the ledger against the bill."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from localcloud.compute.capacity_trace import Change
from tests.localcloud.compute.controlled_run import HOUR, ON_DEMAND_USD, ControlledRun, Plan
from tests.localcloud.compute.trace_days import recorded, run_through, written

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.usefixtures("fleet_roles", "empty_cloud")]

ZONES = ("eu-west-1a", "eu-west-1b", "eu-west-1c")
TRACES = os.environ.get("TRACES", "")
"""A folder with priced traces, as for `make spot-economics`."""
RECORDED_ON_DEMAND_USD = 3.06
"""On-Demand price of p3.2xlarge, the instance type of the public traces."""


@pytest.fixture
def bad_day(tmp_path: Path) -> Sequence[Change]:
    """Traces in the public format: one zone loses all capacity, one rejects launches in bursts, and one has price
    spikes."""

    def usd(zone: str, usual: float, hour: float) -> float:
        return usual * (2.8 if zone != ZONES[0] and 2.0 <= hour < 3.0 else 1.0)

    a, b, c = ZONES
    zones = {
        a: lambda hour: (hour < 0.75, usd(a, 0.030, hour)),
        b: lambda hour: (int(hour * 4) % 2 == 0, usd(b, 0.034, hour)),
        c: lambda hour: (not 1.0 <= hour < 4.0, usd(c, 0.038, hour)),
    }
    return written(tmp_path, zones, 8.0)


def test_bad_day_meets_the_deadline_loses_no_save_and_equals_the_bill(cloud: Any, bad_day: Sequence[Change]) -> None:
    run = ControlledRun(cloud, Plan(work_hours=2.0, deadline_hours=4.5), ZONES)
    run_through(run, bad_day, 6.0)
    check(run)
    bought = [one for one in run.all_instances() if one.market != "spot"]
    assert bought, "the day is bad enough for the safety net"
    assert any(line["deadline"]["on_demand_nodes"] for line in run.lines)
    assert any(one.market == "spot" for one in run.all_instances())
    # Below the On-Demand price of all nodes until the deadline.
    assert run.lines[-1]["spending"]["usd"] < 0.9 * run.plan.nodes * ON_DEMAND_USD * 4.5


@pytest.mark.skipif(not TRACES, reason="TRACES is not set: it names a folder with priced traces")
def test_the_worst_recorded_day(cloud: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The day with the least capacity in a region of the recorded traces, with 80% of the time needed for training."""
    work_hours, deadline_hours = 9.6, 12.0
    day, found = recorded(Path(TRACES), ZONES, 24.0, RECORDED_ON_DEMAND_USD)
    run = ControlledRun(cloud, Plan(work_hours=work_hours, deadline_hours=deadline_hours), ZONES)
    run_through(run, found, 1.5 * deadline_hours)
    check(run)
    with capsys.disabled():
        assert run.finished_at is not None
        spending, spot = run.lines[-1]["spending"], [one for one in run.all_instances() if one.market == "spot"]
        bought = len(run.all_instances()) - len(spot)
        print(
            f"\n{day}: {work_hours} h of training ended after {(run.finished_at - run.start) / HOUR:.2f} h of "
            f"{deadline_hours} h, with {len(spot)} spot and {bought} On-Demand instances; "
            f"lost at most {max(run.lost_seconds):.0f} s of training at once; bill {run.bill():.4f} USD, ledger "
            f"{spending['usd']:.4f} USD, On-Demand only {2 * work_hours * ON_DEMAND_USD:.4f} USD"
        )


def check(run: ControlledRun) -> None:
    """The run has met its deadline, has lost at most one save interval at once, and its ledger equals the bill."""
    assert run.finished_at is not None
    assert run.plan.deadline_hours is not None
    assert (run.finished_at - run.start) / HOUR < run.plan.deadline_hours
    assert max(run.lost_seconds) <= run.plan.save_seconds
    spending = run.lines[-1]["spending"]
    assert spending["usd"] == pytest.approx(run.bill(), rel=0.01)
    assert spending["unpriced_hours"] == 0.0
