"""A bad day of spot capacity: the deadline, the lost steps, and the ledger against the bill."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from localcloud.compute.capacity_trace import Change, changes, read_trace
from tests.localcloud.compute.controlled_run import (
    HOUR,
    ControlledRun,
    Plan,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ZONES = ("eu-west-1a", "eu-west-1b", "eu-west-1c")
USUAL_USD = {"eu-west-1a": 0.030, "eu-west-1b": 0.034, "eu-west-1c": 0.038}
GAP_SECONDS = 300


@pytest.fixture(scope="module", autouse=True)
def spot_role(cloud: Any) -> None:
    cloud.client("iam").create_service_linked_role(AWSServiceName="spot.amazonaws.com")


@pytest.fixture
def bad_day(tmp_path: Path) -> Sequence[Change]:
    """Traces in the public format: one zone loses all capacity, one rejects launches in bursts, and one has price
    spikes."""
    ticks = 8 * HOUR / GAP_SECONDS
    for zone, usual in USUAL_USD.items():
        missing, prices = [], []
        for tick in range(int(ticks)):
            hour = tick * GAP_SECONDS / HOUR
            dark = zone == "eu-west-1a" and hour >= 0.75
            storm = zone == "eu-west-1b" and (tick // 3) % 2 == 1
            outage = zone == "eu-west-1c" and 1.0 <= hour < 4.0
            missing.append(int(dark or storm or outage))
            prices.append(usual * (2.8 if zone != "eu-west-1a" and 2.0 <= hour < 3.0 else 1.0))
        trace = {"metadata": {"gap_seconds": GAP_SECONDS}, "data": missing, "prices": prices}
        (tmp_path / f"{zone}.json").write_text(json.dumps(trace))
    return changes([read_trace(path) for path in sorted(tmp_path.glob("*.json"))])


def play(run: ControlledRun, found: Sequence[Change]) -> Callable[[], None]:
    """Return a function that applies the changes of a trace up to the run's time."""
    left = list(found)

    def apply() -> None:
        while left and left[0].trace_seconds <= run.hours * HOUR + run.plan.tick_seconds / 2:
            change = left.pop(0)
            assert change.usd_per_hour is not None
            run.set_zone(change.zone, is_available=change.is_available, usd_per_hour=change.usd_per_hour)

    return apply


def finish(run: ControlledRun, step: Callable[[list[dict[str, Any]]], dict[str, Any]]) -> None:
    """Take control steps until the fleet is empty and the ledger contains the last instance's end."""
    for _ in range(30):
        run.tick(step)
        if not run.instances() and run.lines[-1]["nodes"] == 0:
            break
    run.tick(step)


def test_bad_day_meets_the_deadline_loses_no_save_and_equals_the_bill(cloud: Any, bad_day: Sequence[Change]) -> None:
    run = ControlledRun(cloud, Plan(work_hours=2.0, deadline_hours=4.5), ZONES)
    apply = play(run, bad_day)

    def step(events: list[dict[str, Any]]) -> dict[str, Any]:
        return run.controller().step(events, cloud.now())

    while run.finished_at is None and run.hours < 6.0:
        apply()
        run.tick(step)
    finish(run, step)
    assert run.finished_at is not None
    assert (run.finished_at - run.start) / HOUR < 4.5
    assert max(run.lost_seconds) <= run.plan.save_seconds
    bought = [one for one in run.all_instances() if one.market != "spot"]
    assert bought, "the day is bad enough for the safety net"
    assert any(line["deadline"]["on_demand_nodes"] for line in run.lines)
    assert any(one.market == "spot" for one in run.all_instances())
    spending = run.lines[-1]["spending"]
    assert spending["usd"] == pytest.approx(run.bill(), rel=0.01)
    assert spending["unpriced_hours"] == 0.0
    assert spending["usd"] < 0.9 * 2 * 0.096 * 4.5  # below the On-Demand price of all nodes until the deadline


@pytest.fixture(autouse=True)
def empty_fleet(cloud: Any) -> Iterator[None]:
    """Remove all capacity limits and instances before the next test."""
    yield
    for zone in ZONES:
        cloud.post("pool", {"instance_types": ["m5.large"], "zone": zone, "is_available": True})
    for one in cloud.compute.inventory.all():
        if one.is_live:
            cloud.ec2.terminate_instances(InstanceIds=[one.id])
