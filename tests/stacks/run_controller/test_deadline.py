"""The controller's response to a deadline: when it buys and replaces On-Demand nodes, and when it stops a run."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from stacks.functions.run_controller import records
from stacks.functions.run_controller.deadlines import planning
from stacks.functions.run_controller.deadlines.goals import Deadline, Outlook, Progress
from stacks.functions.run_controller.places import HOUR, Place, Record
from stacks.functions.run_controller.policy import (
    ControllerState,
    Decision,
    Detach,
    FleetState,
    Instance,
    LaunchFailure,
    Release,
    Resize,
    Run,
    Settings,
    Situation,
    decide,
)
from stacks.functions.run_controller.records import InvalidRecord, progress_of, state_of

NOW = 1_000_000.0
SUBNETS = ("subnet-a", "subnet-b")
PLACES = tuple(Place("us-east-1", f"us-east-1{letter}", "g6.xlarge", "spot") for letter in "ab")
GOAL = Deadline(hours=20.0, on_miss="on_demand", training_hours=10.0, on_demand_usd_per_hour=1.0)
SETTINGS = Settings(SUBNETS, True, 600.0, 3, choose="cost", places=PLACES, deadline=GOAL)
PRICES = {"subnet-a": 0.3, "subnet-b": 0.4}
RUN = Run("run-1", "d1", nodes=4, min_nodes=4)
EMPTY = FleetState(desired=0, maximum=4, subnets=(), template="1", instances=())
NO_CAPACITY = "UnfulfillableCapacity - Unable to fulfill capacity."
STARTED = ControllerState(run_digest="d1", template="1", phase="running", subnets=("subnet-a",))


def fleet(
    spot: int = 0, bought: int = 0, *, desired: int = 4, on_demand: int = 0, subnet: str = "subnet-a"
) -> FleetState:
    names = tuple(f"i-s{number}" for number in range(spot))
    others = tuple(f"i-d{number}" for number in range(bought))
    members = tuple(Instance(name, "InService") for name in (*names, *others))
    return replace(EMPTY, desired=desired, subnets=("subnet-a",), instances=members, on_demand=on_demand, bought=others)


def report(step: int, at: float, **changes: Any) -> Progress:
    """A run of 1,000 steps of 36 s: 10 h with four nodes."""
    known = Progress(step, 1000, step_seconds=36.0, members=4, checkpoint_step=step, unix_seconds=at)
    return replace(known, **changes)


def step(state: ControllerState, seen: FleetState, hours: float, **changes: Any) -> Decision:
    """Decide at a time after the run's start."""
    now = NOW + hours * HOUR
    started = replace(state, started_unix_seconds=NOW)
    names = frozenset(item.instance_id for item in seen.instances)
    base = Situation(now, SETTINGS, RUN, None, seen, names, frozenset(), started, usd_per_hour=PRICES)
    return decide(replace(base, **changes))


def outlook(decision: Decision) -> Outlook:
    found = decision.state.outlook
    assert found is not None
    return found


def test_deadline_counts_from_the_first_request_and_survives_edits() -> None:
    first = decide(replace(_situation(SETTINGS), fleet=EMPTY, state=ControllerState(), usd_per_hour=PRICES))
    assert first.state.started_unix_seconds == NOW
    assert outlook(first).deadline_unix_seconds == NOW + 20.0 * HOUR
    edited = step(first.state, fleet(4), 1.0, run=replace(RUN, digest="d2"))
    assert edited.state.started_unix_seconds == NOW
    assert outlook(edited).remaining_hours == pytest.approx(19.0)


def test_starts_on_spot_capacity_while_there_is_slack() -> None:
    decision = step(ControllerState(), EMPTY, 0.0)
    assert decision.actions == (Resize(4, ("subnet-a",)),)
    assert outlook(decision).work_hours == 10.0


