"""The run controller against moto's S3 and Parameter Store, and a fake Auto Scaling client."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, ReadTimeoutError
from moto import mock_aws

from bootstrap.documents import Bundle, Prepare, RunDocument
from bootstrap.documents.desired_state import DesiredState
from bootstrap.documents.object_keys import control_prefix
from stacks.functions.run_controller import handler as handler_module
from stacks.functions.run_controller.environment import Environment
from stacks.functions.run_controller.events import INTERRUPTION, RETRY
from stacks.functions.run_controller.fleet_clients.auto_scaling_group import AutoScalingGroups
from stacks.functions.run_controller.handler import Controller, StateTaken, handler, run_step
from stacks.functions.run_controller.ledger.keeper import LedgerTaken
from stacks.functions.run_controller.parameters import UnreadableDesiredState, UnreadableRunDocument, read_run
from stacks.functions.run_controller.records import InvalidRecord
from stacks.functions.run_controller.spending import Spending

ENVIRONMENT = {
    "BACKEND": "auto_scaling_group",
    "FLEET_ID": "trainstack-x.a,trainstack-x.b",
    "NODES": "2",
    "ON_DEMAND_BASE": "0",
    "RUN_PARAMETER": "/trainstack/x/run",
    "DESIRED_PARAMETER": "/trainstack/x/desired",
    "DEPLOYMENT": "x",
    "CONTROL_BUCKET": "control",
    "NODE_ROLE_ID": "AROA1",
    "DATASET_BUCKET": "datasets",
    "SUBNET_IDS": "subnet-a,subnet-b",
    "ONE_SUBNET_AT_A_TIME": "true",
    "GANG_TIMEOUT_SECONDS": "600",
    "BOOT_FAILURE_LIMIT": "3",
    "BOOT_TIMEOUT_SECONDS": "1200",
    "CHOOSE": "order",
    "PLACES": "",
    "LIMIT_USD": "50",
    "LIMIT_RUN_HOURS": "",
    "DEADLINE_HOURS": "",
    "ON_DEADLINE_MISS": "on_demand",
    "TRAINING_HOURS": "",
    "ON_DEMAND_USD_PER_HOUR": '{"g5.xlarge": 1.006}',
}
INDEX = "datasets/stdlib/dataset.json"
STATE = "controller/x/run-1.json"
STARTED = {"AutoScalingGroupName": "trainstack-x.a", "DesiredCapacity": 2, "HonorCooldown": False}
DOCUMENT = RunDocument(
    schema_version=2,
    deployment="x",
    run="run-1",
    nodes=2,
    min_nodes=2,
    processes_per_node=1,
    code=Bundle("assets", "code.zip", "0" * 64),
    dataset="stdlib",
    training={"optimizer": {"learning_rate": 3e-4}},
)


class FakeAutoScaling:
    """One group for each subnet, each of which reaches its desired capacity at once. `group` is the one in use."""

    def __init__(self) -> None:
        template = {"LaunchTemplateSpecification": {"LaunchTemplateId": "lt-1", "Version": "1"}}
        self.groups: list[dict[str, Any]] = [
            {
                "AutoScalingGroupName": f"trainstack-x.{zone}",
                "DesiredCapacity": 0,
                "MaxSize": 2,
                "VPCZoneIdentifier": f"subnet-{zone}",
                "MixedInstancesPolicy": {"LaunchTemplate": template},
                "Instances": [],
            }
            for zone in ("a", "b")
        ]
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.activities: list[dict[str, Any]] = []
        self.detach_error: ClientError | None = None

    @property
    def group(self) -> dict[str, Any]:
        return next((one for one in self.groups if one["DesiredCapacity"] or one["Instances"]), self.groups[0])

    def describe_auto_scaling_groups(self, AutoScalingGroupNames: list[str]) -> dict[str, Any]:  # noqa: N803
        assert AutoScalingGroupNames == ["trainstack-x.a", "trainstack-x.b"]
        return {"AutoScalingGroups": self.groups}

    def set_desired_capacity(self, **arguments: Any) -> None:
        self.calls.append(("resize", arguments))
        (group,) = (one for one in self.groups if one["AutoScalingGroupName"] == arguments["AutoScalingGroupName"])
        size = arguments["DesiredCapacity"]
        group["DesiredCapacity"] = size
        group["Instances"] = [{"InstanceId": f"i-{n}", "LifecycleState": "InService"} for n in range(size)]

    def describe_scaling_activities(self, **arguments: Any) -> dict[str, Any]:
        return {"Activities": self.activities}

    def get_paginator(self, name: str) -> FakeAutoScaling:
        assert name == "describe_scaling_activities"
        return self

    def paginate(self, **arguments: Any) -> list[dict[str, Any]]:
        return [self.describe_scaling_activities(**arguments)]

    def detach_instances(self, **arguments: Any) -> None:
        if self.detach_error is not None:
            raise self.detach_error
        self.calls.append(("detach", arguments))


class FakeLedger:
    """A ledger with fixed costs, or an unreadable one."""

    def __init__(self) -> None:
        self.spent: Spending | None = Spending(1.5, 3.0, 0.75, 2.0)
        self.errors: list[Exception] = []

    def look(self, events: Iterable[Mapping[str, Any]], run: str, now_unix_seconds: float) -> Spending:
        if self.errors:
            raise self.errors.pop(0)
        if self.spent is None:
            raise InvalidRecord("not JSON")
        return self.spent


class FakeScores:
    """Fixed placement scores, and the number of calls."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.problem: str | None = None
        self.calls = 0

    def now(self, nodes: int) -> tuple[Mapping[str, int], str | None]:
        self.calls += 1
        return self.known, self.problem


