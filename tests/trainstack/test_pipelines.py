"""`trainstack pipeline` on the embedded cloud, with the pipeline's own function. The test ends the runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bootstrap.documents import RunDocument
from bootstrap.documents.decoding import SCHEMA_VERSION
from localcloud.cloud import LocalCloud
from localcloud.iam.identity import ROOT_ACCESS_KEY_ID
from stacks.artifacts.bundles import function_bundle
from stacks.artifacts.pipeline_items import step_items
from stacks.config import DeploymentConfig
from stacks.config.pipeline.steps import ordered
from stacks.constructs.workflow.definition import Items, definition
from stacks.functions.run_controller.ledger import documents
from stacks.functions.run_controller.ledger.books import Row
from stacks.functions.run_controller.ledger.machines import Charge, Machine
from stacks.loading import load
from tests.localcloud.core.conftest import make_role
from tests.localcloud.functions.conftest import wait_for
from tests.trainstack.stacks import create_stack
from trainstack.commands import app

pytestmark = pytest.mark.xdist_group("pipelines")  # the tests share a cloud

REGION = "us-east-1"
WAIT_SECONDS = 120.0
FLEETS = ("x", "x-2")
FILE = """
name: x
capacity: {instance_types: [g6.xlarge, g6.2xlarge], slots: 2}
training: {dataset: text}
pipeline:
  steps:
    train: {sweep: {steps: [100, 200]}, parallel: 2, keep: best(validation_loss)}
    evaluate: {after: train, function: "training.inference.steps:evaluate", reports: [bits_per_byte]}
