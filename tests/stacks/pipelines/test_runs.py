"""The function of a pipeline: starts, answers, heartbeats, retries and stops, with S3 and SSM in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from bootstrap.documents import RunDocument
from bootstrap.documents.decoding import SCHEMA_VERSION
from bootstrap.documents.desired_state import DesiredState
from stacks.functions.pipeline_runs.records import InvalidRecord
from stacks.functions.pipeline_runs.runs import Environment, Runs, SlotsBusy
from stacks.functions.pipeline_runs.store import Store

CODE = {"bucket": "assets", "key": "code.zip", "sha256": "c" * 64}
DOCUMENT: dict[str, Any] = {
    "schema_version": SCHEMA_VERSION,
    "nodes": 1,
    "min_nodes": 1,
    "processes_per_node": 1,
    "dataset": "text",
    "training": {"steps": 10},
}


class States:
    """Step Functions: records the answers, and rejects closed tokens."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, ...]] = []
        self.closed: set[str] = set()
        self.error = "TaskTimedOut"

    def _send(self, kind: str, token: str, *values: str) -> None:
        if token in self.closed:
            raise ClientError({"Error": {"Code": self.error, "Message": ""}}, kind)
        self.answers.append((kind, token, *values))

    def send_task_success(self, *, taskToken: str, output: str) -> None:  # noqa: N803 - boto3's names
        self._send("success", taskToken)
        self.closed.add(taskToken)

    def send_task_failure(self, *, taskToken: str, error: str, cause: str) -> None:  # noqa: N803
        self._send("failure", taskToken, error, cause)
        self.closed.add(taskToken)

    def send_task_heartbeat(self, *, taskToken: str) -> None:  # noqa: N803
        self._send("heartbeat", taskToken)


@dataclass
class World:
    runs: Runs
    states: States
    s3: Any
    ssm: Any

    def start(self, token: str, *, execution: str = "one", index: int = 0, step: str = "train", **more: Any) -> Any:
        item = {"index": index, "settings": {"seed": index}, "digest": f"item-{index}", "document": DOCUMENT, **more}
        event = {"step": step, "token": token, "execution": execution, "item": item, "input": {}}
        return self.runs.start({**event, "fleets": ["demo", "demo-2"], "metrics": ["validation_loss"]}, 100.0)

    def document(self, fleet: str) -> RunDocument:
        text = self.ssm.get_parameter(Name=f"/trainstack/{fleet}/run")["Parameter"]["Value"]
        return RunDocument.from_text(text)

    def end(self, fleet: str, outcome: str = "finished", *, metrics: Any = None, step: int = 10) -> None:
        run = self.document(fleet)
        record = {"run": run.run, "run_digest": run.digest(), "outcome": outcome, "step": step, "message": "because"}
        prefix = f"runs/{fleet}/{run.run}/control/"
        self.s3.put_object(Bucket="control", Key=f"{prefix}outcome.json", Body=json.dumps(record))
        if metrics is not None:
            status = {"run_digest": run.digest(), "ended": True, **metrics}
            self.s3.put_object(Bucket="control", Key=f"{prefix}status.json", Body=json.dumps(status))

    def exists(self, name: str) -> bool:
        return bool(self.ssm.get_parameters(Names=[name])["Parameters"])