class FakePrices:
    """Fixed prices, and the number of calls."""

    def __init__(self) -> None:
        self.usd_per_hour: dict[str, float] = {}
        self.problem: str | None = None
        self.calls = 0

    def now(self, now_unix_seconds: float) -> tuple[Mapping[str, float], str | None]:
        self.calls += 1
        return self.usd_per_hour, self.problem


class World:
    def __init__(self, **variables: str) -> None:
        self.prices = FakePrices()
        self.scores = FakeScores()
        self.ledger = FakeLedger()
        self.s3 = boto3.client("s3", region_name="us-east-1")
        for bucket in ("control", "datasets"):
            self.s3.create_bucket(Bucket=bucket)
        self.s3.put_object(Bucket="datasets", Key=INDEX, Body=b"{}")
        self.ssm = boto3.client("ssm", region_name="us-east-1")
        self.autoscaling = FakeAutoScaling()
        environment = Environment.of({**ENVIRONMENT, **variables})
        self.controller = Controller(
            environment,
            fleet=AutoScalingGroups(environment.fleet, self.autoscaling, self.autoscaling),
            ssm=self.ssm,
            s3=self.s3,
            ledger=self.ledger,
            prices=self.prices,
            scores=self.scores,
        )

    def document(self, document: RunDocument = DOCUMENT) -> None:
        text = json.dumps(document.to_json())
        self.ssm.put_parameter(Name="/trainstack/x/run", Value=text, Type="String", Overwrite=True)

    def desire(self, text: str) -> None:
        self.ssm.put_parameter(Name="/trainstack/x/desired", Value=text, Type="String", Overwrite=True)

    def put(self, name: str, record: dict[str, Any]) -> None:
        key = STATE if name == "controller.json" else control_prefix("x", "run-1") + name
        self.s3.put_object(Bucket="control", Key=key, Body=json.dumps(record).encode())

    def state(self) -> dict[str, Any]:
        body = self.s3.get_object(Bucket="control", Key=STATE)["Body"]
        return json.loads(body.read())

    def step(self, now: float = 1000.0, **event: Any) -> dict[str, Any]:
        return self.controller.step([event or {"detail-type": "Scheduled Event"}], now)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield World()


def test_digest_equals_that_of_the_nodes() -> None:
    for text in (json.dumps(DOCUMENT.to_json()), json.dumps(DOCUMENT.to_json(), indent=2, sort_keys=True)):
        assert read_run(text).digest == DOCUMENT.digest()


def test_missing_group_needs_no_action(world: World) -> None:
    world.autoscaling.groups = []
    assert world.step()["actions"] == []


def test_missing_run_document_keeps_zero_nodes(world: World) -> None:
    assert world.step()["phase"] == "idle"
    assert world.autoscaling.calls == []


def test_run_document_starts_the_fleet_once(world: World) -> None:
    world.document()
    world.step()
    world.step()
    assert world.autoscaling.calls == [("resize", STARTED)]
    assert world.state()["phase"] == "running"
    assert world.state()["run_digest"] == DOCUMENT.digest()


