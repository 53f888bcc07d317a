"""The controller's choice of zones: prices, refusals and interruptions that it has observed, and what it logs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError

from stacks.functions.run_controller import records, zone_choice
from stacks.functions.run_controller.causes import Cause
from stacks.functions.run_controller.environment import Environment
from stacks.functions.run_controller.market.prices import SpotPrices
from stacks.functions.run_controller.places import HOUR, Place, Record
from stacks.functions.run_controller.policy import (
    ControllerState,
    Decision,
    FleetState,
    Instance,
    LaunchFailure,
    Resize,
    Run,
    Settings,
    Situation,
    decide,
)
from stacks.functions.run_controller.records import InvalidRecord
from tests.stacks.run_controller.test_handler import ENVIRONMENT

NOW = 1_000_000.0
PLACES = tuple(Place("us-east-1", f"us-east-1{letter}", "g5.xlarge,g6.xlarge", "spot") for letter in "abc")
SUBNETS = ("subnet-a", "subnet-b", "subnet-c")
SETTINGS = Settings(SUBNETS, True, 600.0, 3, choose="cost", places=PLACES)
EMPTY = FleetState(desired=0, maximum=2, subnets=(), template="1", instances=())
PRICES = {"subnet-a": 0.6, "subnet-b": 0.4, "subnet-c": 0.5}
NO_CAPACITY = "Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill capacity."


def situation(state: ControllerState, fleet: FleetState = EMPTY, now: float = NOW, **changes: object) -> Situation:
    base = Situation(
        now_unix_seconds=now,
        settings=SETTINGS,
        run=Run("run-1", "d1", nodes=2, min_nodes=2),
        outcome=None,
        fleet=fleet,
        heard_from=frozenset({"i-1", "i-2"}),
        interrupted=frozenset(),
        state=state,
        usd_per_hour=PRICES,
    )
    return replace(base, **changes)


def fleet_in(subnet: str, *instances: str) -> FleetState:
    members = tuple(Instance(name, "InService") for name in instances)
    return replace(EMPTY, desired=2, subnets=(subnet,), instances=members)


def started(**changes: object) -> Decision:
    return decide(situation(ControllerState(), **changes))


def test_starts_in_the_cheapest_zone_and_logs_the_numbers() -> None:
    decision = started()
    assert decision.actions == (Resize(2, ("subnet-b",)),)
    assert [each.place.zone for each in decision.ranking] == ["us-east-1b", "us-east-1c", "us-east-1a"]
    # 0.4 USD, of which 1.3 of 1.5 h train: 0.4615 USD per hour of training.
    assert "us-east-1b 0.4000 USD/h, 0.4615 per hour of training, launch success 50%, lifetime 1.5 h" in (
        decision.state.choice
    )


def test_order_uses_the_first_subnet_and_records_nothing() -> None:
    decision = started(settings=replace(SETTINGS, choose="order"))
    assert decision.actions == (Resize(2, ("subnet-a",)),)
    assert (decision.ranking, decision.state.choice, decision.state.places) == ((), "", {})
    running = decide(
        situation(decision.state, fleet_in("subnet-a", "i-1", "i-2"), settings=replace(SETTINGS, choose="order"))
    )
    assert running.state.places == {}


def test_availability_ignores_prices() -> None:
    seen = {"subnet-a": Record(available_hours=50.0, looked_unix_seconds=NOW)}
    state = ControllerState(run_digest="d1", template="1", places=seen)
    decision = decide(situation(state, settings=replace(SETTINGS, choose="availability")))
    assert decision.actions == (Resize(2, ("subnet-a",)),)


def test_unknown_price_counts_as_the_highest() -> None:
    assert started(usd_per_hour={"subnet-c": 0.5}).actions == (Resize(2, ("subnet-a",)),)  # all equal: as listed
    assert started(usd_per_hour={"subnet-c": 0.5, "subnet-b": 0.6}).actions == (Resize(2, ("subnet-c",)),)
    assert started(usd_per_hour={}).actions == (Resize(2, ("subnet-a",)),)


def refusal(at: float, message: str = NO_CAPACITY) -> tuple[LaunchFailure, ...]:
    return (LaunchFailure(message, unix_seconds=at),)


def test_refused_zone_is_left_at_once_and_the_next_cheapest_is_tried() -> None:
    state = started().state
    waiting = decide(situation(state, fleet_in("subnet-b"), NOW + 60.0, launch_failures=refusal(NOW + 20.0)))
    assert waiting.actions == ()
    given_up = decide(situation(waiting.state, fleet_in("subnet-b"), NOW + 120.0, launch_failures=refusal(NOW + 20.0)))
    assert given_up.actions == (Resize(0),)
    refused = given_up.state.places["subnet-b"]
    assert (refused.refusals, refused.cause, refused.is_refused(NOW + 180.0)) == (1, Cause.CAPACITY, True)
    following = decide(situation(given_up.state, replace(EMPTY, subnets=("subnet-b",)), NOW + 180.0))
    assert following.actions == (Resize(2, ("subnet-c",)),)
    assert "us-east-1b 0.4000 USD/h" in following.state.choice
    assert following.state.choice.endswith("refused") or "refused;" in following.state.choice


def test_failure_of_an_earlier_attempt_does_not_end_this_one() -> None:
    state = started().state
    kept = decide(situation(state, fleet_in("subnet-b"), NOW + 300.0, launch_failures=refusal(NOW - 60.0)))
    assert kept.actions == ()


def test_attempt_with_an_instance_lasts_for_the_gang_timeout() -> None:
    state = started().state
    fleet = fleet_in("subnet-b", "i-1")
    assert decide(situation(state, fleet, NOW + 300.0, launch_failures=refusal(NOW + 20.0))).actions == ()
    given_up = decide(situation(state, fleet, NOW + 600.0, launch_failures=refusal(NOW + 20.0)))
    assert given_up.actions == (Resize(0),)
    assert given_up.state.places["subnet-b"].refusals == 1


def test_zone_without_quota_is_not_asked_while_another_may_be() -> None:
    quota = Record().refused(Cause.QUOTA, NOW)
    capacity = Record().refused(Cause.CAPACITY, NOW)
    known = ControllerState(run_digest="d1", template="1")
    all_but_one = replace(known, places={"subnet-b": quota, "subnet-c": quota, "subnet-a": capacity})
    assert decide(situation(all_but_one)).actions == (Resize(2, ("subnet-a",)),)
    later = Record().refused(Cause.QUOTA, NOW + 60.0)
    none = replace(known, places={"subnet-a": later, "subnet-b": later, "subnet-c": quota})
    assert decide(situation(none, now=NOW + 61.0)).actions == (Resize(2, ("subnet-c",)),)


def test_gang_and_interruption_are_recorded() -> None:
    full = fleet_in("subnet-b", "i-1", "i-2")
    state = decide(situation(started().state, full, NOW + 60.0)).state
    assert state.in_place
    assert state.places["subnet-b"].looked_unix_seconds == NOW + 60.0
    same = decide(situation(state, full, NOW + 120.0)).state
    assert same.places == state.places  # the state is not written every minute
    state = decide(situation(same, full, NOW + 60.0 + HOUR)).state
    assert state.places["subnet-b"].run_hours == pytest.approx(1.0)
    notice = decide(situation(state, full, NOW + 120.0 + HOUR, interrupted=frozenset({"i-2"})))
    record = notice.state.places["subnet-b"]
    assert record.interruptions == 1.0
    assert record.run_hours == pytest.approx(1.0 + 60.0 / HOUR, rel=1e-2)
    other = decide(situation(state, full, NOW + 120.0 + HOUR, interrupted=frozenset({"i-99"})))
    assert other.state.places["subnet-b"].interruptions == 0.0


def test_time_without_a_gang_is_not_a_lifetime() -> None:
    full = fleet_in("subnet-b", "i-1", "i-2")
    state = decide(situation(started().state, full, NOW + 60.0)).state
    state = decide(situation(state, fleet_in("subnet-b"), NOW + 120.0)).state
    assert not state.in_place
    before = state.places["subnet-b"].run_hours
    state = decide(situation(state, full, NOW + 120.0 + 5 * HOUR)).state
    assert state.places["subnet-b"].run_hours <= before


def test_new_run_document_keeps_the_records() -> None:
    seen = {"subnet-b": Record().refused(Cause.CAPACITY, NOW)}
    state = ControllerState(run_digest="d0", template="1", places=seen)
    decision = decide(situation(state))
    assert decision.state.places == seen
    assert decision.actions == (Resize(2, ("subnet-c",)),)


def test_one_subnet_leaves_no_choice() -> None:
    single = replace(SETTINGS, subnets=SUBNETS[:1], places=PLACES[:1])
    assert not zone_choice.chooses(single)
    assert started(settings=single).actions == (Resize(2, ("subnet-a",)),)


class World:
    """A fleet in whose zones capacity is available or not. The controller decides once per minute."""

    def __init__(self, capacity: Mapping[str, bool]) -> None:
        self.capacity, self.now, self.state = dict(capacity), NOW, ControllerState()
        self.fleet, self.failures = EMPTY, ()
        self.tried: list[str] = []

    def minute(self) -> None:
        decision = decide(situation(self.state, self.fleet, self.now, launch_failures=self.failures))
        self.state = decision.state
        for action in decision.actions:
            assert isinstance(action, Resize)
            subnet = action.subnets[0] if action.subnets else (self.fleet.subnets or ("subnet-a",))[0]
            if action.desired:
                self.tried.append(subnet)
            has_nodes = action.desired and self.capacity[subnet]
            self.fleet = fleet_in(subnet, *(("i-1", "i-2") if has_nodes else ()))
            self.fleet = replace(self.fleet, desired=action.desired)
            self.failures = refusal(self.now + 10.0) if action.desired and not has_nodes else ()
        self.now += 60.0


def test_finds_the_only_zone_with_capacity_within_minutes_and_remembers_it() -> None:
    world = World({"subnet-a": True, "subnet-b": False, "subnet-c": False})
    minutes = 0
    while not world.fleet.instances:
        world.minute()
        minutes += 1
        assert minutes < 12
    assert world.tried == ["subnet-b", "subnet-c", "subnet-a"]


def test_zone_that_had_capacity_late_is_asked_again() -> None:
    world = World({"subnet-a": False, "subnet-b": False, "subnet-c": False})
    for _ in range(30):
        world.minute()
    assert set(world.tried) == set(SUBNETS)
    world.capacity["subnet-b"] = True
    minutes = 0
    while not world.fleet.instances:
        world.minute()
        minutes += 1
        assert minutes < 60
    assert world.tried[-1] == "subnet-b"


def test_stored_state_is_read_as_it_was_written() -> None:
    seen = {"subnet-a": Record().launched(NOW).ran(NOW + 60.0), "subnet-b": Record().refused(Cause.QUOTA, NOW + 60.0)}
    state = ControllerState(run_digest="d1", template="1", places=seen, in_place=True, choice="by cost: a")
    assert records.state_of(json.loads(json.dumps(asdict(state))), NOW + 60.0) == state


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ([], "places: must be an object"),
        ({"x": {}}, "places: must be an object with at most 1000 subnet ids"),
        ({"subnet-a": 1}, "places.subnet-a: must be an object"),
        ({"subnet-a": {"run_hours": -1}}, "run_hours"),
        ({"subnet-a": {"refusals": 1.5}}, "refusals"),
        ({"subnet-a": {"refused_until_unix_seconds": NOW + 7 * HOUR}}, "refused_until_unix_seconds"),
        ({"subnet-a": {"cause": "weather"}}, "cause"),
    ],
)
def test_invalid_record_is_rejected(places: object, message: str) -> None:
    with pytest.raises(InvalidRecord, match=message):
        records.state_of({"places": places}, NOW)


class FakeEc2:
    """Returns price changes, or raises an error."""

    def __init__(self, rows: list[tuple[str, str, str]], error: ClientError | None = None) -> None:
        self.rows, self.error, self.queries = rows, error, list[Any]()

    def get_paginator(self, name: str) -> FakeEc2:
        assert name == "describe_spot_price_history"
        return self

    def paginate(self, **query: Any) -> Iterator[dict[str, Any]]:
        self.queries.append(query)
        if self.error is not None:
            raise self.error
        yield {
            "SpotPriceHistory": [
                {
                    "InstanceType": kind,
                    "AvailabilityZone": zone,
                    "SpotPrice": price,
                    "Timestamp": datetime.fromtimestamp(NOW - 60.0, UTC),
                }
                for kind, zone, price in self.rows
            ]
        }


def test_price_of_a_zone_is_the_lowest_of_its_types() -> None:
    ec2 = FakeEc2(
        [("g5.xlarge", "us-east-1a", "0.6"), ("g6.xlarge", "us-east-1a", "0.5"), ("g5.xlarge", "us-east-1b", "1")]
    )
    prices = SpotPrices(SETTINGS, lambda service: ec2)
    assert prices.now(NOW) == ({"subnet-a": 0.5, "subnet-b": 1.0}, None)
    assert ec2.queries[0]["InstanceTypes"] == ["g5.xlarge", "g6.xlarge"]


def test_prices_are_read_only_if_they_are_used() -> None:
    for choose in ("order", "availability"):
        settings = replace(SETTINGS, choose=choose)
        assert SpotPrices(settings, lambda service: pytest.fail("no call is needed")).now(NOW) == ({}, None)


def test_unreadable_prices_do_not_stop_the_step() -> None:
    error = ClientError({"Error": {"Code": "RequestLimitExceeded", "Message": "slow down"}}, "DescribeSpotPriceHistory")
    found, problem = SpotPrices(SETTINGS, lambda service: FakeEc2([], error)).now(NOW)
    assert found == {}
    assert problem is not None
    assert "RequestLimitExceeded" in problem


def test_environment_contains_the_places() -> None:
    text = json.dumps({"region": "us-east-1", "instance_types": ["g5.xlarge", "g6.xlarge"], "zones": ["us-east-1a"]})
    settings = Environment.of({**ENVIRONMENT, "CHOOSE": "cost", "PLACES": text}).settings
    assert (settings.choose, settings.places) == ("cost", PLACES[:1])
    assert Environment.of(ENVIRONMENT).settings.places == ()