@pytest.fixture(name="world")
def world_fixture(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with mock_aws():
        s3, ssm = (boto3.client(service, region_name="us-east-1") for service in ("s3", "ssm"))
        for bucket in ("control", "datasets"):
            s3.create_bucket(Bucket=bucket)
        s3.put_object(Bucket="datasets", Key="datasets/text/dataset.json", Body=b"1")
        environment = Environment(
            deployment="demo",
            checkpoint_bucket="checkpoints",
            dataset_bucket="datasets",
            schema_version=SCHEMA_VERSION,
            code=CODE,
            fleets=["demo", "demo-2", "demo-evaluate-1"],
        )
        states = States()
        yield World(Runs(environment, store=Store(s3, "control"), ssm=ssm, states=states), states, s3, ssm)


def test_a_member_runs_in_a_free_slot_and_is_answered_once(world: World) -> None:
    world.start("token-0")
    world.start("token-1", index=1)
    run = world.document("demo")
    assert (run.deployment, run.code.key, run.training) == ("demo", "code.zip", {"steps": 10})
    assert run.run.startswith("train-0-")
    assert world.document("demo-2").run.startswith("train-1-")
    assert {each["action"] for each in world.runs.check_all(110.0)} == {"waits"}
    world.end("demo-2", metrics={"validation_loss": 2.5, "loss": 2.0, "metrics": {"bits_per_byte": 1.1}})
    world.runs.check_all(120.0)
    world.runs.check_all(130.0)
    assert [each for each in world.states.answers if each[0] != "heartbeat"] == [("success", "token-1")]
    world.end("demo", metrics={"validation_loss": 2.25, "loss": 2.0})
    world.runs.check_all(140.0)
    collected = world.runs.collect(
        {"execution": "one", "step": "train", "members": 2, "keep": "validation_loss", "kind": "train"}
    )
    assert (collected["index"], collected["metrics"]["validation_loss"]) == (0, 2.25)
    assert collected["weights"] == f"s3://checkpoints/runs/demo/{run.run}/checkpoints"


def test_tokens_are_neither_in_run_documents_nor_in_objects_that_nodes_can_read(world: World) -> None:
    world.start("secret-token")
    assert "secret-token" not in world.ssm.get_parameter(Name="/trainstack/demo/run")["Parameter"]["Value"]
    keys = [each["Key"] for each in world.s3.list_objects_v2(Bucket="control")["Contents"]]
    holders = [key for key in keys if b"secret-token" in world.s3.get_object(Bucket="control", Key=key)["Body"].read()]
    assert holders == ["pipelines/slots/demo.json"]


def test_busy_slots_are_an_error_that_the_state_machine_retries(world: World) -> None:
    world.start("token-0")
    world.start("token-1", index=1)
    with pytest.raises(SlotsBusy, match="demo, demo-2"):
        world.start("token-2", index=2)


def test_a_finished_member_with_equal_inputs_does_not_run_again(world: World) -> None:
    world.start("token-0")
    world.end("demo", metrics={"validation_loss": 2.5})
    world.runs.check_all(120.0)
    version = world.ssm.get_parameter(Name="/trainstack/demo/run")["Parameter"]["Version"]
    world.start("token-9", execution="two")
    assert world.states.answers[-1] == ("success", "token-9")
    assert world.ssm.get_parameter(Name="/trainstack/demo/run")["Parameter"]["Version"] == version
    world.s3.put_object(Bucket="datasets", Key="datasets/text/dataset.json", Body=b"changed")
    world.start("token-10", execution="three")
    assert world.states.answers[-1] == ("success", "token-9"), "changed data is another input"
    assert world.ssm.get_parameter(Name="/trainstack/demo/run")["Parameter"]["Version"] == version + 1


def test_the_answer_waits_for_the_last_metrics(world: World) -> None:
    world.start("token-0")
    world.end("demo")
    assert world.runs.check_all(120.0)[0]["action"] == "waits"
    assert world.runs.check_all(299.0)[0]["action"] == "waits"
    world.end("demo", metrics={"validation_loss": 2.5})
    assert world.runs.check_all(299.5)[0]["action"] == "finished"


def test_metrics_of_an_earlier_validation_are_not_final(world: World) -> None:
    world.start("token-0")
    world.end("demo", metrics={"validation_loss": 9.0, "ended": False})
    assert world.runs.check_all(120.0)[0]["action"] == "waits"
    world.end("demo", metrics={"validation_loss": 2.5})
    world.runs.check_all(130.0)
    collected = world.runs.collect({"execution": "one", "step": "train", "members": 1, "keep": None})
    assert collected["metrics"]["validation_loss"] == 2.5


def test_metrics_that_never_arrive_fail_the_member(world: World) -> None:
    world.start("token-0")
    world.end("demo", metrics={"loss": 2.5, "validation_loss": None})
    world.runs.check_all(120.0)
    world.runs.check_all(301.0)
    assert world.states.answers[-1][:3] == ("failure", "token-0", "MetricsMissing")


def test_a_retry_lifts_the_outcome_and_continues_in_the_same_slot(world: World) -> None:
    world.start("token-0", index=1)
    world.start("token-1")
    fleet_run = world.document("demo-2").run
    world.end("demo-2", "failed")
    world.runs.check_all(120.0)
    assert world.states.answers[-1][:3] == ("failure", "token-1", "RunFailed")
    world.start("token-2")
    assert world.document("demo-2").run == fleet_run, "with its checkpoints"
    keys = [each["Key"] for each in world.s3.list_objects_v2(Bucket="control")["Contents"]]
    assert f"runs/demo-2/{fleet_run}/control/outcome.json" not in keys


def test_an_invalid_configuration_is_not_retried(world: World) -> None:
    world.start("token-0")
    world.end("demo", "bad_configuration")
    world.runs.check_all(120.0)
    assert world.states.answers[-1][2] == "BadConfiguration"


@pytest.mark.parametrize("error", ["TaskTimedOut", "TaskDoesNotExist", "InvalidToken"])
def test_a_closed_token_stops_the_run_and_frees_the_slot(world: World, error: str) -> None:
    world.start("token-0")
    run = world.document("demo").run
    world.states.closed.add("token-0")
    world.states.error = error
    assert world.runs.check_all(120.0)[0]["action"] == "stopped"
    desired = world.ssm.get_parameter(Name="/trainstack/demo/desired")["Parameter"]["Value"]
    assert DesiredState.from_text(desired).state == "stopped"
    assert world.runs.check_all(130.0) == []
    world.start("token-1")  # a redrive
    assert not world.exists("/trainstack/demo/desired")
    assert world.document("demo").run == run


def test_a_redrive_takes_over_a_run_that_was_never_stopped(world: World) -> None:
    world.start("token-0")
    world.start("token-1")
    world.end("demo", metrics={"validation_loss": 2.5})
    world.runs.check_all(120.0)
    assert world.states.answers == [("success", "token-1")]
    assert not world.exists("/trainstack/demo-2/run"), "the member occupies only one slot"


def test_an_old_outcome_of_another_document_is_ignored(world: World) -> None:
    world.start("token-0")
    run = world.document("demo").run
    record = {"run": run, "run_digest": "f" * 64, "outcome": "finished", "step": 1, "message": ""}
    key = f"runs/demo/{run}/control/outcome.json"
    world.s3.put_object(Bucket="control", Key=key, Body=json.dumps(record))
    assert world.runs.check_all(120.0)[0]["action"] == "waits"


def test_an_invalid_record_of_one_slot_does_not_block_the_others(world: World) -> None:
    world.start("token-0")
    world.start("token-1", index=1)
    run = world.document("demo").run
    world.s3.put_object(Bucket="control", Key=f"runs/demo/{run}/control/outcome.json", Body=b"[" * 100_000)
    world.end("demo-2", metrics={"validation_loss": 2.5})
    actions = {each["fleet"]: each["action"] for each in world.runs.check_all(120.0)}
    assert actions["demo"].startswith("set aside")
    assert actions["demo-2"] == "finished"


def test_a_step_is_not_collected_before_its_members_have_finished(world: World) -> None:
    world.start("token-0")
    with pytest.raises(InvalidRecord, match="missing"):
        world.runs.collect({"execution": "one", "step": "train", "members": 1, "keep": None})


def test_a_function_reads_the_weights_of_the_previous_step(world: World) -> None:
    document = {
        **DOCUMENT,
        "training": {"entrypoint": "training/integrations/pipeline_step.py", "arguments": ["--function", "a:b"]},
    }
    item = {"index": 0, "settings": {}, "digest": "e", "document": document}
    event = {"step": "evaluate", "token": "t", "execution": "one", "item": item}
    event |= {"fleets": ["demo-evaluate-1"], "metrics": []}
    world.runs.start({**event, "input": {"digest": "d", "weights": "s3://checkpoints/x"}}, 100.0)
    run = world.document("demo-evaluate-1")
    assert run.training["arguments"] == ["--function", "a:b", "--weights", "s3://checkpoints/x"]
