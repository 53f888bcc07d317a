"""`trainstack run`: the choice of a slot, the settings, the review, and concurrent commands, on moto."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from bootstrap.documents import Bundle, RunDocument
from bootstrap.documents.desired_state import DesiredState
from bootstrap.documents.object_keys import control_prefix
from bootstrap.supervise.membership.records import RunOutcome, to_text
from stacks.artifacts.documents import run_document
from stacks.loading import load
from tests.stacks.conftest import Synthesis
from tests.trainstack.stacks import create_stack
from trainstack import account, programs
from trainstack.account import claim_key
from trainstack.commands import main
from trainstack.operate import desired, slots
from trainstack.operate.slots import CLAIM_SECONDS, SlotTaken, occupancy, start

FILE = Path(__file__).resolve().parents[2] / "config" / "slots.yaml"
CODE = Bundle("cdk-hnb659fds-assets-123456789012-us-east-1", f"{'a' * 64}.zip", "a" * 64)
RUN = run_document(load(FILE), CODE)
ONE, TWO, THREE = "slots", "slots-2", "slots-3"


def client(service: str) -> Any:
    return boto3.client(service, region_name="us-east-1")


class World:
    """The deployment of config/slots.yaml with a third slot, and without nodes."""

    def __init__(self, template: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._templates: dict[str, str] = {}
        client("s3").create_bucket(Bucket="control")
        buckets = {"CheckpointBucket": "checkpoints", "ControlBucket": "control", "DatasetBucket": "datasets"}
        create_stack(client("cloudformation"), "slots-StorageStack", buckets)
        for fleet, stack in ((ONE, "TrainingStack"), (TWO, "TrainingStack-2"), (THREE, "TrainingStack-3")):
            outputs = {"LogGroup": f"/trainstack/{fleet}", "RunParameter": parameter(fleet)}
            create_stack(client("cloudformation"), f"slots-{stack}", outputs)
            self._templates[f"slots-{stack}"] = template
        self.write(ONE, RUN)

    def template(self, name: str) -> dict[str, Any]:
        """Return a stack's template as the CDK synthesized it. moto cannot create its resources."""
        found: dict[str, Any] = json.loads(self._templates[name])
        return found

    def write(self, fleet: str, run: RunDocument) -> None:
        value = json.dumps(replace(run, deployment=fleet).to_json())
        client("ssm").put_parameter(Name=parameter(fleet), Type="String", Value=value, Overwrite=True)

    def end(self, fleet: str, outcome: Any = "finished", **changes: Any) -> None:
        run = self.run(fleet)
        ended = RunOutcome(run.run, run.digest(), outcome, 10, "")
        key = control_prefix(fleet, run.run) + "outcome.json"
        client("s3").put_object(Bucket="control", Key=key, Body=to_text(replace(ended, **changes)).encode())

    def run(self, fleet: str) -> RunDocument:
        value = client("ssm").get_parameter(Name=parameter(fleet))["Parameter"]["Value"]
        return RunDocument.from_text(value)

    def fleets(self) -> set[str]:
        """Return the fleets that have a run document."""
        names = [each["Name"] for each in client("ssm").describe_parameters()["Parameters"]]
        return {name.split("/")[2] for name in names if name.endswith("/run")}

    def call(self, *arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        output, errors = self._capsys.readouterr()
        return int(ended.value.code or 0), output, errors

    def start(self, name: str, *arguments: str) -> tuple[int, str, str]:
        return self.call("run", str(FILE), "--name", name, *arguments)


def parameter(fleet: str) -> str:
    return f"/trainstack/{fleet}/run"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> str:
    return Synthesis(tmp_path_factory.mktemp("synthesis")).of("slots").text("TrainingStack-2")


@pytest.fixture
def world(template: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[World]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_PROFILE", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with mock_aws():
        made = World(template, capsys)
        monkeypatch.setattr(account, "get_template", lambda _, stack: made.template(stack))
        yield made


def place(fleet: str) -> account.Deployment:
    return account.find(client, fleet)


def test_a_run_starts_in_the_first_idle_slot(world: World) -> None:
    code, output, errors = world.start(
        "b", "--set", "optimizer.learning_rate=1e-3", "--set", "model.preset=gpt2-medium"
    )
    assert code == 0, errors
    run = world.run(TWO)
    assert (run.deployment, run.run, run.code, run.dataset) == (TWO, "b", CODE, "openwebtext")
    assert run.training["optimizer"]["learning_rate"] == 0.001 and run.training["model"]["preset"] == "gpt2-medium"
    assert run.training["steps"] == RUN.training["steps"]
    assert "training.config.optimizer.learning_rate: 0.0006 -> 0.001" in output
    assert "training.run: base -> b" in output
    assert "USD per hour while the run trains" in output and "review: safe (10)" in output
    assert world.run(ONE).run == "base" and world.fleets() == {ONE, TWO}
    assert world.start("c")[0] == 0 and world.run(THREE).run == "c"
    code, _, errors = world.start("d")
    assert code == 4 and "slots-2: run b has not ended" in errors and "slots-3: run c has not ended" in errors


def test_a_run_never_replaces_one_that_has_not_ended(world: World) -> None:
    world.write(TWO, replace(RUN, run="a"))
    world.end(TWO, run_digest="b" * 64)  # of an earlier document
    assert world.start("b", "--slot", "2")[0] == 4
    world.end(TWO)
    assert world.start("b", "--slot", "2")[0] == 0
    assert world.run(TWO).run == "b"


def test_a_stopped_run_keeps_its_slot_until_it_has_ended(world: World) -> None:
    world.write(TWO, replace(RUN, run="a"))
    desired.write(client, TWO, DesiredState(state="stopped", requested_by="arn:aws:iam::123456789012:user/ada"))
    code, _, errors = world.start("b", "--slot", "2")
    assert code == 4 and "run a is stopped; `trainstack resume slots-2` continues it" in errors
    world.end(TWO, "failed")
    assert world.start("b", "--slot", "2")[0] == 0
    value = client("ssm").get_parameter(Name=f"/trainstack/{TWO}/desired")["Parameter"]["Value"]
    assert DesiredState.from_text(value).state == "running"


def test_an_invalid_run_document_is_not_overwritten(world: World) -> None:
    client("ssm").put_parameter(Name=parameter(TWO), Type="String", Value="{}")
    code, _, errors = world.start("b", "--slot", "2")
    assert code == 4 and parameter(TWO) in errors


def test_names_are_not_shared_or_used_again(world: World) -> None:
    code, _, errors = world.start("base")
    assert code == 4 and "'base': is the run of slots; choose another name" in errors
    assert world.start("b", "--slot", "2")[0] == 0
    assert "is the run of slots-2" in world.start("b")[2]
    world.end(TWO)
    assert world.start("c", "--slot", "2")[0] == 0
    world.end(TWO)
    code, _, errors = world.start("b", "--slot", "2")
    assert code == 4 and "slots-2: has already trained a run with this name" in errors


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--set", "optimizer.rate=1"], ["optimizer.rate: 1: training.config has no key optimizer.rate"]),
        (["--set", "steps"], ["--set: 'steps': must be KEY=VALUE"]),
        (["--set", "steps=1", "--set", "steps=2"], ["sets steps again"]),
        (["--set", "optimizer=fast"], ["is a section"]),
        (["--set", "steps=[1"], ["--set steps: '[1': is not a YAML value"]),
        (["--set", "steps=-5", "--set", "seed=x"], ["steps: -5", 'seed: "x"']),
        (["--set", "global_batch_size=0"], ["global_batch_size: 0"]),
        (["--slot", "7"], ["--slot: '7': is not a slot for runs; use one of 2, 3"]),
        (["--slot", ""], ["is not a slot for runs"]),
    ],
)
def test_invalid_input_starts_nothing(world: World, arguments: list[str], expected: list[str]) -> None:
    code, output, errors = world.start("b", *arguments)
    assert code == 2, errors
    assert all(text in errors for text in expected), errors
    assert output == "" and world.fleets() == {ONE}


