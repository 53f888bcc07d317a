"""The keeper of the ledger with moto's S3 and clients that respond from a random history, in AWS's formats."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from stacks.functions.run_controller.events import INTERRUPTION, STATE_CHANGE
from stacks.functions.run_controller.fleet_clients import FleetIdentity
from stacks.functions.run_controller.ledger import documents, sources
from stacks.functions.run_controller.ledger.books import Books, priced
from stacks.functions.run_controller.ledger.keeper import IDLE_SECONDS, Keeper, LedgerTaken
from stacks.functions.run_controller.ledger.machines import HOUR, Machine, OnDemandPrices, Sighting
from stacks.functions.run_controller.records import InvalidRecord
from tests.stacks.run_controller.billed_world import TYPES, VISIBLE_SECONDS, ZONES, Life, World

BUCKET = "checkpoints"


def moment(unix_seconds: float) -> datetime:
    return datetime.fromtimestamp(unix_seconds, UTC)


class Pages:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def paginate(self, **arguments: Any) -> Iterator[dict[str, Any]]:
        yield self.answer(**arguments)


class Account:
    """EC2, Auto Scaling and the fleets' history at one time of a world."""

    def __init__(self, world: World, now: float) -> None:
        self.world, self.now = world, now
        self.calls: list[str] = []

    def client(self, service: str) -> Account:
        return self

    def get_paginator(self, call: str) -> Pages:
        self.calls.append(call)
        return Pages(getattr(self, call))

    def describe_instances(self, Filters: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
        (condition,) = Filters
        by_id = condition["Name"] == "instance-id"
        found = []
        for life in self.world.lives:
            has_tags = self.now < life.end + VISIBLE_SECONDS / 4  # EC2 removes the tags of a terminated instance first
            if life.start <= self.now < life.end + VISIBLE_SECONDS and (
                life.instance_id in condition["Values"] if by_id else has_tags
            ):
                found.append(self.instance(life))
        return {"Reservations": [{"Instances": [each]} for each in found]}

    def instance(self, life: Life) -> dict[str, Any]:
        state, reason, transition = "running", {}, ""
        if life.end <= self.now:
            state = "terminated" if self.now > life.end + 30 else "shutting-down"
            code = "Client.InstanceInitiatedShutdown"
            if life.is_reclaimed:
                code = transition = "Server.SpotInstanceTermination"
            elif life.ending == "by its owner":
                code, transition = (
                    "Client.UserInitiatedShutdown",
                    f"User initiated ({moment(life.end):%Y-%m-%d %H:%M:%S} GMT)",
                )
            reason = {"StateReason": {"Code": code, "Message": code}}
        return {
            "InstanceId": life.instance_id,
            "InstanceType": life.instance_type,
            "Placement": {"AvailabilityZone": life.zone},
            "LaunchTime": moment(life.start),
            "State": {"Name": state},
            "StateTransitionReason": transition,
            **({"InstanceLifecycle": "spot"} if life.market == "spot" else {}),
            **reason,
        }

    def describe_spot_price_history(self, **asked: Any) -> dict[str, Any]:
        zones = asked["Filters"][0]["Values"]
        start, end = asked["StartTime"].timestamp(), asked["EndTime"].timestamp()
        rows = []
        for (kind, zone), changes in self.world.prices.items():
            in_force = max(since for since, _ in changes if since <= start)
            for since, usd in changes:
                if kind in asked["InstanceTypes"] and zone in zones and in_force <= since <= end:
                    rows.append(
                        {
                            "InstanceType": kind,
                            "AvailabilityZone": zone,
                            "Timestamp": moment(since),
                            "SpotPrice": str(usd),
                        }
                    )
        return {"SpotPriceHistory": rows}

    def describe_scaling_activities(self, AutoScalingGroupName: str) -> dict[str, Any]:  # noqa: N803
        rows: list[dict[str, Any]] = []
        for life in self.world.lives:
            if life.start <= self.now:
                details = json.dumps({"Subnet ID": "subnet-a", "Availability Zone": life.zone})
                text = f"Launching a new EC2 instance: {life.instance_id}"
                rows.append(
                    {
                        "Description": text,
                        "StartTime": moment(life.start - 1),
                        "StatusCode": "Successful",
                        "Details": details,
                    }
                )
            if life.end + 30 <= self.now and not life.is_detached:
                text = f"Terminating EC2 instance: {life.instance_id}"
                rows.append(
                    {
                        "Description": text,
                        "StartTime": moment(life.end),
                        "EndTime": moment(life.end + 30),
                        "StatusCode": "Successful",
                    }
                )
        return {"Activities": sorted(rows, key=lambda row: row["StartTime"], reverse=True)}

    def describe_fleet_history(self, StartTime: datetime, **fleet: str) -> dict[str, Any]:  # noqa: N803
        rows: list[tuple[float, dict[str, Any]]] = []
        for life in self.world.lives:
            text = json.dumps({"instanceType": life.instance_type, "availabilityZone": life.zone})
            rows.append(
                (life.start, {"EventSubType": "launched", "InstanceId": life.instance_id, "EventDescription": text})
            )
            rows.append((life.end, {"EventSubType": "terminated", "InstanceId": life.instance_id}))
        since = max(StartTime.timestamp(), self.now - 48 * HOUR)
        return {
            "HistoryRecords": [
                {"EventType": "instance-change", "Timestamp": moment(at), "EventInformation": about}
                for at, about in sorted(rows, key=lambda row: row[0])
                if since <= at <= self.now
            ]
        }

    describe_spot_fleet_request_history = describe_fleet_history

    def events(self, since: float) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        for life in self.world.lives:
            detail = {"instance-id": life.instance_id}
            if since < life.end <= self.now:
                time = f"{moment(life.end):%Y-%m-%dT%H:%M:%SZ}"
                found.append({"detail-type": STATE_CHANGE, "time": time, "detail": detail | {"state": "shutting-down"}})
            if life.is_detached and since < life.end - 120 <= self.now:
                time = f"{moment(life.end - 120):%Y-%m-%dT%H:%M:%SZ}"
                found.append({"detail-type": INTERRUPTION, "time": time, "detail": detail})
        return found


class FailingS3:
    """S3 that fails at chosen writes, as if the function ended there."""

    def __init__(self, s3: Any, failing: set[int]) -> None:
        self.s3, self.failing, self.writes = s3, failing, 0

    def get_object(self, **arguments: Any) -> Any:
        return self.s3.get_object(**arguments)

    def put_object(self, **arguments: Any) -> Any:
        self.writes += 1
        if self.writes in self.failing:
            raise ClientError({"Error": {"Code": "InternalError", "Message": "crash"}}, "PutObject")
        return self.s3.put_object(**arguments)


@pytest.fixture
def s3() -> Iterator[Any]:
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket=BUCKET)
        yield client


