"""Running nodes move to a cheaper zone when the saving exceeds the restart, with numbers calculated by hand."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from stacks.functions.run_controller.causes import Cause
from stacks.functions.run_controller.deadlines.goals import Deadline, Progress
from stacks.functions.run_controller.environment import Environment
from stacks.functions.run_controller.placement import MIN_STAY_HOURS
from stacks.functions.run_controller.places import HOUR, Record
from stacks.functions.run_controller.policy import ControllerState, Decision, LaunchFailure, Resize, decide
from stacks.functions.run_controller.records import InvalidRecord, state_of
from tests.stacks.run_controller.test_handler import ENVIRONMENT
from tests.stacks.run_controller.test_zone_choice import (
    EMPTY,
    NO_CAPACITY,
    NOW,
    SETTINGS,
    fleet_in,
    situation,
)

MOVING = replace(SETTINGS, moves=True)
GANG = fleet_in("subnet-b", "i-1", "i-2")
STATE = ControllerState(
    run_digest="d1", template="1", phase="running", subnets=("subnet-b",), in_place=True, placed_unix_seconds=NOW - HOUR
)
# A place that has not been tried: its launches succeed in 50%, and its instances live for 1.5 h. A restart takes 0.2 h.
# Saved per node: 0.5 * ((0.9 - 0.3) * 1.5 - 0.2 * 0.3) - 0.5 * 2 * 0.2 * 0.9 = 0.24 USD. Another restart: 0.18 USD.
SPIKE = {"subnet-a": 0.6, "subnet-b": 0.9, "subnet-c": 0.3}


def report(now: float = NOW, **changes: Any) -> Progress:
    """A run with 10 h of training left, on both nodes."""
    known = Progress(0, 1000, step_seconds=36.0, members=2, checkpoint_step=0, unix_seconds=now - 10.0)
    return replace(known, **changes)


def step(state: ControllerState = STATE, fleet: Any = GANG, now: float = NOW, **changes: Any) -> Decision:
    known = {"settings": MOVING, "usd_per_hour": SPIKE, "progress": report(now), **changes}
    return decide(situation(state, fleet, now, **known))


def test_nodes_save_and_start_again_in_the_cheaper_zone() -> None:
    leaving = step()
    assert leaving.actions == (Resize(0),)
    assert (leaving.state.phase, leaving.state.moving_to) == ("giving_up", "subnet-c")
    expected = (
        "moving from us-east-1b (0.9000 USD/h) to us-east-1c (0.3000 USD/h) for 10.0 h of training: each node saves "
        "about 0.2400 USD after a restart of 0.20 h"
    )
    assert (leaving.state.reason, leaving.state.choice) == (expected, expected)
    assert [each.place.zone for each in leaving.ranking] == ["us-east-1c", "us-east-1a", "us-east-1b"]
    saving = step(leaving.state, replace(GANG, desired=0), NOW + 60)
    assert saving.actions == () and saving.state.phase == "giving_up"
    assert (leaving.state.cause, saving.state.cause) == ("", ""), "nothing is wrong: no alarm"
    started = step(saving.state, EMPTY, NOW + 120)
    assert started.actions == (Resize(2, ("subnet-c",)),)
    assert (started.state.phase, started.state.moving_to, started.state.attempt) == ("running", "", 0)
    assert started.state.placed_unix_seconds == NOW + 120
    assert started.state.choice == expected


def test_moves_to_and_fro_have_a_floor() -> None:
    seconds = MIN_STAY_HOURS * HOUR
    early = replace(STATE, placed_unix_seconds=NOW - seconds + 1.0)
    assert step(early).actions == ()
    assert step(replace(early, placed_unix_seconds=NOW - seconds)).actions == (Resize(0),)


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": SETTINGS},
        {"settings": replace(MOVING, choose="availability")},
        {"progress": None},
        {"progress": report(NOW - 180.0)},
        {"progress": report(step=960)},  # 0.4 h remain, which save (0.9 - 0.3) * 0.4 h at most
        {"progress": report(step_seconds=None)},
        {"interrupted": frozenset({"i-1"})},
        {"fleet": fleet_in("subnet-b", "i-1")},
        {"fleet": replace(GANG, on_demand=1, bought=("i-2",))},
        {"fleet": replace(GANG, subnets=("subnet-a",))},
        {"usd_per_hour": {"subnet-a": 0.6, "subnet-c": 0.3}},  # the own price is not known
        {"usd_per_hour": {"subnet-b": 0.9}},  # no other price is known
        {"usd_per_hour": {"subnet-a": 0.6, "subnet-b": 0.4, "subnet-c": 0.3}},  # saves less than a restart
        {"state": replace(STATE, places={"subnet-c": Record().refused(Cause.CAPACITY, NOW)})},
    ],
)
def test_nodes_stay(changes: dict[str, Any]) -> None:
    decision = step(**changes)
    assert Resize(0) not in decision.actions
    assert (decision.state.phase, decision.state.moving_to) == ("running", "")


def test_a_refused_move_continues_with_the_next_place() -> None:
    started = step(step().state, EMPTY, NOW + 120)
    waiting = replace(EMPTY, desired=2, subnets=("subnet-c",))
    failure = LaunchFailure(NO_CAPACITY, unix_seconds=NOW + 150)
    refused = step(started.state, waiting, NOW + 300, launch_failures=(failure,))
    assert refused.actions == (Resize(0),) and refused.state.places["subnet-c"].refusals == 1
    again = step(refused.state, EMPTY, NOW + 360)
    assert again.actions == (Resize(2, ("subnet-a",)),)


def test_a_move_needs_slack_before_the_deadline() -> None:
    def decided(hours: float) -> Decision:
        goal = Deadline(hours=hours, on_miss="on_demand", training_hours=10.0, on_demand_usd_per_hour=1.0)
        state = replace(STATE, started_unix_seconds=NOW)
        return step(state, settings=replace(MOVING, deadline=goal))

    assert decided(20.0).state.moving_to == "subnet-c"
    assert decided(10.8).state.moving_to == ""  # less than four restarts of 0.2 h and a request


def test_a_stop_ends_the_move() -> None:
    stopped = step(step().state, EMPTY, NOW + 60, stop="stopped by a")
    resumed = step(stopped.state, EMPTY, NOW + 120)
    assert stopped.actions == () and stopped.state.phase == "stopped"
    assert resumed.actions == (Resize(2, ("subnet-c",)),), "the cheapest zone"


def test_the_state_survives_storage() -> None:
    state = step().state
    assert state_of(json.loads(json.dumps(asdict(state))), NOW) == state
    with pytest.raises(InvalidRecord, match="moving_to: must be empty or a subnet id"):
        state_of({"moving_to": "x"}, NOW)
    with pytest.raises(InvalidRecord, match="placed_unix_seconds"):
        state_of({"placed_unix_seconds": NOW + 1e7}, NOW)


@pytest.mark.parametrize(
    ("variables", "moves"),
    [
        ({"CHOOSE": "cost"}, True),
        ({"CHOOSE": "order"}, False),
        ({"CHOOSE": "availability"}, False),
        ({"CHOOSE": "cost", "ON_DEMAND_BASE": "1"}, False),
        ({"CHOOSE": "cost", "BACKEND": "ec2_fleet"}, False),
    ],
)
def test_only_groups_of_spot_instances_ranked_by_cost_move(variables: dict[str, str], moves: bool) -> None:
    assert Environment.of({**ENVIRONMENT, **variables}).settings.moves is moves