def test_a_stop_empties_the_fleet_until_the_resume_also_across_deploys(world: World) -> None:
    world.document()
    world.step()
    stopped = DesiredState(state="stopped", requested_by="arn:aws:iam::1:user/ada", unix_seconds=120.0)
    world.desire(json.dumps(stopped.to_json()))
    done = world.step()
    assert (done["phase"], done["cause"]) == ("stopped", "stopped")
    assert done["reason"].startswith("stopped by arn:aws:iam::1:user/ada at 1970-01-01 00:02 UTC")
    assert world.autoscaling.calls[-1][1]["DesiredCapacity"] == 0
    world.document(dataclasses.replace(DOCUMENT, training={"optimizer": {"learning_rate": 1e-4}}))
    assert world.step()["phase"] == "stopped"
    assert len(world.autoscaling.calls) == 2
    world.desire(json.dumps(DesiredState().to_json()))
    assert world.step()["phase"] == "running"
    assert world.autoscaling.calls[-1][1]["DesiredCapacity"] == 2


@pytest.mark.parametrize("text", ["", "stopped", "[]", '{"state": "paused"}', '{"schema_version": 2}', "[" * 9000])
def test_an_unreadable_desired_state_leaves_the_fleet_unchanged(world: World, text: str) -> None:
    world.document()
    world.step()
    world.desire(text or " ")
    with pytest.raises(UnreadableDesiredState, match="trainstack resume"):
        world.step()
    assert len(world.autoscaling.calls) == 1


def test_interruption_notice_detaches_without_decrement(world: World) -> None:
    world.document()
    world.step()
    world.step(**{"detail-type": INTERRUPTION, "detail": {"instance-id": "i-1", "instance-action": "terminate"}})
    detach = {
        "AutoScalingGroupName": "trainstack-x.a",
        "InstanceIds": ["i-1"],
        "ShouldDecrementDesiredCapacity": False,
    }
    assert world.autoscaling.calls[-1] == ("detach", detach)


def test_a_notice_for_an_instance_that_leaves_during_the_step_is_logged(world: World) -> None:
    world.document()
    assert world.step()["needless"] == []
    calls = list(world.autoscaling.calls)
    message = "The instance i-1 is not part of Auto Scaling group trainstack-x.a."
    error = {"Error": {"Code": "ValidationError", "Message": message}}
    world.autoscaling.detach_error = ClientError(error, "DetachInstances")
    notice = {"detail-type": INTERRUPTION, "detail": {"instance-id": "i-1", "instance-action": "terminate"}}
    done = world.step(1060.0, **notice)
    assert done["needless"] == [f"i-1 has left trainstack-x.a: {message}"]
    assert done["actions"] == [{"Detach": {"instance_id": "i-1"}}] and world.autoscaling.calls == calls


def test_a_rejected_update_of_the_ledger_is_repeated_within_the_step(world: World) -> None:
    """The queue does not deliver the events again, and EC2 does not state when it has interrupted an instance."""
    world.document()
    slow = ClientError({"Error": {"Code": "SlowDown", "Message": "Reduce your request rate."}}, "PutObject")
    world.ledger.errors = [slow, LedgerTaken("controller/x/ledger/state.json")]
    assert world.step()["ledger"] == "updated"
    world.ledger.errors = [slow, slow, slow]
    failed = world.step(1060.0)
    assert failed["ledger"] == "failed" and "SlowDown" in failed["ledger_problem"]
    assert world.ledger.errors == []
    world.ledger.errors = [ReadTimeoutError(endpoint_url="https://s3"), slow]
    assert world.step(1120.0)["ledger"] == "failed" and world.ledger.errors == [slow], "a timeout is not repeated"


def test_a_retry_deletes_a_failed_outcome_and_starts_the_fleet_again(world: World) -> None:
    world.document()
    world.step()
    record = {"run": "run-1", "run_digest": DOCUMENT.digest(), "outcome": "failed", "step": 9, "message": "NaN"}
    world.put("outcome.json", record)
    assert world.step(1010.0)["phase"] == "ended"
    assert world.autoscaling.group["DesiredCapacity"] == 0
    assert world.step(1020.0, **{"detail-type": RETRY})["phase"] == "running"
    assert world.autoscaling.group["DesiredCapacity"] == 2
    assert world.step(1080.0)["phase"] == "running"