def test_buys_all_nodes_when_the_slack_no_longer_covers_two_restarts() -> None:
    waiting = fleet(0)
    known = report(500, NOW)  # 5 h remain; two restarts and two requests take 0.47 h
    calm = step(STARTED, waiting, 14.0, progress=known)
    assert outlook(calm).on_demand_nodes == 0
    late = step(STARTED, waiting, 14.6, progress=known)
    assert late.actions == (Resize(4, None, 4),)
    assert "safety net" in outlook(late).reason
    assert "4 of 4 nodes are On-Demand" in late.state.reason


def test_run_on_spot_capacity_stays_there_without_slack() -> None:
    decision = step(STARTED, fleet(4), 15.0, progress=report(505, NOW + 15.0 * HOUR))
    assert decision.actions == ()
    assert outlook(decision).on_demand_nodes == 0


def test_interrupted_node_is_replaced_on_demand_without_slack() -> None:
    known = report(505, NOW + 15.0 * HOUR)
    noticed = step(STARTED, fleet(4), 15.0, progress=known, interrupted=frozenset({"i-s0"}))
    assert noticed.actions == (Detach("i-s0"), Resize(4, None, 1))
    left = replace(fleet(3, 1, on_demand=1), instances=fleet(3, 1).instances[2:])  # i-s0 and i-s1 no longer exist
    again = step(noticed.state, left, 15.1, progress=known)
    assert again.actions == (Resize(4, None, 3),)  # one spot node is left


def test_missing_node_waits_for_spot_capacity_while_there_is_slack() -> None:
    seen = step(STARTED, fleet(4), 5.0, progress=report(400, NOW + 5.0 * HOUR), interrupted=frozenset({"i-s0"}))
    assert seen.actions == (Detach("i-s0"),)


def test_small_gang_needs_more_time() -> None:
    run = replace(RUN, min_nodes=2)
    known = report(500, NOW + 13.0 * HOUR, members=2, step_seconds=72.0)  # 5 h with four nodes, 10 h with two
    decision = step(STARTED, fleet(2), 13.0, progress=known, run=run)
    assert outlook(decision).work_hours == pytest.approx(5.0)
    assert decision.actions == (Resize(4, None, 2),)


def leaving(hours: float = 6.0) -> Decision:
    """A run on On-Demand Instances that is ahead of schedule, in a place with long instance lifetimes."""
    long = Record(run_hours=400.0, available_hours=50.0, looked_unix_seconds=NOW + hours * HOUR)
    state = replace(STARTED, places={"subnet-b": long})
    prices = {"subnet-a": 0.4, "subnet-b": 0.3}
    known = report(900, NOW + hours * HOUR)
    return step(state, fleet(0, 4, on_demand=4), hours, progress=known, usd_per_hour=prices)


def test_nodes_on_demand_stay_until_spot_capacity_is_in_service() -> None:
    requested = leaving()
    assert requested.actions == (Resize(8, ("subnet-b",), 4),)
    assert outlook(requested).is_leaving
    booting = step(requested.state, fleet(2, 4, desired=8, on_demand=4), 6.02, progress=report(901, NOW + 6.02 * HOUR))
    assert booting.actions == ()
    full = step(booting.state, fleet(4, 4, desired=8, on_demand=4), 6.05, progress=report(903, NOW + 6.05 * HOUR))
    assert full.actions == (Resize(4, None, 0),)
    assert not outlook(full).is_leaving
    assert full.state.subnets == ("subnet-b",)


def test_refused_request_leaves_the_nodes_on_demand_and_is_recorded() -> None:
    requested = leaving()
    failure = (LaunchFailure(NO_CAPACITY, unix_seconds=NOW + 6.01 * HOUR),)
    seen, known = fleet(0, 4, desired=8, on_demand=4), report(905, NOW + 6.1 * HOUR)
    prices = {"subnet-a": 0.4, "subnet-b": 0.3}
    refused = step(requested.state, seen, 6.1, progress=known, launch_failures=failure, usd_per_hour=prices)
    assert refused.actions == (Resize(4, None, 4),)
    assert refused.state.places["subnet-b"].is_refused(NOW + 6.1 * HOUR)
    known = report(906, NOW + 6.12 * HOUR)
    later = step(refused.state, fleet(0, 4, on_demand=4), 6.12, progress=known, usd_per_hour=prices)
    assert later.actions == ()  # the refusal is in effect


