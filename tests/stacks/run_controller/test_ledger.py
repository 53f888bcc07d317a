"""The ledger compared with the true bill of random histories, with crashed and missed control steps."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bootstrap.supervise.decide import SCALE_IN_LIMIT_SECONDS
from stacks.functions.run_controller.ledger.books import (
    Books,
    Row,
    changed_hours,
    look,
    priced,
    settled,
    unpriced_hours,
)
from stacks.functions.run_controller.ledger.machines import (
    HOUR,
    MINIMUM_SECONDS,
    Charge,
    Machine,
    OnDemandPrices,
    Sighting,
    charges,
    merge,
    total,
)
from stacks.functions.run_controller.spending import Limits, Spending
from tests.stacks.run_controller.billed_world import DAY, TYPES, Life, World

PRICES = OnDemandPrices(TYPES)
START = 1_790_000_000.0
POLL = 60.0
TAIL = 600.0


class Keeper:
    """A controller that runs every minute, misses steps, and crashes at the worst points."""

    def __init__(
        self, world: World, seed: int, *, backend: str, outage_hours: tuple[float, ...] = (), poll: float = POLL
    ) -> None:
        self.world, self.draw, self.backend, self.poll = world, random.Random(seed + 1000), backend, poll
        self.books, self.hours, self.crashes = Books(), dict[int, tuple[Row, ...]](), 0
        self.outages = [
            (begin, begin + hours * HOUR)
            for hours in outage_hours
            for begin in [world.start + self.draw.uniform(0.1, 0.3) * world.seconds]
        ]

    def moments(self) -> Iterator[float]:
        moment = self.world.start
        while moment < self.world.end + TAIL:
            if not any(begin < moment < end for begin, end in self.outages):
                yield moment
            moment += self.poll

    def run(self) -> None:
        for now in self.moments():
            self.step(now)

    def step(self, now: float) -> None:
        run = "run-1" if now < self.world.start + self.world.seconds / 2 else "run-2"
        since = now - 48 * HOUR
        reported = self.world.history(since, now) if self.backend == "fleet" else self.world.activities(since, now)
        looked = self.books.looked_unix_seconds
        reported += self.world.events(looked if looked is not None else now, now)
        seen = self.world.described(now)
        books = look(self.books, reported + seen, {one.instance_id for one in seen}, run, now)
        missing = unpriced_hours(books, now)
        books = priced(books, {pool: self.world.prices[pool] for pool in missing}, now)
        if self.draw.random() < 0.02:
            self.crashes += 1
            return
        self.hours.update(changed_hours(self.books, books, PRICES, now))
        if self.draw.random() < 0.02:
            self.crashes += 1
            return
        self.books = settled(books, PRICES)

    def written(self) -> dict[str, Charge]:
        """Return the sums of all hourly objects by run."""
        return total(row.charges for rows in self.hours.values() for row in rows)


def usd(charges: dict[str, Charge]) -> float:
    return sum(charge.usd for charge in charges.values())


@pytest.mark.parametrize("seed", range(20))
def test_the_ledger_equals_the_true_bill(seed: int) -> None:
    world = World(seed, days=0.2, machines=30)
    keeper = Keeper(world, seed, backend="fleet" if seed % 2 else "group", outage_hours=(0.15, 0.1, 0.15))
    keeper.run()
    true = sum(world.bill(life) for life in world.lives)
    assert keeper.crashes > 5 and true > 5.0
    assert usd(keeper.written()) == pytest.approx(true, rel=0.01)
    assert usd(keeper.books.totals(PRICES, world.end + TAIL)) == pytest.approx(usd(keeper.written()), rel=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_a_limit_is_exceeded_by_at_most_the_time_between_two_looks_and_the_last_save(seed: int) -> None:
    world = World(seed, days=0.2, machines=30)
    limit = sum(world.bill(life) for life in world.lives) / 2
    keeper, before = Keeper(world, seed, backend="fleet" if seed % 2 else "group"), world.start
    for now in keeper.moments():
        keeper.step(now)
        if keeper.books.looked_unix_seconds != now:  # the step crashed
            continue
        spent = usd(keeper.books.totals(PRICES, now))
        if Limits(usd=limit).reached(Spending(spent, spent, 0.0, 0.0)):
            break
        before = now
    end = now + SCALE_IN_LIMIT_SECONDS
    lives = [replace(life, end=min(life.end, end)) for life in world.lives if life.start < now]
    running = [life for life in lives if life.end > before]
    rate = sum(max(world.price(life, max(life.start, moment - HOUR)) for moment in (before, end)) for life in running)
    assert now < world.end, "the limit stops the run"
    excess = sum(world.bill(life) for life in lives) - limit
    assert excess <= rate * (end - before + MINIMUM_SECONDS) / HOUR + 0.01 * limit


@pytest.mark.parametrize("seed", range(2))
def test_machines_of_a_fleet_count_that_lived_while_the_controller_was_down_for_a_day(seed: int) -> None:
    world = World(seed, days=2.0, machines=30)
    keeper = Keeper(world, seed, backend="fleet", outage_hours=(30.0,), poll=600.0)
    keeper.run()
    seen_market = {life.instance_id for life in world.lives}
    assert {row.machine.instance_id for rows in keeper.hours.values() for row in rows} == seen_market
    true = sum(world.bill(life) for life in world.lives)
    assert usd(keeper.written()) >= true * 0.99
    if usd(keeper.written()) > true * 1.01:
        assert sum(charge.uncertain_seconds for charge in keeper.written().values()) > 0


def test_old_machines_are_forgotten_but_not_their_costs() -> None:
    world = World(7, days=6.0, machines=40)
    keeper = Keeper(world, 7, backend="fleet", poll=600.0)
    keeper.run()
    assert len(keeper.books.machines) < 40
    assert usd(keeper.books.totals(PRICES, world.end)) == pytest.approx(usd(keeper.written()), rel=1e-9)


def test_each_run_pays_for_its_own_time() -> None:
    world = World(3, machines=1)
    world.lives = [
        Life("i-1", "g5.xlarge", "us-east-1a", "on_demand", world.start, world.start + 20 * HOUR, "by itself")
    ]
    keeper = Keeper(world, 3, backend="group")
    keeper.run()
    found = keeper.written()
    assert found["run-1"].seconds == pytest.approx(12 * HOUR, abs=2 * POLL)
    assert found["run-2"].seconds == pytest.approx(8 * HOUR, abs=2 * POLL)
    assert sum(keeper.books.run_seconds.values()) == pytest.approx(20 * HOUR, abs=2 * POLL)


def machine(seconds: float, **facts: object) -> Machine:
    values: dict[str, object] = {"instance_type": "g5.xlarge", "zone": "us-east-1a", "market": "spot"}
    values |= {"spot_usd": {0: 0.4, 1: 0.5, 2: 0.6}}
    return Machine("i-1", START, START, gone_unix_seconds=START + seconds, **(values | facts))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "facts", "expected"),
    [
        (10.0, {}, 0.4 * 60 / 3600),
        (1800.0, {}, 0.2),
        (3600.0, {}, 0.4),
        (5400.0, {}, 0.4 + 0.25),
        (3599.0, {"reclaimed": True}, 0.0),
        (3600.0, {"reclaimed": True}, 0.4),
        (5400.0, {"reclaimed": True}, 0.4 + 0.25),
        (1800.0, {"market": "on_demand"}, 0.503),
        (1800.0, {"market": "on_demand", "reclaimed": True}, 0.503),
        (1800.0, {"market": "prepaid"}, 0.0),
    ],
)
def test_the_rules_of_the_bill(seconds: float, facts: dict[str, object], expected: float) -> None:
    found = charges(machine(seconds, **facts), [(0.0, "run-1")], PRICES, START + DAY)
    assert found["run-1"].usd == pytest.approx(expected)
    assert found["run-1"].on_demand_usd == pytest.approx(1.006 * max(seconds, 60.0) / HOUR)
    assert found["run-1"].uncertain_seconds == 0.0


@pytest.mark.parametrize(
    ("facts", "expected", "uncertain", "unpriced"),
    [
        ({"spot_usd": {}}, 1.006, 3600.0, 0.0),
        ({"market": ""}, 1.006, 3600.0, 0.0),
        ({"instance_type": "", "market": ""}, 6.88, 3600.0, 0.0),
        ({"instance_type": "x9.large", "spot_usd": {}}, 0.0, 0.0, 3600.0),
    ],
)
def test_unknown_facts_are_upper_bounds(
    facts: dict[str, object], expected: float, uncertain: float, unpriced: float
) -> None:
    found = charges(machine(HOUR, **facts), [(0.0, "")], PRICES, START + DAY)[""]
    assert (found.usd, found.uncertain_seconds, found.unpriced_seconds) == (expected, uncertain, unpriced)


def test_an_instance_that_disappears_ends_with_an_upper_bound() -> None:
    seen = Sighting("i-1", "g5.xlarge", "us-east-1a", "on_demand", START, START + 60, is_from_ec2=True)
    books = look(Books(), [seen], {"i-1"}, "run-1", START + 60)
    books = look(books, [], set(), "run-1", START + 7260)
    (found,) = books.machines
    assert found.gone_unix_seconds == START + 7260 and found.is_end_assumed
    assert charges(found, books.runs, PRICES, START + DAY)["run-1"].uncertain_seconds == pytest.approx(7200)
    later = look(books, [Sighting("i-1", gone_unix_seconds=START + 600)], set(), "run-1", START + 7320)
    assert later.machines[0].gone_unix_seconds == START + 600 and not later.machines[0].is_end_assumed


def test_a_new_instance_that_ec2_does_not_describe_yet_has_not_ended() -> None:
    launched = Sighting("i-1", launched_unix_seconds=START)
    books = look(Books(), [launched], set(), "run-1", START + 30)
    assert books.machines[0].gone_unix_seconds is None
    seen = Sighting("i-1", "g5.xlarge", "us-east-1a", "spot", START + 1, START + 90, is_from_ec2=True)
    books = look(books, [launched, seen], {"i-1"}, "run-1", START + 90)
    assert books.machines[0].launched_unix_seconds == START + 1 and books.machines[0].market == "spot"


def test_reports_have_the_same_result_in_any_order() -> None:
    reports = [
        Sighting("i-1", "g5.xlarge", "us-east-1a", "spot", START, START + 400, is_from_ec2=True),
        Sighting("i-1", gone_unix_seconds=START + 900),
        Sighting("i-1", gone_unix_seconds=START + 600, reclaimed=True),
        Sighting("i-1", live_unix_seconds=START + 500),
    ]
    found = set()
    for seed in range(24):
        shuffled = reports[1:]
        random.Random(seed).shuffle(shuffled)
        merged = merge(None, reports[0])
        for seen in shuffled:
            merged = merge(merged, seen)
        assert merged is not None
        found.add((merged.live_unix_seconds, merged.gone_unix_seconds, merged.reclaimed))
    assert found == {(START + 500, START + 600, True)}


def test_the_hourly_cost_is_that_of_the_running_instances() -> None:
    books = Books(machines=(machine(10.0), Machine("i-2", START, START, "g5.xlarge", "b", "spot", spot_usd={1: 0.5})))
    assert books.usd_per_hour(PRICES, START + HOUR + 1) == 0.5
    assert books.usd_per_hour(PRICES, START + 30) == 1.006