def test_outcome_scales_the_fleet_to_zero(world: World) -> None:
    world.document()
    world.step()
    world.put("outcome.json", {"run": "run-1", "run_digest": DOCUMENT.digest(), "outcome": "finished", "step": 9})
    done = world.step(**{"detail-type": "Object Created", "detail": {}})
    assert world.autoscaling.calls[-1][1]["DesiredCapacity"] == 0
    assert done["reason"] == "the run ended: finished"


def test_nodes_without_a_heartbeat_stop_the_fleet(world: World) -> None:
    world.document()
    world.step(1000.0)
    group = world.autoscaling.group
    for number in range(10, 16, 2):
        world.step(1000.0 + number)
        group["Instances"] = [{"InstanceId": f"i-{number + n}", "LifecycleState": "InService"} for n in (0, 1)]
    done = world.step(1020.0)
    assert done["phase"] == "protected"
    assert group["DesiredCapacity"] == 0
    assert "aws ec2 get-console-output --latest --instance-id i-11" in done["reason"]  # the last one left no report


def fail_to_boot(world: World, *, report: bytes | None) -> dict[str, Any]:
    """Let two pairs of nodes vanish before their first heartbeat. Each node of the second pair leaves a report."""
    world.document()
    world.step(1000.0)
    group = world.autoscaling.group
    world.step(1010.0)
    group["Instances"] = [{"InstanceId": f"i-{n}", "LifecycleState": "InService"} for n in (10, 11)]
    world.step(1012.0)
    for instance_id in ("i-10", "i-11"):
        if report is not None:
            world.s3.put_object(Bucket="control", Key=f"nodes/AROA1:{instance_id}/boot-failure.json", Body=report)
    group["Instances"] = []
    return world.step(1020.0)


def test_protection_reports_the_last_failure_and_its_remedy(world: World) -> None:
    report = {"step": "gpus", "message": "7 of 8 GPUs", "remedy": "terminate the instance", "output_tail": "x"}
    world.s3.put_object(Bucket="control", Key="nodes/AROA1:i-11/gen-1-trainer.log", Body=b"not this")
    done = fail_to_boot(world, report=json.dumps(report).encode())
    assert done["phase"] == "protected"
    assert "Last failure: gpus: 7 of 8 GPUs. Remedy: terminate the instance" in done["reason"]
    assert "(s3://control/nodes/AROA1:i-11/boot-failure.json)" in done["reason"]
    assert world.autoscaling.calls[-1][1]["DesiredCapacity"] == 0
    assert world.step(1080.0)["reason"] == done["reason"]  # the reason stays the same if no further node vanishes


def test_protection_reports_why_user_data_failed(world: World) -> None:
    cause = "An error occurred (AccessDenied) when calling the GetObject operation: Access Denied"
    for instance_id in ("i-10", "i-11"):
        log = f"{cause}\n{cause}\n\xff\nline 20 failed\n".encode("latin-1")
        world.s3.put_object(Bucket="control", Key=f"nodes/AROA1:{instance_id}/shim.log", Body=log)
    done = fail_to_boot(world, report=None)
    assert done["phase"] == "protected"
    assert f"Last failure: user data: {cause}" in done["reason"] and "line 20 failed" in done["reason"]
    assert "(s3://control/nodes/AROA1:i-11/shim.log)" in done["reason"]


INVALID = [
    b"\xff",
    b"",
    b"[]",
    b"null",
    b"{",
    b"[" * 100_000,
    b'{"a":' * 5000,
    b"9" * 5000,
    b'{"step": 1e999}',
    b"x" * 300_000,
]


@pytest.mark.parametrize("report", [b"{}", *INVALID], ids=lambda content: repr(content[:20]))
def test_unreadable_report_does_not_prevent_the_protection(world: World, report: bytes) -> None:
    done = fail_to_boot(world, report=report)
    assert done["phase"] == "protected"
    assert "s3://control/nodes/AROA1:i-11/: cannot read the report" in done["reason"]
    assert world.autoscaling.calls[-1][1]["DesiredCapacity"] == 0


def test_new_run_document_lifts_the_protection(world: World) -> None:
    assert fail_to_boot(world, report=None)["phase"] == "protected"
    world.document(dataclasses.replace(DOCUMENT, training={"steps": 2}))
    done = world.step(1100.0)
    assert done["phase"] == "running"
    assert (world.state()["boot_failures"], world.state()["last_failure"]) == (0, "")


