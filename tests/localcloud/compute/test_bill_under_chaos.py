"""The ledger equals the bill, and the limit holds, while prices, capacity, instances and the controller are disturbed.

The bill is computed from the embedded cloud's own record of instances and prices. The controller is the real one, with
its ledger. Its function crashes before or after a call, its writes to S3 fail, it is down for up to 40 minutes, and its
queue loses and repeats events. Each seed prints a line of a table, for each back end.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from botocore.exceptions import ClientError

from stacks.functions.run_controller.events import INTERRUPTION, STATE_CHANGE
from stacks.functions.run_controller.fleet_back_ends import Backend
from stacks.functions.run_controller.handler import StateTaken
from stacks.functions.run_controller.ledger import documents
from tests.localcloud.compute.controlled_run import HOUR, ControlledRun, Plan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.usefixtures("fleet_roles", "empty_cloud")]

ZONES = ("eu-west-1a", "eu-west-1b", "eu-west-1c")
SEEDS: dict[Backend, int] = {"ec2_fleet": 10, "spot_fleet": 10, "auto_scaling_group": 20}
HOURS = 2.0
LIMIT_USD = 0.03
QUEUE_SECONDS = 600.0
"""Time for which the function's queue keeps events: `MAXIMUM_EVENT_AGE` of the construct."""
PRICES_USD = (0.02, 0.06)
FIRM = 1.01
"""Factor of the limit from which the ledger, which may differ by 1%, must have reached it."""

# The probabilities of disturbances in each minute.
PRICE, CAPACITY, NOTICE, KILL, TERMINATION = 0.05, 0.03, 0.03, 0.01, 0.005
CRASH, OUTAGE, FAILED_WRITE, LOST, REPEATED = 0.15, 0.01, 0.05, 0.05, 0.1


class Crash(Exception):
    """The function's process ends in the middle of a step."""


class Faults:
    """Makes the clients of one step fail: at the drawn call, and now and then at a write to S3."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._crash_at = draw.randint(1, 25) if draw.random() < CRASH else 0
        self._is_after = draw.random() < 0.5
        self._calls = 0

    def clients(self, client: Callable[[str], Any]) -> Callable[[str], Any]:
        """Return the same clients, with faults."""
        return lambda service: _Client(client(service), self)

    def call(self, name: str, operation: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Make a call, or fail before or after it."""
        self._calls += 1
        if name == "put_object" and self._draw.random() < FAILED_WRITE:
            error = {"Error": {"Code": "SlowDown", "Message": "Please reduce your request rate."}}
            raise ClientError(error, "PutObject")
        if self._calls == self._crash_at and not self._is_after:
            raise Crash(name)
        result = operation(**arguments)
        if self._calls == self._crash_at:
            raise Crash(name)
        return result


class _Client:
    def __init__(self, client: Any, faults: Faults) -> None:
        self._client, self._faults = client, faults

    def get_paginator(self, name: str) -> Any:
        return self._client.get_paginator(name)

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._client, name)
        return lambda **arguments: self._faults.call(name, operation, arguments)


@dataclass(frozen=True)
class Step:
    """A complete control step with a current ledger: its time, its line of the log, and the bill at this time."""

    unix_seconds: float
    line: dict[str, Any]
    bill_usd: float


