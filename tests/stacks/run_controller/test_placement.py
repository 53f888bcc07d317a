"""The choice of a place: merit order, safety net, pace, moves, and refusals, with numbers calculated by hand."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import replace

import pytest

from stacks.functions.run_controller import places
from stacks.functions.run_controller.causes import Cause
from stacks.functions.run_controller.placement import Decision, Task, Transfer, decide
from stacks.functions.run_controller.places import HOUR, Offer, Place, Record

NOW = 1_000_000.0
TASK = Task(
    work_hours=48.0,
    deadline_unix_seconds=NOW + 60.0 * HOUR,
    planned_share=0.8,
    restart_hours=0.2,
    period_hours=0.05,
)


def place(letter: str, market: places.Market = "spot") -> Place:
    return Place("us-east-1", f"us-east-1{letter}", "p3.2xlarge", market)


ON_DEMAND = Offer(place("a", "on_demand"), 3.0)
LONG = Record(run_hours=994.0, looked_unix_seconds=NOW)  # a lifetime of (6 + 994) / 4 = 250 h: restarts cost nothing


def spot(letter: str, usd: float, record: Record = LONG) -> Offer:
    return Offer(place(letter), usd, record)


def answer(decision: Decision) -> tuple[str, Place | None]:
    return decision.action, decision.place


def test_cheapest_place_first_and_dearer_ones_only_if_needed() -> None:
    # b supplies 0.9 x 60 = 54 h of the 48 h at a price of 1, so a, which is listed first, is not needed.
    certain = replace(LONG, available_hours=54.0, unavailable_hours=5.4)  # (4.8 + 54) / (6 + 59.4) = 0.9
    decision = decide(TASK, [spot("a", 2.0), spot("b", 1.0, certain), ON_DEMAND], None, NOW)
    assert answer(decision) == ("place", place("b"))
    assert decision.spot_share == pytest.approx(0.9, abs=0.002)
    assert decision.marginal_usd_per_hour == pytest.approx(1.0, abs=0.002)
    assert decision.expected_usd == pytest.approx(48.0, abs=0.1)


def test_dear_place_is_accepted_when_the_cheap_one_does_not_suffice() -> None:
    rare = replace(LONG, unavailable_hours=6.0)  # 4.8 / 12 = 0.4, so b supplies 24 h of the 48 h
    offers = [spot("a", 2.0), spot("b", 1.0, rare), ON_DEMAND]
    decision = decide(TASK, offers, None, NOW)
    assert answer(decision) == ("place", place("b"))
    assert decision.marginal_usd_per_hour == pytest.approx(2.0, abs=0.01)
    # 24 h at 1 USD; together they supply (1 - 0.6 x 0.2) x 60 = 52.8 h, so the rest costs 2 USD per hour.
    assert decision.expected_usd == pytest.approx(24.0 + 24.0 * 2.0, rel=0.01)
    refused = [spot("a", 2.0), spot("b", 1.0, replace(rare, refused_until_unix_seconds=NOW + 60.0)), ON_DEMAND]
    assert answer(decide(TASK, refused, None, NOW)) == ("place", place("a"))


def test_place_with_short_lives_is_worth_less_than_its_price() -> None:
    # (6 + 0) / (4 + 16) = 0.3 h of life, a third of which is training: 3 USD per hour of training, the On-Demand price.
    short = Record(interruptions=16.0, looked_unix_seconds=NOW)
    decision = decide(TASK, [spot("a", 1.0, short), spot("b", 2.0), ON_DEMAND], None, NOW)
    assert answer(decision) == ("place", place("b"))
    assert [each.usd_per_work_hour for each in decision.ranking[:2]] == pytest.approx([2.0, 3.0], rel=0.01)


@pytest.mark.parametrize(("work", "action"), [(59.56, "on_demand"), (59.54, "place")])
def test_safety_net_when_the_slack_does_not_cover_two_restarts(work: float, action: str) -> None:
    task = replace(TASK, work_hours=work)  # two restarts and a period are 0.45 h
    assert decide(task, [spot("a", 1.0), ON_DEMAND], None, NOW).action == action


def test_run_on_demand_without_slack_stays() -> None:
    task = replace(TASK, work_hours=59.9)
    assert answer(decide(task, [spot("a", 1.0), ON_DEMAND], ON_DEMAND.place, NOW)) == ("on_demand", ON_DEMAND.place)


def test_run_on_spot_without_slack_stays_because_it_keeps_its_slack() -> None:
    task = replace(TASK, work_hours=59.9)
    assert answer(decide(task, [spot("a", 1.0), ON_DEMAND], place("a"), NOW)) == ("place", place("a"))


def quota(now: float) -> Record:
    return LONG.refused(Cause.QUOTA, now)


@pytest.mark.parametrize(("work", "action"), [(48.0, "wait"), (50.3, "wait"), (50.5, "on_demand")])
def test_buys_on_demand_only_behind_uniform_progress(work: float, action: str) -> None:
    # No place accepts a request. Planned: 0.8 x 60 = 48 h; the margin of 1.05 gives 50.4 h.
    assert decide(replace(TASK, work_hours=work), [spot("a", 1.0, quota(NOW)), ON_DEMAND], None, NOW).action == action


def test_place_without_capacity_is_asked_again_when_no_other_is_left_but_not_one_without_quota() -> None:
    early = LONG.refused(Cause.CAPACITY, NOW)
    late = early.refused(Cause.CAPACITY, NOW)
    assert answer(decide(TASK, [spot("a", 1.0, late), spot("b", 2.0, early), ON_DEMAND], None, NOW)) == (
        "place",
        place("b"),
    )
    assert decide(TASK, [spot("a", 1.0, quota(NOW)), ON_DEMAND], None, NOW).action == "wait"


def with_lifetime(hours: float) -> Record:
    return Record(run_hours=hours * 1004.0 - 6.0, interruptions=1000.0, looked_unix_seconds=NOW)


@pytest.mark.parametrize(("life", "action"), [(0.59, "on_demand"), (0.61, "place")])
def test_leaves_on_demand_only_for_a_life_that_pays_for_two_restarts(life: float, action: str) -> None:
    # "Can't Be Late", section 5.4: life > 2 k d / (k - 1), here 2 x 3 x 0.2 / (3 - 1) = 0.6 h.
    decision = decide(TASK, [spot("a", 1.0, with_lifetime(life)), ON_DEMAND], ON_DEMAND.place, NOW)
    assert decision.action == action


@pytest.mark.parametrize(("life", "action"), [(0.29, "wait"), (0.31, "place")])
def test_idle_run_uses_spot_only_if_it_is_cheaper_than_on_demand(life: float, action: str) -> None:
    # Section 5.4: life > k d / (k - 1), here 3 x 0.2 / 2 = 0.3 h.
    assert decide(TASK, [spot("a", 1.0, with_lifetime(life)), ON_DEMAND], None, NOW).action == action


def test_run_on_demand_does_not_ask_a_refused_place() -> None:
    refused = LONG.refused(Cause.CAPACITY, NOW)
    decision = decide(TASK, [spot("a", 1.0, refused), ON_DEMAND], ON_DEMAND.place, NOW)
    assert answer(decision) == ("on_demand", ON_DEMAND.place)


def test_moves_only_if_the_move_is_worth_its_restart() -> None:
    certain = replace(LONG, available_hours=1e6)
    offers = [spot("a", 1.0), spot("b", 0.5, certain), ON_DEMAND]
    task = replace(TASK, work_hours=40.0)
    assert answer(decide(task, offers, place("a"), NOW)) == ("place", place("b"))  # saves 20 USD for 0.1 USD
    nearly = [spot("a", 1.0), spot("b", 0.995, certain), ON_DEMAND]
    assert answer(decide(task, nearly, place("a"), NOW)) == ("place", place("a"))
    tight = replace(TASK, work_hours=59.3)  # the slack covers no failed move
    assert answer(decide(tight, offers, place("a"), NOW)) == ("place", place("a"))


def test_order_and_availability_rank_without_prices() -> None:
    rare = replace(LONG, unavailable_hours=6.0)
    offers = [spot("a", 2.0, rare), spot("b", 1.0, rare), spot("c", 2.5), ON_DEMAND]
    assert decide(replace(TASK, choose="order"), offers, None, NOW).place == place("a")
    assert decide(replace(TASK, choose="availability"), offers, None, NOW).place == place("c")
    assert decide(replace(TASK, choose="cost"), offers, None, NOW).place == place("b")


def test_without_deadline_every_place_below_on_demand_is_acceptable() -> None:
    task = replace(TASK, deadline_unix_seconds=None)
    refused = [spot("a", 2.9), spot("b", 1.0, LONG.refused(Cause.CAPACITY, NOW)), ON_DEMAND]
    assert answer(decide(task, refused, None, NOW)) == ("place", place("a"))
    assert decide(task, [spot("a", 3.1), ON_DEMAND], None, NOW).action == "wait"


def test_without_on_demand_the_run_waits_for_spot() -> None:
    assert decide(replace(TASK, work_hours=59.9), [spot("a", 1.0, quota(NOW))], None, NOW).action == "wait"
    assert decide(replace(TASK, work_hours=59.9), [spot("a", 1.0)], None, NOW).action == "place"


WEST = Place("us-west-2", "us-west-2a", "p3.2xlarge", "spot")


@pytest.mark.parametrize(
    ("transfer", "chosen"),
    [
        (Transfer(), WEST),
        (Transfer(usd=9.5), WEST),  # for 48 h of training at 0.8 instead of 1 USD: 9.6 USD saved
        (Transfer(usd=9.7), place("a")),
        (Transfer(once_usd=9.7), place("a")),
        (Transfer(hours=49.0), place("a")),  # 49 of 250 h: 1 USD per hour of training
    ],
)
def test_other_region_must_be_worth_its_transfer(transfer: Transfer, chosen: Place) -> None:
    task = replace(TASK, restart_hours=0.0, deadline_unix_seconds=None, transfers={WEST.region: transfer})
    offers = [spot("a", 1.0), Offer(WEST, 0.8, LONG)]
    assert answer(decide(task, offers, None, NOW)) == ("place", chosen)


@pytest.mark.parametrize(("usd", "moves"), [(0.0, True), (40.0, False)])
def test_running_nodes_move_to_another_region_only_if_the_saving_pays_for_the_transfer(usd: float, moves: bool) -> None:
    # 48 h at 0.2 instead of 1 USD save 38 USD.
    task = replace(TASK, deadline_unix_seconds=None, transfers={WEST.region: Transfer(usd=usd)})
    decision = decide(task, [spot("a", 1.0), Offer(WEST, 0.2, LONG)], place("a"), NOW)
    assert decision.place == (WEST if moves else place("a"))


@pytest.mark.parametrize(("hours", "action"), [(0.5, "place"), (1.5, "on_demand")])
def test_transfer_must_leave_the_slack_of_the_safety_net(hours: float, action: str) -> None:
    # 58.5 of 60 h: the slack of 1.5 h covers two restarts and a period, 0.45 h, and half an hour, but not 1.5 h.
    task = replace(TASK, work_hours=58.5, transfers={WEST.region: Transfer(hours=hours)})
    assert decide(task, [Offer(WEST, 1.0, LONG), ON_DEMAND], None, NOW).action == action


def test_decision_for_200_places_is_fast_and_small() -> None:
    offers = [
        Offer(Place(f"region-{i % 8}", f"zone-{i}", "p5.48xlarge", "spot"), 30.0 + i, Record()) for i in range(200)
    ]
    decide(TASK, [*offers, ON_DEMAND], None, NOW)
    tracemalloc.start()
    started = time.perf_counter()
    for _ in range(5):
        decide(TASK, [*offers, ON_DEMAND], None, NOW)
    seconds = (time.perf_counter() - started) / 5
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 0.1
    assert peak < 64e6