def test_heartbeat_ends_the_booting_state(world: World) -> None:
    world.document()
    world.step()
    world.step()
    assert world.state()["booting"] == ["i-0", "i-1"]
    world.put("heartbeats/AROA1:i-0.json", {"sequence": 1})
    world.step()
    assert world.state()["booting"] == ["i-1"]


def test_next_attempt_uses_the_next_subnet(world: World) -> None:
    world.document()
    world.step(1000.0)
    group = world.autoscaling.group
    group["Instances"] = group["Instances"][:1]
    world.step(1600.0)
    assert group["DesiredCapacity"] == 0
    world.step(1660.0)
    assert world.autoscaling.calls[-1] == ("resize", {**STARTED, "AutoScalingGroupName": "trainstack-x.b"})
    assert world.state()["subnets"] == ["subnet-b"]


def test_state_of_a_newer_version_is_readable(world: World) -> None:
    world.document()
    world.put("controller.json", {"phase": "ended", "run_digest": "old", "invented_later": 1})
    assert world.step()["phase"] == "running"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"run": "r", "nodes": 1e999, "min_nodes": 1}',
        "[" * 2000,
        '{"run": "r", "nodes": "many", "min_nodes": 1}',
        "null",
    ],
)
def test_unreadable_run_document_leaves_the_fleet_unchanged(world: World, text: str) -> None:
    if text:
        world.ssm.put_parameter(Name="/trainstack/x/run", Value=text, Type="String")
        with pytest.raises(UnreadableRunDocument, match="deploy it again"):
            world.step()
    else:
        with pytest.raises(UnreadableRunDocument):
            read_run(text)
    assert world.autoscaling.calls == []


@pytest.mark.parametrize("content", INVALID, ids=lambda content: repr(content[:20]))
@pytest.mark.parametrize("name", ["controller.json", "outcome.json"])
def test_an_invalid_record_is_set_aside_and_the_run_continues(world: World, name: str, content: bytes) -> None:
    """RFC 8259 sets no limit on numbers and nesting; any node may write these keys."""
    world.document()
    world.step(1000.0)
    before = world.state()
    key = STATE if name == "controller.json" else control_prefix("x", "run-1") + name
    world.s3.put_object(Bucket="control", Key=key, Body=content)
    done = world.step(1060.0)
    is_valid_state = (name, content) == ("controller.json", b'{"step": 1e999}')  # an unknown key is skipped
    expected = [] if is_valid_state else [f"s3://control/{key}"]
    assert [each["url"] for each in done["set_aside"]] == expected
    assert (done["phase"], world.state()["run_digest"]) == ("running", before["run_digest"])
    assert world.autoscaling.group["DesiredCapacity"] == 2


@pytest.mark.parametrize(
    "change",
    [
        {"phase": "zz"},
        {"phase": []},
        {"attempt": 10**400},
        {"attempt": 1.5},
        {"attempt": -1},
        {"had_instances": 1},
        {"since_unix_seconds": float("inf")},
        {"phase": "waiting", "retry_unix_seconds": 1e300},
        {"phase": "waiting", "retry_unix_seconds": 10**400},
        {"booting": "i-1"},
        {"booting": ["\0"]},
        {"excused": [{}]},
        {"reason": {}},
        {"last_failure": "x" * 20_000},
        {"probes": -1},
        {"cause": "bad luck"},
        {"subnets": ["\0"]},
        {"problem": 1},
    ],
    ids=lambda change: str(change)[:40],
)
def test_a_state_with_an_impossible_value_starts_again(world: World, change: dict[str, Any]) -> None:
    world.document()
    world.step(1000.0)
    world.put("controller.json", {**world.state(), **change})
    done = world.step(1060.0)
    assert [each["url"] for each in done["set_aside"]] == [f"s3://control/{STATE}"]
    assert done["phase"] == "running"
    assert world.step(1120.0)["set_aside"] == []  # the new state has replaced it


def test_every_state_that_the_controller_stores_is_readable(world: World) -> None:
    surrogate = "\ud800"
    world.document()
    world.step(1000.0)
    world.put("controller.json", {**world.state(), "last_failure": surrogate})
    assert world.step(1060.0)["set_aside"] == []
    assert world.step(1120.0)["set_aside"] == []