def keeper(s3: Any, account: Account, backend: Any = "auto_scaling_group") -> Keeper:
    fleet = FleetIdentity(backend, "trainstack-x", 4, 0)
    return Keeper("x", fleet, OnDemandPrices(TYPES), s3=s3, bucket=BUCKET, client=account.client)


def written(s3: Any) -> list[documents.Entry]:
    listed = s3.list_objects_v2(Bucket=BUCKET, Prefix=documents.hours_prefix("x")).get("Contents", [])
    return [
        entry
        for item in listed
        for entry in documents.entries_from_bytes(s3.get_object(Bucket=BUCKET, Key=item["Key"])["Body"].read())
    ]


@pytest.mark.parametrize("backend", ["auto_scaling_group", "ec2_fleet", "spot_fleet"])
def test_the_written_hours_equal_the_bill(backend: str, s3: Any) -> None:
    world = World(11, days=0.12, machines=12)
    account, failing = Account(world, world.start), FailingS3(s3, {7, 30, 31, 80, 121})
    looked, crashes, spent = world.start, 0, None
    while account.now < world.end + 180:
        try:
            spent = keeper(failing, account, backend).look(account.events(looked), "run-1", account.now)
            looked = account.now
        except ClientError:
            crashes += 1
        account.now += 60.0
    true = sum(world.bill(life) for life in world.lives)
    entries = written(s3)
    assert crashes == len(failing.failing)
    assert {entry.instance_id for entry in entries} == {life.instance_id for life in world.lives}
    assert sum(entry.charge.usd for entry in entries) == pytest.approx(true, rel=0.01)
    assert spent is not None and spent.usd == pytest.approx(true, rel=0.01)
    assert spent.usd_per_hour == 0.0 and spent.unpriced_hours == 0.0
    assert 0 < spent.run_hours <= (world.end - world.start) / HOUR + 0.1


def test_nothing_is_written_while_nothing_happens(s3: Any) -> None:
    world = World(1, machines=0)
    account, counted = Account(world, world.start), FailingS3(s3, set())
    for _ in range(int(IDLE_SECONDS / 60)):
        keeper(counted, account).look([], "run-1", account.now)
        account.now += 60.0
    assert counted.writes == 1
    assert "describe_spot_price_history" not in account.calls


def test_two_invocations_cannot_both_write_the_state(s3: Any) -> None:
    world = World(1, machines=0)
    account = Account(world, world.start)
    first, second = keeper(s3, account), keeper(s3, account)
    books, etag = second._load()
    first.look([], "run-1", account.now)
    with pytest.raises(LedgerTaken):
        second._save(books, etag)


