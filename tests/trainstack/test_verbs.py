"""The commands that change a run, with records like those that the run controller and the nodes write."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from moto import mock_aws

from bootstrap.documents.desired_state import DesiredState, Restart
from bootstrap.documents.object_keys import control_prefix
from bootstrap.supervise.membership.records import to_text
from stacks.functions.run_controller.causes import Cause
from stacks.functions.run_controller.policy import ControllerState
from stacks.functions.run_controller.records import state_key
from tests.trainstack.stacks import create_stack
from tests.trainstack.test_status import REPORT, RUN
from trainstack.commands import main
from trainstack.operate import desired, verbs, waiting
from trainstack.operate.waiting import Look, wait
from trainstack.session import REFUSED

PARAMETER = "/trainstack/demo/desired"
CALLER = "arn:aws:sts::123456789012:user/moto"
RUNNING = ControllerState(run_digest=RUN.digest(), phase="running", reason="2 of 2 nodes in service")
LIMITED = replace(
    RUNNING, phase="limited", cause=Cause.SPEND_LIMIT, reason="saved and stopped: limits.usd is 10. Remedy: raise it"
)
STOPPED = replace(RUNNING, phase="stopped", cause=Cause.STOPPED, reason="stopped by ada")


@dataclass
class World:
    """A deployment in moto, and the records of its run."""

    capsys: pytest.CaptureFixture[str]

    def client(self, service: str) -> Any:
        return boto3.client(service, region_name="us-east-1")

    def put(self, key: str, text: str) -> None:
        self.client("s3").put_object(Bucket="control", Key=key, Body=text.encode())

    def controller(self, state: ControllerState) -> None:
        self.put(state_key("demo", RUN.run), json.dumps(asdict(state)))

    def report(self, generation: int) -> None:
        report = replace(REPORT, generation=generation, unix_seconds=time.time())
        self.put(f"{control_prefix('demo', RUN.run)}status.json", to_text(report))

    def desired(self) -> DesiredState:
        return DesiredState.from_text(self.client("ssm").get_parameter(Name=PARAMETER)["Parameter"]["Value"])

    def call(self, *arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        output, errors = self.capsys.readouterr()
        return int(ended.value.code or 0), output, errors


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[World]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with mock_aws():
        made = World(capsys)
        made.client("s3").create_bucket(Bucket="control")
        outputs = {"LogGroup": "/trainstack/demo", "RunParameter": "/trainstack/demo/run"}
        create_stack(made.client("cloudformation"), "demo-TrainingStack", outputs)
        storage = {"CheckpointBucket": "checkpoints", "ControlBucket": "control", "DatasetBucket": "datasets"}
        create_stack(made.client("cloudformation"), "demo-StorageStack", storage)
        made.client("ssm").put_parameter(Name=outputs["RunParameter"], Type="String", Value=json.dumps(RUN.to_json()))
        made.controller(RUNNING)
        yield made


def test_stop_and_resume(world: World) -> None:
    code, output, _ = world.call("stop", "demo", "--no-wait")
    assert (code, output) == (0, "demo: stop requested\n")
    stopped = world.desired()
    assert (stopped.state, stopped.requested_by) == ("stopped", CALLER)
    code, output, _ = world.call("status", "demo")
    assert "stopping" in output and CALLER in output
    world.controller(STOPPED)
    world.report(1)
    code, output, errors = world.call("stop", "demo")  # the run is already stopped: the request is unchanged
    assert (code, output) == (0, "demo: stopped; newest durable checkpoint at step 200\n"), errors
    assert world.desired() == stopped
    code, output, _ = world.call("resume", "demo", "--json")
    assert (code, json.loads(output)["result"]) == (0, "resumed")
    assert world.desired().state == "running"
    assert world.call("resume", "demo")[1] == "demo: was not stopped\n"


def test_a_stop_that_does_not_end_is_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "STOP_SECONDS", 0.0)
    code, output, errors = world.call("stop", "demo")
    assert (code, output) == (1, "")
    assert "error: demo: 0 nodes remain after 0 s" in errors


def test_restart_ends_the_newest_generation(world: World) -> None:
    for number in (9, 10):
        world.put(f"{control_prefix('demo', RUN.run)}generations/{number:08d}.json", "{}")
    code, output, _ = world.call("restart", "demo", "--no-wait")
    assert (code, output) == (0, "demo: restart requested\n")
    assert world.desired().restart == Restart(RUN.run, 10)
    assert world.desired().state == "running"
    world.call("stop", "demo", "--no-wait")
    assert world.desired().restart == Restart(RUN.run, 10)  # a stop and a resume do not repeat the restart


def test_restart_ignores_generations_that_no_election_used(world: World) -> None:
    prefix = f"{control_prefix('demo', RUN.run)}generations/"
    for name in ("00000001.json", "00000002.json", "99999999.json", "zz"):
        world.put(f"{prefix}{name}", "{}")
    assert world.call("restart", "demo", "--no-wait")[0] == 0
    assert world.desired().restart == Restart(RUN.run, 2)


def test_restart_is_refused_when_other_objects_hide_the_generations(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page has 1,000 keys in UTF-8 order, so a million objects can precede the records."""

    def too_many(*_: Any) -> int:
        pages = ({"Contents": [{"Key": f"{number}"}], "IsTruncated": True} for number in range(1000))
        s3 = SimpleNamespace(get_paginator=lambda _: SimpleNamespace(paginate=lambda **_: pages))
        return newest_generation(lambda _: s3, SimpleNamespace(name="demo", control_bucket="control"), RUN.run)

    newest_generation = desired.newest_generation
    monkeypatch.setattr(desired, "newest_generation", too_many)
    code, _, errors = world.call("restart", "demo", "--no-wait")
    assert code == REFUSED
    assert f"s3://control/{control_prefix('demo', RUN.run)}generations/: more than 10 pages of objects" in errors