class TestMaintainedFleet:
    """EC2 Fleet and Spot Fleet: all nodes are in one fleet, whose description limits `desired` to the maximum."""

    prices = {"subnet-a": 0.4, "subnet-b": 0.3}

    def seen(self, spot: int, bought: int, *, total: int, on_demand: int, subnet: str = "subnet-a") -> FleetState:
        found = fleet(spot, bought, on_demand=on_demand)
        return replace(found, desired=min(4, total), surplus=max(0, total - 4), subnets=(subnet,))

    def step(self, state: ControllerState, seen: FleetState, hours: float, **changes: Any) -> Decision:
        known = report(900, NOW + hours * HOUR)
        return step(state, seen, hours, progress=known, usd_per_hour=self.prices, **changes)

    def leaving(self) -> Decision:
        long = Record(run_hours=400.0, available_hours=50.0, looked_unix_seconds=NOW + 6.0 * HOUR)
        state = replace(STARTED, places={"subnet-b": long})
        return self.step(state, self.seen(0, 4, total=4, on_demand=4), 6.0)

    def test_nodes_on_demand_leave_once_spot_capacity_is_in_service(self) -> None:
        requested = self.leaving()
        assert requested.actions == (Resize(8, ("subnet-b",), 4),)
        asked = self.seen(0, 4, total=8, on_demand=4, subnet="subnet-b")
        booting = self.step(requested.state, replace(asked, instances=fleet(2, 4).instances), 6.02)
        assert booting.actions == () and outlook(booting).is_leaving
        full = self.step(booting.state, self.seen(4, 4, total=8, on_demand=4, subnet="subnet-b"), 6.05)
        bought = ("i-d0", "i-d1", "i-d2", "i-d3")
        assert full.actions == (Release(4, 0, bought),)
        assert full.state.subnets == ("subnet-b",) and not outlook(full).is_leaving
        # The call has lowered the target, and failed before it terminated the instances.
        crashed = self.step(full.state, self.seen(4, 4, total=4, on_demand=0, subnet="subnet-b"), 6.07)
        assert crashed.actions == (Release(4, 0, bought),)
        calm = self.step(crashed.state, self.seen(4, 0, total=4, on_demand=0, subnet="subnet-b"), 6.09)
        assert calm.actions == () and outlook(calm).on_demand_nodes == 0

    def test_a_refused_request_is_withdrawn(self) -> None:
        requested = self.leaving()
        failure = (LaunchFailure(NO_CAPACITY, unix_seconds=NOW + 6.01 * HOUR),)
        seen = self.seen(0, 4, total=8, on_demand=4, subnet="subnet-b")
        refused = self.step(requested.state, seen, 6.1, launch_failures=failure)
        assert refused.actions == (Resize(4, None, 4),)
        assert refused.state.places["subnet-b"].is_refused(NOW + 6.1 * HOUR)
        calm = self.step(refused.state, self.seen(0, 4, total=4, on_demand=4, subnet="subnet-b"), 6.12)
        assert calm.actions == ()

    def test_some_spot_capacity_replaces_as_many_nodes_when_the_request_ends(self) -> None:
        requested = self.leaving()
        seen = self.seen(1, 4, total=8, on_demand=4, subnet="subnet-b")
        late = self.step(requested.state, seen, 6.3)
        assert late.actions == (Release(4, 3, ("i-d3",)),)

    def test_without_a_deadline_no_instance_is_released(self) -> None:
        settings = replace(SETTINGS, deadline=None)
        seen = self.seen(0, 4, total=4, on_demand=0)
        assert self.step(STARTED, seen, 6.0, settings=settings).actions == ()