"""
ANYTHING = {"Action": "*", "Resource": "*"}


class World:
    """A deployed pipeline, whose nodes are this test."""

    def __init__(self, cloud: LocalCloud, folder: Path) -> None:
        self.cloud = cloud
        self.s3, self.ssm, self.states, self.functions = map(self.client, ("s3", "ssm", "stepfunctions", "lambda"))
        for bucket in ("control", "datasets", "assets"):
            self.s3.create_bucket(Bucket=bucket)
        self.s3.put_object(Bucket="datasets", Key="datasets/text/dataset.json", Body=b"{}")
        file = folder / "x.yaml"
        file.write_text(FILE)
        machine = self._machine(load(file), self._function(folder))
        buckets = {f"{name}Bucket": name.lower() for name in ("Control", "Checkpoint", "Dataset")}
        create_stack(self.client("cloudformation"), "x-StorageStack", buckets)
        create_stack(self.client("cloudformation"), "x-WorkflowStack", {"PipelineArn": machine})

    def client(self, service: str) -> Any:
        return self.cloud.clients.client(service)

    def _function(self, folder: Path) -> str:
        variables = {
            "DEPLOYMENT": "x",
            "CONTROL_BUCKET": "control",
            "CHECKPOINT_BUCKET": "checkpoint",
            "DATASET_BUCKET": "datasets",
            "SCHEMA_VERSION": str(SCHEMA_VERSION),
            "CODE": json.dumps({"bucket": "assets", "key": "code.zip", "sha256": "c" * 64}),
            "FLEETS": json.dumps(FLEETS),
        }
        made = self.functions.create_function(
            FunctionName="pipeline",
            Runtime="python3.13",
            Handler="pipeline_runs.handler.handler",
            Role=make_role(self.cloud, "function", ANYTHING, trusted="lambda.amazonaws.com"),
            Code={"ZipFile": function_bundle("pipeline_runs", folder).path.read_bytes()},
            Timeout=60,
            Environment={"Variables": variables},
        )
        return str(made["FunctionArn"])

    def _machine(self, config: DeploymentConfig, function: str) -> str:
        assert config.pipeline is not None
        steps = ordered(config.pipeline)
        items = {step.name: step_items(config, step, "c" * 64) for step in steps}
        for name, members in items.items():
            self.s3.put_object(Bucket="assets", Key=f"{name}.json", Body=json.dumps(members))
        places = {name: Items("assets", f"{name}.json", len(members)) for name, members in items.items()}
        made = self.states.create_state_machine(
            name="trainstack-x",
            definition=json.dumps(definition(steps, places, dict.fromkeys(items, FLEETS), function)),
            roleArn=make_role(self.cloud, "machine", ANYTHING, trusted="states.amazonaws.com"),
        )
        return str(made["stateMachineArn"])

    def pipeline(self, *arguments: str) -> Any:
        done = CliRunner().invoke(app, ["pipeline", *arguments])
        assert done.exit_code == 0, done.output
        return done

    def as_json(self, *arguments: str) -> Any:
        return json.loads(self.pipeline(*arguments, "--json").stdout)

    def task(self, fleet: str, step: str) -> dict[str, Any]:
        """Return the task in a slot once it belongs to a step."""

        def found() -> dict[str, Any] | None:
            listed = self.s3.list_objects_v2(Bucket="control", Prefix=f"pipelines/slots/{fleet}.json")
            if not listed.get("Contents"):
                return None
            body = self.s3.get_object(Bucket="control", Key=f"pipelines/slots/{fleet}.json")["Body"].read()
            task: dict[str, Any] = json.loads(body)
            return task if task.get("step") == step and self._has_document(fleet, task["run"]) else None

        task: dict[str, Any] = wait_for(found, f"a task of {step} in {fleet}", WAIT_SECONDS)
        return task

    def _has_document(self, fleet: str, run: str) -> bool:
        found = self.ssm.get_parameters(Names=[f"/trainstack/{fleet}/run"])["Parameters"]
        return any(json.loads(each["Value"])["run"] == run for each in found)

    def end(self, fleet: str, outcome: str, **metrics: float) -> None:
        """End the run in a slot as a node does."""
        text = self.ssm.get_parameter(Name=f"/trainstack/{fleet}/run")["Parameter"]["Value"]
        run = RunDocument.from_text(text)
        record = {"run": run.run, "run_digest": run.digest(), "outcome": outcome, "step": 100, "message": "because"}
        status = {"run_digest": run.digest(), "ended": True, "metrics": metrics, **metrics}
        for name, content in (("status", status), ("outcome", record)):
            key = f"runs/{fleet}/{run.run}/control/{name}.json"
            self.s3.put_object(Bucket="control", Key=key, Body=json.dumps(content))

    def check(self) -> None:
        answer = self.functions.invoke(FunctionName="pipeline", Payload=json.dumps({"detail-type": "Clock"}).encode())
        assert "FunctionError" not in answer, answer["Payload"].read()

    def until(self, execution: str, status: str) -> None:
        def ended() -> bool:
            found: dict[str, Any] = self.as_json("status", "x", "--execution", execution)
            return bool(found["status"] == status)

        wait_for(ended, f"{execution} {status}", WAIT_SECONDS)

    def charge(self, fleet: str, hour: int, usd: dict[str, float]) -> None:
        """Write one hour of a ledger, with one machine."""
        machine = Machine("i-1", hour, hour, "g6.xlarge", "us-east-1a", "spot")
        row = Row(machine, {run: Charge(seconds=60.0, usd=each) for run, each in usd.items()})
        body = documents.hour_to_bytes(hour, [row], hour + 3600.0)
        self.s3.put_object(Bucket="control", Key=documents.hour_key(fleet, hour), Body=body)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("pipeline")
    cloud = LocalCloud(folder / "cloud", region=REGION)
    cloud.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", cloud.endpoint_url)
        patch.setenv("AWS_REGION", REGION)
        patch.setenv("AWS_ACCESS_KEY_ID", ROOT_ACCESS_KEY_ID)
        patch.setenv("AWS_SECRET_ACCESS_KEY", cloud.identity.root_secret)
        yield World(cloud, folder)
    cloud.close()


def fleet_of(world: World, step: str) -> str:
    """Return the slot that a step occupies, once it does."""

    def found() -> str | None:
        for fleet in FLEETS:
            body = world.s3.get_object(Bucket="control", Key=f"pipelines/slots/{fleet}.json")["Body"].read()
            if json.loads(body).get("step") == step:
                return fleet
        return None

    return str(wait_for(found, f"a slot of {step}", WAIT_SECONDS))


def clock_hour(world: World, execution: str) -> int:
    """Return the start of the clock hour in which an execution started."""
    arn = f"arn:aws:states:{REGION}:{world.cloud.clients.account}:execution:trainstack-x:{execution}"
    started: float = world.states.describe_execution(executionArn=arn)["startDate"].timestamp()
    return int(started // 3600 * 3600)


@dataclass(frozen=True)
class First:
    """The execution `first`, in which two members trained and the evaluation failed.

    Attributes:
        runs: The training run of each fleet.
        running: The status while the members trained.
    """

    runs: dict[str, str]
    running: dict[str, Any]


@pytest.fixture(scope="module")
def first(world: World) -> First:
    world.pipeline("run", "x", "--no-follow", "--name", "first")
    runs = {fleet: str(world.task(fleet, "train")["run"]) for fleet in FLEETS}
    hour = clock_hour(world, "first")
    world.charge("x", hour - 3600, {runs["x"]: 100.0})  # before the execution
    world.charge("x", hour, {runs["x"]: 0.25, "another-run": 50.0, "": 25.0})
    world.charge("x-2", hour, {runs["x-2"]: 0.5})
    running = world.as_json("status", "x")
    for fleet in FLEETS:
        world.end(fleet, "finished", validation_loss=2.0 if fleet == "x" else 3.0)
    world.check()
    fleet = fleet_of(world, "evaluate")
    evaluation = str(world.task(fleet, "evaluate")["run"])
    world.charge(fleet, hour, {runs[fleet]: 0.25 if fleet == "x" else 0.5, evaluation: 0.125})
    world.end(fleet, "failed")
    world.check()
    world.until("first", "FAILED")
    return First(runs, running)


def test_each_step_costs_what_the_ledgers_contain_for_the_runs_that_its_execution_started(
    world: World, first: First
) -> None:
    runs = first.runs
    assert sorted(run[:8] for run in runs.values()) == ["train-0-", "train-1-"]
    assert [(step["name"], step["state"], step["usd"]) for step in first.running["steps"]] == [
        ("train", "running", 0.75),
        ("evaluate", "pending", 0.0),
    ]
    ended = world.as_json("status", "x", "--execution", "first")
    assert [(step["state"], step["usd"]) for step in ended["steps"]] == [("succeeded", 0.75), ("failed", 0.125)]
    members = {each["run"]: each["usd"] for each in world.as_json("results", "x", "--execution", "first")}
    assert members == {runs["x"]: 0.25, runs["x-2"]: 0.5}, "the failed member has no result"
    text = world.pipeline("status", "x", "--execution", "first").stdout
    assert text.startswith("x: execution first, failed, 0.8750 USD\n")
    assert "  train              0.7500 USD  succeeded\n" in text


@pytest.mark.usefixtures("first")
def test_cached_members_cost_nothing(world: World) -> None:
    world.pipeline("run", "x", "--no-follow", "--name", "second")
    fleet = fleet_of(world, "evaluate")
    world.task(fleet, "evaluate")
    results = world.as_json("results", "x")
    assert [(each["step"], each["cached"], each["usd"]) for each in results] == [("train", True, 0.0)] * 2
    assert "cached      0.0000 USD" in world.pipeline("results", "x").stdout
    (train, _) = world.as_json("status", "x")["steps"]
    assert (train["state"], train["usd"]) == ("succeeded", 0.0)
    world.end(fleet, "finished", bits_per_byte=1.5)
    world.check()
    world.until("second", "SUCCEEDED")
    arn = f"arn:aws:states:{REGION}:{world.cloud.clients.account}:execution:trainstack-x:second"
    listed = world.states.list_map_runs(executionArn=arn)["mapRuns"]
    described = [world.states.describe_map_run(mapRunArn=each["mapRunArn"]) for each in listed]
    assert [(each["status"], each["executionCounts"]["succeeded"]) for each in described] == [
        ("SUCCEEDED", 2),
        ("SUCCEEDED", 1),
    ]


@pytest.mark.usefixtures("first")
def test_a_damaged_hour_is_reported_and_the_others_are_counted(world: World) -> None:
    key = documents.hour_key("x-2", clock_hour(world, "first"))
    valid = world.s3.get_object(Bucket="control", Key=key)["Body"].read()
    world.s3.put_object(Bucket="control", Key=key, Body=b"{")
    try:
        done = world.pipeline("results", "x", "--execution", "first")
    finally:
        world.s3.put_object(Bucket="control", Key=key, Body=valid)
    assert f"problem: s3://control/{key}" in done.stderr
    assert "0.2500 USD" in done.stdout and "0.5000 USD" not in done.stdout