def test_retry_sends_the_event_that_the_rule_expects(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(verbs.desired, "request_retry", lambda client, name: sent.append(name))
    world.controller(replace(RUNNING, phase="protected", cause=Cause.BOOT_FAILURE, reason="3 nodes terminated"))
    code, output, _ = world.call("retry", "demo", "--no-wait")
    assert (code, output, sent) == (0, "demo: retry requested\n", ["demo"])


def test_a_wait_for_training_ends_at_a_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    value = json.dumps(DesiredState(state="stopped").to_json())
    world.client("ssm").put_parameter(Name=PARAMETER, Type="String", Value=value)
    world.controller(LIMITED)
    code, output, errors = world.call("resume", "demo", "--wait")
    assert (code, output) == (1, "") and "limited: saved and stopped: limits.usd is 10" in errors

    def reach_limit(client: Any, name: str) -> None:
        world.controller(LIMITED)

    monkeypatch.setattr(verbs.desired, "request_retry", reach_limit)
    world.controller(replace(RUNNING, phase="waiting", reason="no gang in 2 attempts"))
    code, output, errors = world.call("retry", "demo")
    assert (code, output) == (1, "") and "is not running after the retry: limited" in errors


@pytest.mark.parametrize(
    ("command", "state", "desired", "text"),
    [
        ("retry", RUNNING, "running", "nothing prevents the run from starting"),
        ("retry", STOPPED, "stopped", "trainstack resume demo"),
        ("retry", replace(RUNNING, phase="ended", cause=Cause.FINISHED), "running", "the run has finished"),
        ("retry", LIMITED, "running", "limits.usd is 10. Remedy: raise it; a retry does not lift a limit"),
        ("restart", LIMITED, "running", "is not training: limited"),
        ("restart", STOPPED, "stopped", "is not training"),
        ("restart", RUNNING, "running", "have not started yet"),
        ("stop", replace(RUNNING, phase="ended", reason="the run ended: finished"), "running", "nothing to stop"),
    ],
)
def test_a_phase_that_does_not_permit_the_command(
    world: World, command: str, state: ControllerState, desired: str, text: str
) -> None:
    world.controller(state)
    if desired == "stopped":
        value = json.dumps(DesiredState(state="stopped").to_json())
        world.client("ssm").put_parameter(Name=PARAMETER, Type="String", Value=value)
    code, output, errors = world.call(command, "demo")
    assert (code, output) == (4, "")
    assert text in errors


def test_an_invalid_desired_state_is_reported_and_replaced(world: World) -> None:
    world.client("ssm").put_parameter(Name=PARAMETER, Type="String", Value='{"state": "paused"}')
    assert "must be one of running, stopped" in world.call("status", "demo")[1]
    assert world.call("resume", "demo")[0] == 0
    assert world.desired().state == "running"


def test_a_wait_is_never_silent_for_five_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now, prints = [0.0], []

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if capsys.readouterr().err:
            prints.append(now[0])

    looks = iter([Look(False, "a")] * 10 + [Look(True, "b")])
    assert wait(lambda: next(looks), 60.0, sleep=sleep, clock=lambda: now[0])
    assert capsys.readouterr().err == "b\n"
    gaps = [later - earlier for earlier, later in zip([0.0, *prints], prints, strict=False)]
    assert max(gaps) <= 5.0 and waiting.POLL_SECONDS < 5.0
    assert not wait(lambda: Look(False, "a"), 5.0, sleep=sleep, clock=lambda: now[0])