def test_an_invalid_state_is_neither_used_nor_overwritten(s3: Any) -> None:
    s3.put_object(Bucket=BUCKET, Key=documents.state_key("x"), Body=b'{"schema_version": 1, "machines": 3}')
    world = World(1, machines=0)
    with pytest.raises(InvalidRecord, match="machines: must be a list"):
        keeper(s3, Account(world, world.start)).look([], "run-1", world.start)
    assert s3.get_object(Bucket=BUCKET, Key=documents.state_key("x"))["Body"].read().endswith(b"3}")


def test_a_notice_announces_an_end_that_later_reports_correct() -> None:
    event = {"detail-type": INTERRUPTION, "time": "2026-11-29T19:00:00Z", "detail": {"instance-id": "i-1"}}
    (seen,) = sources.from_events([event, {"detail-type": "Scheduled Event"}])
    assert seen == Sighting("i-1", gone_unix_seconds=datetime(2026, 11, 29, 19, 2, tzinfo=UTC).timestamp())


TAKEN_OUT = "At 2026-11-29T19:01:00Z an instance was taken out of service in response to "
ENDED = "EC2 health check indicating it has been terminated or stopped."
SCALED_IN = "a difference between desired and actual capacity, shrinking the capacity from 2 to 1."


@pytest.mark.parametrize(
    ("cause", "status", "minute"),
    [
        # AWS's responses contain both articles: see the sources of `sources._HAS_ENDED` and
        # https://gist.github.com/watchamcb/fc686c70e8c2660ee7ef.
        (f"an {ENDED}", "Successful", 1),
        (f"a {ENDED}", "MidLifecycleAction", 1),
        (SCALED_IN, "Successful", 6),
        (SCALED_IN, "MidLifecycleAction", None),
    ],
)
def test_an_instance_that_a_health_check_finds_ended_ended_before_the_activity_began(
    cause: str, status: str, minute: int | None
) -> None:
    activity = {
        "Description": "Terminating EC2 instance: i-0aa",
        "Cause": TAKEN_OUT + cause,
        "StartTime": datetime(2026, 11, 29, 19, 1, tzinfo=UTC),
        "StatusCode": status,
        **({"EndTime": datetime(2026, 11, 29, 19, 6, tzinfo=UTC)} if status == "Successful" else {}),
    }

    class Groups:
        def get_paginator(self, call: str) -> Pages:
            return Pages(lambda AutoScalingGroupName: {"Activities": [activity]})  # noqa: N803

    found = sources.reported(FleetIdentity("auto_scaling_group", "g", 2, 0), Groups(), 0.0)
    ends = [datetime(2026, 11, 29, 19, minute, tzinfo=UTC).timestamp()] if minute is not None else []
    assert found == [Sighting("i-0aa", gone_unix_seconds=end) for end in ends]


def test_of_two_prices_in_the_same_second_the_newer_one_is_in_force() -> None:
    launch = datetime(2026, 11, 29, 19, 0, tzinfo=UTC)
    pool = {"InstanceType": "g6.xlarge", "AvailabilityZone": "us-east-1a"}
    newest_first = [
        {**pool, "Timestamp": launch, "SpotPrice": "0.2"},
        {**pool, "Timestamp": launch, "SpotPrice": "0.3"},
        {**pool, "Timestamp": launch - timedelta(hours=5), "SpotPrice": "0.4"},
    ]

    class Prices:
        def get_paginator(self, call: str) -> Pages:
            return Pages(lambda **asked: {"SpotPriceHistory": newest_first})

    key, start = ("g6.xlarge", "us-east-1a"), launch.timestamp()
    found = sources.spot_prices(Prices(), {key: start}, start + HOUR)
    assert found == {key: [(start - 5 * HOUR, 0.4), (start, 0.3), (start, 0.2)]}
    machine = Machine("i-1", start, start, *key, market="spot")
    (charged,) = priced(Books(machines=(machine,)), found, start + 60.0).machines
    assert charged.spot_usd == {0: 0.2}


def test_the_state_survives_its_round_trip(s3: Any) -> None:
    world = World(5, days=0.1, machines=6)
    account = Account(world, world.start + 5000)
    keeper(s3, account).look([], "run-1", account.now)
    content = s3.get_object(Bucket=BUCKET, Key=documents.state_key("x"))["Body"].read()
    books = documents.books_from_bytes(content)
    assert books.machines and documents.books_to_bytes(books) == content
    assert {machine.zone for machine in books.machines} <= set(ZONES)