def test_wait_for_the_next_attempt_ends_when_nodes_are_bought() -> None:
    waiting = replace(STARTED, phase="waiting", attempt=2, had_instances=True, retry_unix_seconds=NOW + 15.0 * HOUR)
    calm = step(waiting, replace(EMPTY, subnets=("subnet-a",)), 14.0, progress=report(500, NOW))
    assert calm.actions == ()
    late = step(waiting, replace(EMPTY, subnets=("subnet-a",)), 14.7, progress=report(500, NOW))
    assert late.actions == (Resize(4, ("subnet-b",), 4),)
    assert "4 of them On-Demand" in late.state.reason


def test_purchase_that_one_zone_refuses_moves_to_the_next_zone() -> None:
    known = report(500, NOW)
    bought = step(STARTED, fleet(0), 14.6, progress=known)
    failure = (LaunchFailure("InsufficientInstanceCapacity", unix_seconds=NOW + 14.61 * HOUR),)
    seen = fleet(0, 0, on_demand=4)
    given_up = step(bought.state, seen, 14.65, progress=known, launch_failures=failure)
    assert given_up.actions == (Resize(0),)
    assert given_up.state.places.get("subnet-a", Record()).refusals == 0  # the spot place has no refusals
    following = step(given_up.state, replace(EMPTY, subnets=("subnet-a",)), 14.67, progress=known)
    assert following.actions == (Resize(4, ("subnet-b",), 4),)


def test_after_the_deadline_no_more_nodes_are_bought() -> None:
    known = report(900, NOW + 20.1 * HOUR)
    assert step(STARTED, fleet(0), 20.1, progress=known).actions == ()
    kept = step(STARTED, fleet(0, 4, on_demand=4), 20.1, progress=known)
    assert kept.actions == ()
    assert (outlook(kept).verdict, outlook(kept).on_demand_nodes) == ("missed", 4)


def test_stop_saves_and_stops_once_the_run_cannot_end_in_time() -> None:
    settings = replace(SETTINGS, deadline=replace(GOAL, on_miss="stop"))
    known = report(500, NOW + 14.0 * HOUR)
    in_time = step(STARTED, fleet(4), 15.1, progress=known, settings=settings)  # 4.9 h for 5 h: within the tolerance
    assert in_time.actions == ()
    assert outlook(in_time).verdict == "late"
    stopped = step(STARTED, fleet(4), 15.5, progress=known, settings=settings)
    assert stopped.actions == (Resize(0),)
    assert stopped.state.phase == "limited"
    assert "needs 5.00 h of training, but only 4.50 h of limits.deadline_hours (20) remain" in stopped.state.reason
    longer = replace(settings, deadline=replace(GOAL, on_miss="stop", hours=40.0))
    resumed = step(stopped.state, EMPTY, 15.6, progress=known, settings=longer)
    assert resumed.actions == (Resize(4, ("subnet-a",)),)


def test_continue_only_reports() -> None:
    settings = replace(SETTINGS, deadline=replace(GOAL, on_miss="continue"))
    decision = step(STARTED, fleet(4), 19.0, progress=report(500, NOW + 19.0 * HOUR), settings=settings)
    assert decision.actions == ()
    assert (outlook(decision).verdict, decision.state.phase) == ("late", "running")


def test_without_a_deadline_nothing_is_recorded() -> None:
    plain = replace(SETTINGS, choose="order", deadline=None)
    decision = step(STARTED, fleet(4), 5.0, settings=plain)
    assert (decision.state.outlook, decision.state.started_unix_seconds, decision.state.places) == (None, None, {})


def test_work_after_the_checkpoint_counts_only_while_the_run_trains() -> None:
    known = report(600, NOW + 5.0 * HOUR, checkpoint_step=550)
    assert outlook(step(STARTED, fleet(4), 5.01, progress=known)).work_hours == pytest.approx(4.0)
    assert outlook(step(STARTED, fleet(0), 5.1, progress=known)).work_hours == pytest.approx(4.5)


def test_speed_is_averaged_over_reports() -> None:
    state = step(STARTED, fleet(4), 5.0, progress=report(500, NOW + 5.0 * HOUR)).state
    slow = step(state, fleet(4), 5.01, progress=report(501, NOW + 5.01 * HOUR, step_seconds=136.0))
    assert outlook(slow).step_seconds == pytest.approx(46.0)