def test_heartbeats_are_looked_up_by_name_after_too_many_objects(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stacks.functions.run_controller.handler.MAX_PAGES", 1)
    world.document()
    world.step()
    world.step()
    for number in range(1001):  # one page is 1,000 keys
        world.put(f"heartbeats/a{number}", {})
    world.put("heartbeats/AROA1:i-0.json", {"sequence": 1})
    done = world.step()
    assert [each["url"] for each in done["set_aside"]] == [f"s3://control/{control_prefix('x', 'run-1')}heartbeats/"]
    assert world.state()["booting"] == ["i-1"]


def test_rejected_call_raises_and_the_next_step_repeats_it(world: World) -> None:
    world.document()
    resize = world.autoscaling.set_desired_capacity

    def refuse(**_: Any) -> None:
        raise ClientError({"Error": {"Code": "ScalingActivityInProgress", "Message": "busy"}}, "Update")

    world.autoscaling.set_desired_capacity = refuse  # type: ignore[method-assign]
    with pytest.raises(ClientError, match="busy"):
        world.step()
    world.autoscaling.set_desired_capacity = resize  # type: ignore[method-assign]
    world.step(1060.0)
    assert world.autoscaling.calls == [("resize", STARTED)]


class TestClaim:
    """https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html: 412 if the object has changed."""

    def other_writes(self, world: World, times: int) -> None:
        """Let another invocation write the state between this one's read and its write."""
        heartbeats, left = world.controller._heard_from, [times]

        def read_late(*arguments: Any) -> frozenset[str]:
            if left[0]:
                left[0] -= 1
                body = json.dumps({"attempt": left[0]}).encode()
                world.s3.put_object(Bucket="control", Key=STATE, Body=body)
            return heartbeats(*arguments)

        world.controller._heard_from = read_late  # type: ignore[method-assign]

    @pytest.mark.parametrize("exists", [False, True])
    def test_an_invocation_that_read_an_older_state_does_not_act(self, world: World, exists: bool) -> None:
        world.document()
        if exists:
            world.put("controller.json", {"phase": "idle"})
        self.other_writes(world, 1)
        with pytest.raises(StateTaken, match=STATE):
            world.step()
        assert world.autoscaling.calls == []

    def test_the_step_is_repeated_with_the_new_state(self, world: World) -> None:
        world.document()
        self.other_writes(world, 2)
        assert run_step(world.controller, [])["phase"] == "running"
        assert len(world.autoscaling.calls) == 1

    def test_after_three_conflicts_the_events_are_delivered_again(self, world: World) -> None:
        world.document()
        self.other_writes(world, 3)
        with pytest.raises(StateTaken):
            run_step(world.controller, [])
        assert world.autoscaling.calls == []


class TestMissingDataset:
    def test_the_fleet_waits_at_zero_and_starts_when_the_dataset_arrives(self, world: World) -> None:
        world.document()
        world.s3.delete_object(Bucket="datasets", Key=INDEX)
        for now in (1000.0, 1060.0, 100_000.0):
            done = world.step(now)
            assert (done["phase"], done["cause"], done["actions"]) == ("no_dataset", "dataset_missing", [])
            assert f"s3://datasets/{INDEX}" in done["reason"]
        world.s3.put_object(Bucket="datasets", Key=INDEX, Body=b"{}")
        done = world.step(100_060.0, **{"detail-type": "Object Created", "detail": {}})
        assert (done["phase"], world.autoscaling.calls[-1][1]["DesiredCapacity"]) == ("running", 2)

    def test_a_dataset_that_the_nodes_make_is_not_expected(self, world: World) -> None:
        world.s3.delete_object(Bucket="datasets", Key=INDEX)
        prepare = Prepare(function="m:f", source="raw", options={}, timeout_minutes=5)
        world.document(dataclasses.replace(DOCUMENT, prepare=prepare))
        assert world.step()["phase"] == "running"

    def test_a_denied_request_is_not_a_missing_dataset(self, world: World) -> None:
        world.document()

        def deny(**_: Any) -> None:
            raise ClientError({"Error": {"Code": "403", "Message": "Forbidden"}}, "HeadObject")

        world.s3.head_object = deny
        with pytest.raises(ClientError, match="Forbidden"):
            world.step()
        assert world.autoscaling.calls == []


def test_launch_failures_are_reported_with_their_cause_and_remedy(world: World) -> None:
    world.document()
    world.step(1000.0)
    group = world.autoscaling.group
    group["Instances"] = []
    message = "Max spot instance count exceeded. Launching EC2 instance failed."
    world.autoscaling.activities = [
        {
            "Description": f"Launching a new EC2 instance.  Status Reason: {message}",
            "StartTime": datetime.fromtimestamp(1010.0, UTC),
            "StatusCode": "Failed",
            "StatusMessage": message,
        }
    ]
    done = world.step(1060.0)
    assert done["cause"] == "quota"
    assert f"quota: {message} Remedy: request a higher quota" in done["reason"]
    group["Instances"] = [{"InstanceId": f"i-{n}", "LifecycleState": "InService"} for n in range(2)]
    done = world.step(1120.0)
    assert (done["cause"], done["reason"]) == (None, "2 of 2 nodes in service")


def test_a_retry_event_lifts_the_protection(world: World) -> None:
    protected = fail_to_boot(world, report=None)
    assert protected["phase"] == "protected"
    assert "the next probe starts at 1970-01-01 00:32 UTC" in protected["reason"]
    assert 'aws events put-events --entries \'[{"Source": "trainstack"' in protected["reason"]
    world.step(1060.0)
    done = world.step(1070.0, **{"detail-type": RETRY, "detail": {"deployment": "x"}})
    assert (done["phase"], world.state()["boot_failures"]) == ("running", 0)


def test_an_unreadable_state_does_not_restore_the_full_number_of_boot_attempts(world: World) -> None:
    world.document()
    world.step(1000.0)
    world.step(1010.0)
    world.s3.put_object(Bucket="control", Key=STATE, Body=b"\xff")
    world.step(1020.0)
    assert world.state()["boot_failures"] == 2
    group = world.autoscaling.group
    group["Instances"] = group["Instances"][:1]
    assert world.step(1030.0)["phase"] == "protected"


def test_the_handler_takes_all_events_of_a_batch_in_one_step(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shape of the event: https://docs.aws.amazon.com/lambda/latest/dg/with-sqs.html."""
    world.document()
    world.step()
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    ec2 = boto3.client("ec2", region_name="us-east-1")
    clients = {"autoscaling": world.autoscaling, "ec2": ec2, "ssm": world.ssm, "s3": world.s3}
    monkeypatch.setattr(handler_module, "_client", clients.__getitem__)
    monkeypatch.setattr(handler_module, "run_step", lambda controller, events: controller.step(events, 1060.0))
    events = [
        {"detail-type": INTERRUPTION, "detail": {"instance-id": name, "instance-action": "terminate"}}
        for name in ("i-0", "i-1")
    ]
    record = handler({"Records": [{"body": json.dumps(event)} for event in events]}, None)
    assert [next(iter(action)) for action in record["actions"]] == ["Detach", "Detach"]
    assert record["triggers"] == [INTERRUPTION]


def test_the_log_and_the_state_contain_the_spending(world: World) -> None:
    world.document()
    record = world.step()
    assert record["spending"]["usd"] == 1.5 and record["ledger_problem"] is None
    assert world.state()["spending"] == record["spending"]


def test_an_unreadable_ledger_is_reported_and_the_last_costs_count(world: World) -> None:
    world.document()
    world.step()
    world.ledger.spent = None
    record = world.step()
    assert "the limits use the last known costs" in record["ledger_problem"] and record["spending"] is None
    assert world.state()["spending"]["usd"] == 1.5
    assert world.autoscaling.group is not None and world.autoscaling.group["DesiredCapacity"] == 2


def test_canonical_form_is_fixed() -> None:
    text = '{"b":1,"a":{"d":2.5,"c":"\\u00e9"}, "run":"r","dataset":"d","nodes":1,"min_nodes":1}'
    canonical = '{"a":{"c":"\\u00e9","d":2.5},"b":1,"dataset":"d","min_nodes":1,"nodes":1,"run":"r"}'
    assert read_run(text).digest == hashlib.sha256(canonical.encode()).hexdigest()


def places(*zones: str) -> str:
    return json.dumps({"region": "us-east-1", "instance_types": ["g5.xlarge"], "zones": list(zones)})


@pytest.fixture
def choosing(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        yield World(CHOOSE="cost", PLACES=places("us-east-1a", "us-east-1b"))


def test_group_of_the_cheaper_zone_starts_and_the_numbers_are_logged(choosing: World) -> None:
    choosing.document()
    choosing.prices.usd_per_hour = {"subnet-a": 0.6, "subnet-b": 0.4}
    record = choosing.step(1000.0)
    assert choosing.autoscaling.calls == [("resize", {**STARTED, "AutoScalingGroupName": "trainstack-x.b"})]
    assert [(each["place"]["zone"], each["usd_per_hour"]) for each in record["ranking"]] == [
        ("us-east-1b", 0.4),
        ("us-east-1a", 0.6),
    ]
    json.dumps(record)
    assert choosing.prices.calls == 1
    assert choosing.step(1060.0)["ranking"] == []
    assert choosing.prices.calls == 2  # of a fleet with nodes, to compare its place with the others


def test_running_nodes_move_to_a_cheaper_zone_and_the_numbers_are_logged(choosing: World) -> None:
    choosing.document()
    choosing.prices.usd_per_hour = {"subnet-a": 0.6, "subnet-b": 0.4}
    choosing.step(1000.0)
    choosing.prices.usd_per_hour = {"subnet-a": 0.3, "subnet-b": 0.9}
    now = 1000.0 + 3660.0
    report = {"members": ["i-0", "i-1"], "step": 0, "steps_total": 1000, "step_seconds": 36.0, "unix_seconds": now}
    choosing.put("status.json", report)
    moved = choosing.step(now)
    assert [each["place"]["zone"] for each in moved["ranking"]] == ["us-east-1a", "us-east-1b"]
    assert "moving from us-east-1b (0.9000 USD/h) to us-east-1a (0.3000 USD/h)" in moved["reason"]
    assert [each["DesiredCapacity"] for each in choosing.autoscaling.groups] == [0, 0]
    assert choosing.step(now + 60.0)["phase"] == "running"
    assert [each["DesiredCapacity"] for each in choosing.autoscaling.groups] == [2, 0]


def test_nodes_that_do_not_move_need_no_prices() -> None:
    places = json.dumps({"region": "us-east-1", "instance_types": ["g5.xlarge"], "zones": ["us-east-1a", "us-east-1b"]})
    with mock_aws():
        world = World(CHOOSE="availability", PLACES=places)
        world.document()
        world.step(1000.0)
        calls = world.prices.calls
        assert world.step(1060.0)["ranking"] == []
        assert world.prices.calls == calls


def test_missing_prices_are_logged_and_the_run_starts(choosing: World) -> None:
    choosing.document()
    choosing.prices.problem = "cannot read the spot prices"
    record = choosing.step(1000.0)
    assert record["prices_problem"] == "cannot read the spot prices"
    assert choosing.autoscaling.calls == [("resize", STARTED)]


def test_deadline_is_logged_with_the_numbers_of_the_newest_report() -> None:
    places = json.dumps({"region": "us-east-1", "instance_types": ["g5.xlarge"], "zones": ["us-east-1a", "us-east-1b"]})
    with mock_aws():
        world = World(DEADLINE_HOURS="20", TRAINING_HOURS="10", PLACES=places)
        world.document()
        first = world.step(1000.0)
        assert first["deadline"]["work_hours"] == 10.0
        assert world.state()["started_unix_seconds"] == 1000.0
        members = ["i-0", "i-1"]
        report = {"members": members, "step": 500, "steps_total": 1000, "step_seconds": 36.0, "unix_seconds": 4590.0}
        world.put("status.json", report)
        second = world.step(4600.0)
        assert second["deadline"]["work_hours"] == pytest.approx(5.0)
        assert second["deadline"]["remaining_hours"] == pytest.approx(19.0)
        assert world.prices.calls == 2  # prices are also needed while nodes run
        world.put("status.json", {**report, "members": "everyone"})
        third = world.step(4660.0)
        assert [each["reason"] for each in third["set_aside"]] == ["members: must be a list of 1 to 10000 instance ids"]


def test_without_a_deadline_the_report_is_not_read() -> None:
    with mock_aws():
        world = World()
        world.document()
        world.put("status.json", {"members": "everyone"})
        record = world.step(1000.0)
        assert (record["deadline"], record["set_aside"]) == (None, [])
