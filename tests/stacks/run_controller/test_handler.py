"""The run controller against S3 and Parameter Store as moto has them, and a recorded Auto Scaling."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from bootstrap.documents import Bundle, RunDocument
from stacks.functions.run_controller.fleets.auto_scaling_group import AutoScalingGroup
from stacks.functions.run_controller.handler import (
    INTERRUPTION,
    Controller,
    Surroundings,
    UnreadableRunDocument,
    read_run,
)

ENVIRONMENT = {
    "BACKEND": "auto_scaling_group",
    "FLEET_ID": "trainstack-x",
    "NODES": "2",
    "ON_DEMAND_BASE": "0",
    "RUN_PARAMETER": "/trainstack/x/run",
    "CHECKPOINT_BUCKET": "checkpoints",
    "SUBNET_IDS": "subnet-a,subnet-b",
    "ONE_SUBNET_AT_A_TIME": "true",
    "GANG_TIMEOUT_SECONDS": "600",
    "BOOT_FAILURE_LIMIT": "3",
}
DOCUMENT = RunDocument(
    schema_version=1,
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
    """A group that does what it is told, at once."""

    def __init__(self) -> None:
        self.group: dict[str, Any] | None = {
            "DesiredCapacity": 0,
            "MaxSize": 2,
            "VPCZoneIdentifier": "subnet-a",
            "MixedInstancesPolicy": {"LaunchTemplate": {"LaunchTemplateSpecification": {"Version": "1"}}},
            "Instances": [],
        }
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def describe_auto_scaling_groups(self, AutoScalingGroupNames: list[str]) -> dict[str, Any]:  # noqa: N803
        assert AutoScalingGroupNames == ["trainstack-x"]
        return {"AutoScalingGroups": [self.group] if self.group else []}

    def update_auto_scaling_group(self, **arguments: Any) -> None:
        self.calls.append(("update", arguments))
        assert self.group is not None
        size = arguments["DesiredCapacity"]
        self.group["DesiredCapacity"] = size
        self.group["Instances"] = [{"InstanceId": f"i-{n}", "LifecycleState": "InService"} for n in range(size)]

    def detach_instances(self, **arguments: Any) -> None:
        self.calls.append(("detach", arguments))


class World:
    def __init__(self) -> None:
        self.s3 = boto3.client("s3", region_name="us-east-1")
        self.s3.create_bucket(Bucket="checkpoints")
        self.ssm = boto3.client("ssm", region_name="us-east-1")
        self.autoscaling = FakeAutoScaling()
        self.controller = Controller(
            Surroundings.from_environment(ENVIRONMENT),
            fleet=AutoScalingGroup("trainstack-x", self.autoscaling),
            ssm=self.ssm,
            s3=self.s3,
        )

    def document(self, document: RunDocument = DOCUMENT) -> None:
        text = json.dumps(document.to_json())
        self.ssm.put_parameter(Name="/trainstack/x/run", Value=text, Type="String", Overwrite=True)

    def put(self, name: str, record: dict[str, Any]) -> None:
        key = f"runs/run-1/control/{name}"
        self.s3.put_object(Bucket="checkpoints", Key=key, Body=json.dumps(record).encode())

    def memory(self) -> dict[str, Any]:
        body = self.s3.get_object(Bucket="checkpoints", Key="runs/run-1/control/controller.json")["Body"]
        return json.loads(body.read())

    def step(self, now: float = 1000.0, **event: Any) -> dict[str, Any]:
        return self.controller.step(event or {"detail-type": "Scheduled Event"}, now)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield World()


def test_digest_is_the_one_that_the_nodes_compute() -> None:
    for text in (json.dumps(DOCUMENT.to_json()), json.dumps(DOCUMENT.to_json(), indent=2, sort_keys=True)):
        assert read_run(text).digest == DOCUMENT.digest()


def test_no_group_means_nothing_to_do(world: World) -> None:
    world.autoscaling.group = None
    assert world.step()["actions"] == []


def test_no_run_document_means_zero_nodes(world: World) -> None:
    assert world.step()["phase"] == "idle"
    assert world.autoscaling.calls == []


def test_a_run_document_starts_the_fleet_once(world: World) -> None:
    world.document()
    world.step()
    world.step()
    assert world.autoscaling.calls == [("update", {"AutoScalingGroupName": "trainstack-x", "DesiredCapacity": 2})]
    assert world.memory()["phase"] == "running"
    assert world.memory()["run_digest"] == DOCUMENT.digest()


def test_the_notice_detaches_without_decrement(world: World) -> None:
    world.document()
    world.step()
    world.step(**{"detail-type": INTERRUPTION, "detail": {"instance-id": "i-1", "instance-action": "terminate"}})
    detach = {
        "AutoScalingGroupName": "trainstack-x",
        "InstanceIds": ["i-1"],
        "ShouldDecrementDesiredCapacity": False,
    }
    assert world.autoscaling.calls[-1] == ("detach", detach)


def test_the_outcome_takes_the_fleet_to_zero(world: World) -> None:
    world.document()
    world.step()
    world.put("outcome.json", {"run": "run-1", "run_digest": DOCUMENT.digest(), "outcome": "finished", "step": 9})
    done = world.step(**{"detail-type": "Object Created", "detail": {}})
    assert world.autoscaling.calls[-1][1]["DesiredCapacity"] == 0
    assert done["reason"] == "the run ended: finished"


def test_nodes_that_never_beat_stop_the_fleet(world: World) -> None:
    world.document()
    world.step(1000.0)
    group = world.autoscaling.group
    assert group is not None
    for number in range(10, 16, 2):
        world.step(1000.0 + number)
        group["Instances"] = [{"InstanceId": f"i-{number + n}", "LifecycleState": "InService"} for n in (0, 1)]
    done = world.step(1020.0)
    assert done["phase"] == "protected"
    assert group["DesiredCapacity"] == 0
    assert "aws ec2 get-console-output --latest --instance-id i-11" in done["reason"]  # the last, which left no report


def fail_to_boot(world: World, *, report: bytes | None) -> dict[str, Any]:
    """Let two pairs of nodes vanish before they were heard of; the second leaves a report each."""
    world.document()
    world.step(1000.0)
    group = world.autoscaling.group
    assert group is not None
    world.step(1010.0)
    group["Instances"] = [{"InstanceId": f"i-{n}", "LifecycleState": "InService"} for n in (10, 11)]
    world.step(1012.0)
    for instance_id in ("i-10", "i-11"):
        if report is not None:
            world.s3.put_object(Bucket="checkpoints", Key=f"nodes/{instance_id}/boot-failure.json", Body=report)
    group["Instances"] = []
    return world.step(1020.0)


def test_protection_says_what_failed_last_and_what_to_do(world: World) -> None:
    report = {"step": "gpus", "message": "7 of 8 GPUs", "remedy": "give the machine back", "output_tail": "x"}
    world.s3.put_object(Bucket="checkpoints", Key="nodes/i-11/gen-1-trainer.log", Body=b"not this")
    done = fail_to_boot(world, report=json.dumps(report).encode())
    assert done["phase"] == "protected"
    assert "The last: gpus: 7 of 8 GPUs. Remedy: give the machine back" in done["reason"]
    assert "(s3://checkpoints/nodes/i-11/boot-failure.json)" in done["reason"]
    assert world.autoscaling.calls[-1][1]["DesiredCapacity"] == 0
    assert world.step(1080.0)["reason"] == done["reason"]  # also when nobody has vanished since


@pytest.mark.parametrize("report", [b"{", b"[]", b"{}"])
def test_a_report_that_cannot_be_read_holds_the_protection_up_in_no_way(world: World, report: bytes) -> None:
    done = fail_to_boot(world, report=report)
    assert done["phase"] == "protected"
    assert "s3://checkpoints/nodes/i-11/: the report cannot be read" in done["reason"]
    assert world.autoscaling.calls[-1][1]["DesiredCapacity"] == 0


def test_a_new_run_document_lifts_the_protection(world: World) -> None:
    assert fail_to_boot(world, report=None)["phase"] == "protected"
    world.document(dataclasses.replace(DOCUMENT, training={"steps": 2}))
    done = world.step(1100.0)
    assert done["phase"] == "running"
    assert (world.memory()["boot_failures"], world.memory()["last_failure"]) == (0, "")


def test_heartbeats_are_heard(world: World) -> None:
    world.document()
    world.step()
    world.step()
    assert world.memory()["booting"] == ["i-0", "i-1"]
    world.put("heartbeats/i-0.json", {"sequence": 1})
    world.step()
    assert world.memory()["booting"] == ["i-1"]


def test_the_next_attempt_goes_to_the_next_subnet(world: World) -> None:
    world.document()
    world.step(1000.0)
    group = world.autoscaling.group
    assert group is not None
    group["Instances"] = group["Instances"][:1]
    world.step(1600.0)
    assert group["DesiredCapacity"] == 0
    world.step(1660.0)
    update = {"AutoScalingGroupName": "trainstack-x", "DesiredCapacity": 2, "VPCZoneIdentifier": "subnet-b"}
    assert world.autoscaling.calls[-1] == ("update", update)


def test_memory_of_a_newer_version_is_read(world: World) -> None:
    world.document()
    world.put("controller.json", {"phase": "ended", "run_digest": "old", "invented_later": 1})
    assert world.step()["phase"] == "running"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"run": "r", "nodes": "many", "min_nodes": 1}', "null"])
def test_an_unreadable_document_leaves_the_fleet_alone(world: World, text: str) -> None:
    if text:
        world.ssm.put_parameter(Name="/trainstack/x/run", Value=text, Type="String")
        with pytest.raises(UnreadableRunDocument, match="deploy it again"):
            world.step()
    else:
        with pytest.raises(UnreadableRunDocument):
            read_run(text)
    assert world.autoscaling.calls == []


def test_a_refused_call_is_an_error_and_nothing_is_remembered(world: World) -> None:
    world.document()

    def refuse(**_: Any) -> None:
        raise ClientError({"Error": {"Code": "ScalingActivityInProgress", "Message": "busy"}}, "Update")

    world.autoscaling.update_auto_scaling_group = refuse  # type: ignore[method-assign]
    with pytest.raises(ClientError, match="busy"):
        world.step()
    with pytest.raises(world.s3.exceptions.NoSuchKey):
        world.memory()


def test_canonical_form_is_fixed() -> None:
    text = '{"b":1,"a":{"d":2.5,"c":"\\u00e9"}, "run":"r","nodes":1,"min_nodes":1}'
    canonical = '{"a":{"c":"\\u00e9","d":2.5},"b":1,"min_nodes":1,"nodes":1,"run":"r"}'
    assert read_run(text).digest == hashlib.sha256(canonical.encode()).hexdigest()