def test_all_problems_are_reported_at_once(world: World) -> None:
    code, _, errors = world.start("B_1", "--set", "nothing.here=1", "--set", "seed")
    assert code == 2
    assert "nothing.here" in errors and "--name" in errors and "must be KEY=VALUE" in errors and "3 problems" in errors


def test_a_dry_run_starts_nothing(world: World) -> None:
    code, output, _ = world.start("b", "--dry-run", "--json", "--set", "steps=5")
    found = json.loads(output)
    assert (code, found["slot"], found["started"], found["review"]["exit_code"]) == (0, TWO, False, 10)
    assert {each["key"] for each in found["review"]["edits"]} == {"training.run", "training.config.steps"}
    assert world.fleets() == {ONE}
    with pytest.raises(ClientError, match="NoSuchKey|does not exist"):
        client("s3").get_object(Bucket="control", Key=claim_key(TWO))


def test_a_change_that_a_deploy_would_have_to_approve_needs_approval(world: World) -> None:
    """The review does not inspect weights (stacks/changes/approvals/documents.py)."""
    risky = ("--set", "initial_weights=s3://models/gpt")
    code, output, errors = world.start("b", *risky)
    assert code == 4 and "needs approval" in output and "--approved 30" in errors
    assert world.fleets() == {ONE}
    assert world.start("b", *risky, "--approved", "30")[0] == 0 and world.fleets() == {ONE, TWO}


