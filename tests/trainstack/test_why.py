"""Each cause is injected into the run controller and the nodes' records, and `trainstack why` must name it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from moto import mock_aws

from bootstrap.documents.desired_state import DesiredState
from stacks.functions.run_controller.causes import REMEDIES, Cause
from stacks.functions.run_controller.spending import Spending
from tests.stacks.run_controller.test_causes import RECORDED
from tests.stacks.run_controller.test_handler import DOCUMENT, INDEX, STATE, World, fail_to_boot
from tests.trainstack.stacks import create_stack
from trainstack.commands import main
from trainstack.observe.why import FAILURES_PATTERN, SENTENCES, newest

GROUP = "/trainstack/x"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with mock_aws():
        made = World()
        cloudformation = boto3.client("cloudformation", region_name="us-east-1")
        outputs = {"LogGroup": GROUP, "RunParameter": "/trainstack/x/run"}
        create_stack(cloudformation, "x-TrainingStack", outputs)
        buckets = {"CheckpointBucket": "checkpoints", "ControlBucket": "control", "DatasetBucket": "datasets"}
        create_stack(cloudformation, "x-StorageStack", buckets)
        boto3.client("logs", region_name="us-east-1").create_log_group(logGroupName=GROUP)
        yield made


def why(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["why", "x", "--json"])
    output, errors = capsys.readouterr()
    assert ended.value.code == 0, errors
    found: dict[str, Any] = json.loads(output)
    return found


def launch_fails(cause: Cause) -> Callable[[World], str]:
    """Let all launches fail with a message that AWS has returned for this cause."""

    def inject(world: World) -> str:
        message = next(each for found, each, _ in RECORDED if found is cause)
        world.document()
        world.step(1000.0)
        assert world.autoscaling.group is not None
        world.autoscaling.group["Instances"] = []
        world.autoscaling.activities = [
            {
                "Description": f"Launching a new EC2 instance.  Status Reason: {message}",
                "StartTime": datetime.fromtimestamp(1010.0, UTC),
                "StatusCode": "Failed",
                "StatusMessage": message,
            }
        ]
        world.step(1060.0)
        return message

    return inject


def dataset_is_missing(world: World) -> str:
    world.s3.delete_object(Bucket="datasets", Key=INDEX)
    world.document()
    world.step()
    return f"s3://datasets/{INDEX}"


def boots_fail(world: World) -> str:
    report = {"step": "gpus", "message": "7 of 8 GPUs", "remedy": "terminate the instance", "output_tail": "x"}
    fail_to_boot(world, report=json.dumps(report).encode())
    return "gpus: 7 of 8 GPUs"


def gang_is_incomplete(world: World) -> str:
    world.document()
    world.step(1000.0)
    assert world.autoscaling.group is not None
    world.autoscaling.group["Instances"] = world.autoscaling.group["Instances"][:1]
    world.step(1060.0)
    return "1 of 2 nodes in service"


def training_fails(world: World) -> str:
    world.document()
    world.step()
    logs = boto3.client("logs", region_name="us-east-1")
    now = time.time()
    reports = [
        (now - 40, 1, "i-0", "rank 0: an older error"),
        (now - 9, 2, "i-1", "rank 1: the connection was closed by a peer"),
        (now - 10, 2, "i-0", "rank 0: CUDA error: an illegal memory access was encountered"),
    ]
    for moment, generation, node, message in reports:
        event = {"event": "generation_ended", "outcome": "failed", "generation": generation, "message": message}
        entry = {
            "timestamp": int(moment * 1000),
            "message": json.dumps({**event, "instance_id": node, "unix_seconds": moment}),
        }
        if not logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=node)["logStreams"]:
            logs.create_log_stream(logGroupName=GROUP, logStreamName=node)
        logs.put_log_events(logGroupName=GROUP, logStreamName=node, logEvents=[entry])
    outcome = {"outcome": "failed", "step": 9, "message": "3 failures without a new checkpoint"}
    world.put("outcome.json", {"run": "run-1", "run_digest": DOCUMENT.digest(), **outcome})
    world.step()
    return "rank 0: CUDA error: an illegal memory access was encountered (generation 2 on i-0)"


def limit_is_reached(world: World) -> str:
    world.document()
    world.step()
    world.ledger.spent = Spending(usd=100.0, on_demand_usd=300.0, usd_per_hour=2.0, run_hours=50.0)
    world.step()
    return "have cost 100.00 USD, and limits.usd is 50"


def operator_stops(world: World) -> str:
    world.document()
    world.step()
    world.desire(json.dumps(DesiredState(state="stopped", requested_by="arn:aws:iam::1:user/ada").to_json()))
    world.step()
    return "stopped by arn:aws:iam::1:user/ada"


def run_finishes(world: World) -> str:
    world.document()
    world.put("outcome.json", {"run": "run-1", "run_digest": DOCUMENT.digest(), "outcome": "finished", "step": 9})
    world.step()
    return "the run ended: finished"


INJECTIONS: dict[Cause, Callable[[World], str]] = {
    **{
        cause: launch_fails(cause)
        for cause in (Cause.PERMISSION, Cause.CONFIGURATION, Cause.QUOTA, Cause.PRICE, Cause.CAPACITY)
    },
    Cause.DATASET_MISSING: dataset_is_missing,
    Cause.BOOT_FAILURE: boots_fail,
    Cause.GANG_INCOMPLETE: gang_is_incomplete,
    Cause.TRAINING_FAILED: training_fails,
    Cause.SPEND_LIMIT: limit_is_reached,
    Cause.STOPPED: operator_stops,
    Cause.FINISHED: run_finishes,
}


def test_each_known_cause_is_injected_and_has_a_sentence_and_a_remedy() -> None:
    assert set(INJECTIONS) == set(Cause) - {Cause.UNKNOWN} and len(INJECTIONS) == 12
    assert set(SENTENCES) == set(REMEDIES) == set(Cause)


@pytest.mark.parametrize("cause", INJECTIONS)
def test_the_injected_cause_is_named(world: World, cause: Cause, capsys: pytest.CaptureFixture[str]) -> None:
    evidence = INJECTIONS[cause](world)
    found = why(capsys)
    assert (found["cause"], found["sentence"]) == (cause, SENTENCES[cause])
    assert found["remedy"] == REMEDIES[cause]
    assert evidence in "\n".join(found["evidence"])


def test_an_operators_stop_is_named_before_the_controller_follows(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.document()
    world.step()
    world.desire(json.dumps(DesiredState(state="stopped", requested_by="arn:aws:iam::1:user/ada").to_json()))
    found = why(capsys)
    assert (found["phase"], found["cause"]) == ("stopping", "stopped")


def test_ranked_zones_are_evidence(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.document()
    world.step(1000.0)
    state = json.loads(world.s3.get_object(Bucket="control", Key=STATE)["Body"].read())
    assert not any(each.startswith("zones:") for each in why(capsys)["evidence"])
    state["choice"] = "by cost: us-east-1b 0.4000 USD/h"
    world.s3.put_object(Bucket="control", Key=STATE, Body=json.dumps(state).encode())
    assert "zones: by cost: us-east-1b 0.4000 USD/h" in why(capsys)["evidence"]


def test_a_run_with_all_its_nodes_has_no_cause(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.document()
    world.step(1000.0)
    world.step(1060.0)
    found = why(capsys)
    assert (found["cause"], found["remedy"], found["phase"]) == ("", "", "running")


def test_no_cause_of_an_unknown_message_is_invented(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.document()
    world.step(1000.0)
    world.put(
        "controller.json",
        {
            **json.loads(world.s3.get_object(Bucket="control", Key=STATE)["Body"].read()),
            "cause": "unknown",
            "problem": "Something new",
        },
    )
    found = why(capsys)
    assert found["cause"] == "unknown" and "message: Something new" in found["evidence"]


@pytest.mark.parametrize("text", ["x", "[]", '{"event": "generation_ended"}', '{"event": 3, "outcome": "failed"}'])
def test_text_that_is_not_a_failure_is_ignored(text: str) -> None:
    assert newest([text]) is None
    assert "generation_ended" in FAILURES_PATTERN