def test_longest_measured_restart_replaces_the_assumed_one() -> None:
    seen = step(STARTED, fleet(4), 0.1)
    assert outlook(seen).restart_since_unix_seconds == NOW + 0.1 * HOUR
    known = report(1, NOW + 0.6 * HOUR)
    measured = step(seen.state, fleet(4), 0.6, progress=known)
    assert outlook(measured).restart_hours == pytest.approx(0.5 + 120.0 / HOUR)
    idle = step(measured.state, fleet(4), 2.0, progress=known)
    quick = step(idle.state, fleet(4), 2.2, progress=report(2, NOW + 2.2 * HOUR))
    assert outlook(quick).restart_hours == pytest.approx(0.5 + 120.0 / HOUR)


def test_subnets_that_one_request_covers_are_one_place() -> None:
    settings = replace(SETTINGS, one_subnet_at_a_time=False, choose="order")
    state = replace(STARTED, subnets=SUBNETS)
    failed = (LaunchFailure(NO_CAPACITY, unix_seconds=NOW + 0.9 * HOUR),)
    decision = step(state, replace(fleet(0), subnets=SUBNETS), 1.0, settings=settings, launch_failures=failed)
    assert decision.state.places["subnet-a"].refusals == 1
    (offer,) = planning.spot_offers(
        replace(_situation(settings), usd_per_hour=PRICES, state=decision.state), decision.state
    )
    assert (offer.usd_per_hour, offer.record.refusals) == (0.3, 1)


def _situation(settings: Settings) -> Situation:
    return Situation(NOW, settings, RUN, None, fleet(0), frozenset(), frozenset(), STARTED)


def test_expected_cost_covers_all_nodes() -> None:
    long = Record(run_hours=4000.0, available_hours=500.0, looked_unix_seconds=NOW)
    state = replace(STARTED, places={"subnet-a": long})
    decision = step(state, fleet(4), 0.0, progress=report(500, NOW))
    assert outlook(decision).expected_usd == pytest.approx(4 * 0.3 * 5.0, rel=0.02)


def test_state_survives_storage() -> None:
    state = step(STARTED, fleet(0), 14.6, progress=report(500, NOW)).state
    stored = json.loads(json.dumps(asdict(state)))
    assert state_of(stored, NOW + 14.7 * HOUR) == replace(state, spending=None)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"work_hours": -1.0}, "work_hours"),
        ({"remaining_hours": float("nan")}, "remaining_hours"),
        ({"verdict": "maybe"}, "verdict"),
        ({"leaving_subnet": "x"}, "leaving_subnet"),
        ({"deadline_unix_seconds": NOW * 1e6}, "deadline_unix_seconds"),
    ],
)
def test_invalid_outlook_is_rejected(changes: dict[str, object], rule: str) -> None:
    known = asdict(Outlook(NOW, 1.0, 1.0))
    with pytest.raises(InvalidRecord, match=rule):
        state_of({"outlook": {**known, **changes}}, NOW)


STATUS = {
    "members": ["i-1", "i-2"],
    "step": 10,
    "steps_total": 100,
    "step_seconds": 2.0,
    "checkpoint": {"step": 8, "unix_seconds": NOW},
    "unix_seconds": NOW,
}


def test_report_of_the_first_member() -> None:
    assert progress_of(STATUS) == Progress(10, 100, 2.0, 2, 8, NOW)
    assert progress_of({**STATUS, "step": None}) is None
    assert progress_of({**STATUS, "checkpoint": None, "step_seconds": None}) == Progress(10, 100, None, 2, 0, NOW)


@pytest.mark.parametrize(
    "changes",
    [{"members": []}, {"step": -1}, {"steps_total": 0}, {"step_seconds": float("inf")}, {"unix_seconds": None}],
)
def test_invalid_report_is_rejected(changes: dict[str, object]) -> None:
    with pytest.raises(records.InvalidRecord):
        progress_of({**STATUS, **changes})