def test_of_two_commands_at_once_one_starts_its_run(world: World) -> None:
    now = time.time()
    first, second = (occupancy(client, place(TWO), now) for _ in range(2))
    assert first.is_idle and second.is_idle
    start(client, first, replace(RUN, deployment=TWO, run="b"), "ada", now)
    with pytest.raises(SlotTaken, match="slots-2: another command is starting a run"):
        start(client, second, replace(RUN, deployment=TWO, run="c"), "bob", now)
    assert world.run(TWO).run == "b"
    world.end(TWO)  # the same between two runs
    first, second = (occupancy(client, place(TWO), now) for _ in range(2))
    start(client, second, replace(RUN, deployment=TWO, run="d"), "bob", now)
    with pytest.raises(SlotTaken):
        start(client, first, replace(RUN, deployment=TWO, run="e"), "ada", now)
    assert world.run(TWO).run == "d"


def test_a_claim_without_a_run_keeps_the_slot_for_a_limited_time(world: World) -> None:
    now, seen = time.time(), occupancy(client, place(TWO), time.time())

    def interrupted(service: str) -> Any:
        if service == "ssm":
            raise KeyboardInterrupt
        return client(service)

    with pytest.raises(KeyboardInterrupt):
        start(interrupted, seen, replace(RUN, deployment=TWO, run="b"), "ada", now)
    later = occupancy(client, place(TWO), now + 1)
    assert (later.is_idle, later.reason) == (False, "another command is starting a run")
    assert occupancy(client, place(TWO), now + CLAIM_SECONDS + 1).is_idle
    assert world.start("c")[0] == 0 and world.run(THREE).run == "c"


def test_the_other_commands_find_slots_by_the_name_of_their_fleet(world: World) -> None:
    assert world.start("b")[0] == 0
    code, output, _ = world.call("runs", "--region", "us-east-1")
    assert code == 0 and [line.split()[:2] for line in output.splitlines()] == [
        ["slots", "base"], ["slots-2", "b"], ["slots-3", "idle"],
    ]  # fmt: skip
    code, output, _ = world.call("status", "slots-3", "--region", "us-east-1")
    assert code == 0 and "no run; `trainstack run FILE --name RUN` starts one" in output and "note" not in output
    assert world.call("stop", "slots-2", "--no-wait", "--region", "us-east-1")[0] == 0
    names = {each["Name"] for each in client("ssm").describe_parameters()["Parameters"]}
    assert "/trainstack/slots-2/desired" in names and "/trainstack/slots/desired" not in names
    assert world.call("status", "slots-4", "--region", "us-east-1")[0] == 3


def test_down_deletes_what_was_written_at_run_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.start("b")
    world.call("stop", "slots-2", "--no-wait", "--region", "us-east-1")

    def destroyed(command: list[str], what: str, **_: Any) -> int:
        client("ssm").delete_parameter(Name=parameter(ONE))
        return 0

    monkeypatch.setattr(programs, "run", destroyed)
    assert world.call("down", str(FILE), "--yes")[0] == 0
    assert client("ssm").describe_parameters()["Parameters"] == []


def test_one_slot_has_no_room_for_another_run(world: World) -> None:
    for stack in ("TrainingStack-2", "TrainingStack-3"):
        client("cloudformation").delete_stack(StackName=f"slots-{stack}")
    code, _, errors = world.start("b")
    assert code == 4 and "raise capacity.slots and deploy" in errors


def test_other_engines_have_no_slots(world: World) -> None:
    code, _, errors = world.call("run", str(FILE.parent / "slurm" / "two-nodes.yaml"), "--name", "b")
    assert code == 4 and "engine slurm has no slots" in errors


def test_a_claim_is_no_control_record() -> None:
    assert not claim_key(TWO).startswith(("runs/", "controller/", "nodes/"))
    assert slots.CLAIM_SECONDS > 2 * (5 + 30) * 4  # the timeouts and attempts of `session.Account.client`