@dataclass
class Function:
    """The controller's function, with its queue.

    Attributes:
        complete: The complete steps with a current ledger.
    """

    run: ControlledRun
    draw: random.Random
    queue: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    down_until: float = 0.0
    crashes: int = 0
    failed: int = 0
    outages: int = 0
    complete: list[Step] = field(default_factory=list)

    def step(self, events: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Take a step with all events in the queue, or none while the function is down."""
        now, draw = self.run.cloud.now(), self.draw
        self.queue += [(now, each) for each in events if _is_delivered(each) and draw.random() >= LOST]
        self.queue = [(since, each) for since, each in self.queue if now - since < QUEUE_SECONDS]
        if draw.random() < OUTAGE:
            self.outages += 1
            self.down_until = now + draw.uniform(2.0, 40.0) * 60.0
        if now < self.down_until:
            return None
        client = Faults(draw).clients(self.run.cloud.client)
        try:
            line = self.run.controller(client).step([each for _, each in self.queue], now)
        except Crash:  # the queue delivers the events again
            self.crashes += 1
            return None
        except (ClientError, StateTaken):
            self.failed += 1
            return None
        self.queue = [each for each in self.queue if draw.random() < REPEATED]
        if line.get("ledger") == "updated":
            self.complete.append(Step(now, line, self.run.bill()))
        else:
            self.failed += 1
        return line

    def calm_step(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        """Take a step without faults."""
        batch, self.queue = [each for _, each in self.queue] + [each for each in events if _is_delivered(each)], []
        return self.run.step(batch)


def _is_delivered(event: dict[str, Any]) -> bool:
    """Return True if the function's rules match an event: see the construct's `_rules`."""
    if event["detail-type"] == STATE_CHANGE:
        return event["detail"]["state"] in ("shutting-down", "stopping")
    return event["detail-type"] == INTERRUPTION


def disturb(run: ControlledRun, draw: random.Random, available: dict[str, bool], share: float) -> None:
    """Change prices and capacity, and end instances, at random. `share`: factor of the probabilities of interruptions.

    Without calm hours, AWS would bill almost nothing: the first hour of an interrupted instance is free.
    """
    for zone in ZONES:
        changes_capacity = draw.random() < (share * CAPACITY if available[zone] else 10 * CAPACITY)
        if changes_capacity or draw.random() < PRICE:
            available[zone] ^= changes_capacity
            price = round(draw.uniform(*PRICES_USD), 4)
            run.set_zone(zone, is_available=available[zone], usd_per_hour=price)
    for one in run.instances():
        if one.market == "spot" and draw.random() < share * NOTICE:
            run.notice(one.id)
        elif one.market == "spot" and draw.random() < share * KILL:
            run.kill(one.id)
        elif draw.random() < TERMINATION:
            run.cloud.ec2.terminate_instances(InstanceIds=[one.id])


def by_instance(run: ControlledRun) -> list[str]:
    """Return the instances whose charge in the ledger's hours differs from the bill by more than 1%."""
    keys = run.s3.list_objects_v2(Bucket=run.bucket, Prefix=documents.hours_prefix(run.name)).get("Contents", [])
    charged: dict[str, float] = {}
    for key in keys:
        body = run.s3.get_object(Bucket=run.bucket, Key=key["Key"])["Body"].read()
        for entry in documents.entries_from_bytes(body):
            charged[entry.instance_id] = charged.get(entry.instance_id, 0.0) + entry.charge.usd
    found = []
    for one in run.all_instances():
        bill, ledger = run._bill(one), charged.get(one.id, 0.0)
        if abs(ledger - bill) > 0.01 * bill:
            reason = "" if one.reason is None else one.reason.code
            seconds = run.bus.ended.get(one.id, one.launched_unix_seconds) - one.launched_unix_seconds
            noticed = "noticed" if one.id in run.was_noticed else "no notice"
            found.append(
                f"{one.id} {one.market} {noticed} {reason} {seconds:.0f} s: bill {bill:.5f}, ledger {ledger:.5f}"
            )
    return found


@pytest.mark.parametrize(
    ("backend", "seed"), [(backend, seed) for backend, last in SEEDS.items() for seed in range(1, last + 1)]
)
def test_the_ledger_equals_the_bill(
    cloud: Any, capsys: pytest.CaptureFixture[str], backend: Backend, seed: int
) -> None:
    draw = random.Random(seed)
    limit = LIMIT_USD if seed % 2 == 0 else None
    deadline = 6.0 if seed % 4 == 1 else None  # this seed also buys on demand
    plan = Plan(work_hours=5.0, deadline_hours=deadline, limit_usd=limit)
    run = ControlledRun(cloud, plan, ZONES, backend)
    available = dict.fromkeys(ZONES, True)
    for zone in ZONES:
        run.set_zone(zone, is_available=True, usd_per_hour=round(draw.uniform(*PRICES_USD), 4))
    function = Function(run, draw)
    while run.hours < HOURS:
        disturb(run, draw, available, 0.5 if limit is None else 0.2)
        run.tick(function.step)
    run.end()
    for _ in range(4):
        run.tick(function.calm_step)
    assert not run.instances()
    ledger, bill = run.lines[-1]["spending"], run.bill()
    difference = ledger["usd"] / bill - 1.0
    over = "" if limit is None else check_limit(function.complete, limit, bill)
    wrong = [] if abs(difference) <= 0.01 else by_instance(run)
    with capsys.disabled():
        ends = [one.reason.code for one in run.all_instances() if one.reason is not None]
        print(
            f"\n{backend}, seed {seed:2d}: {len(run.all_instances()):2d} instances "
            f"({ends.count('Server.SpotInstanceTermination')} reclaimed), {function.crashes} crashes, "
            f"{function.failed} failed steps, {function.outages} outages, bill {bill:.5f} USD, "
            f"ledger {ledger['usd']:.5f} USD ({difference:+.3%}){over}",
            *wrong,
            sep="\n",
        )
    assert abs(difference) <= 0.01, wrong
    assert ledger["unpriced_hours"] == 0.0
    assert function.crashes, "the controller has crashed"


def check_limit(steps: list[Step], limit: float, bill: float) -> str:
    """Check that the run exceeds its limit by at most the cost between two complete steps, and of the last save.

    Nodes do not know the costs, so a limit holds only while the controller completes its steps. Returns the overshoot
    for the table.
    """
    assert all(step.line["phase"] == "limited" for step in steps if step.bill_usd >= FIRM * limit)
    text = f", limit {limit} USD ({bill / limit - 1.0:+.1%})"
    number = next((number for number, step in enumerate(steps) if step.line["spending"]["usd"] >= limit), None)
    if number is None:
        return text
    last, first = steps[number - 1], steps[number]
    assert (last.line["phase"] == "limited", first.line["phase"] == "limited") == (False, True)
    save = Plan.nodes * PRICES_USD[1] * Plan.tick_seconds / HOUR
    assert bill - limit <= first.bill_usd - last.bill_usd + save + (FIRM - 1.0) * bill
    return f"{text}, {(first.unix_seconds - last.unix_seconds) / 60.0:.0f} min between the steps at the limit"
