"""A day of work with a run, from an empty account to an empty account, with the commands of `trainstack` only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from bootstrap.documents.object_keys import control_prefix
from localcloud.demo.watch import EventLog
from tests.flow.user_project import CDK, UserProject, user_project
from tests.training.conftest import write_text

RATE, NEW_RATE = 0.0015, 0.0007
NODES = 2
PLUGIN = """#!/bin/sh
# Stands in for the AWS CLI, which starts the Session Manager plugin.
echo "$@" > "$STUB_RECORD"
exit 7
"""
EDITS: dict[str, Any] = {
    "network": {"cidr": "127.94.0.0/16", "zones": ["a", "b"]},  # other loopback addresses than the demo's
    "storage": {"deletion": "destroy"},
    "training": {
        "run": "day",
        "dataset": "tiny",
        "processes_per_node": 1,
        "config": {
            "steps": 500_000,  # more than the test waits for
            "log_interval_steps": 50,
            "global_batch_size": 4,
            "micro_batch_size": 2,
            "threads": 1,
            "model": {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 64, "sequence_length": 64},
            "optimizer": {"learning_rate": RATE},
            "schedule": {"kind": "constant", "warmup_steps": 10},
            "checkpoint": {"interval_steps": 100},
            "validation": {"interval_steps": 100_000, "batches": 2},
        },
    },
    "observability": {"log_retention_days": 7},
}

pytestmark = [
    pytest.mark.flow,
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("flow_day"),
    pytest.mark.skipif(not CDK.exists(), reason="node_modules is absent: npm ci"),
]


@pytest.fixture
def day(tmp_path: Path) -> Iterator[UserProject]:
    with user_project(tmp_path, "day") as project:
        stubs = project.folder / "stubs"
        stubs.mkdir()
        for name in ("aws", "session-manager-plugin"):
            (stubs / name).write_text(PLUGIN)
            (stubs / name).chmod(0o755)
        project.extra["STUB_RECORD"] = str(tmp_path / "ssh")
        yield project


def training(day: UserProject, after_generation: int = 0) -> Callable[[], dict[str, Any] | None]:
    """Return a function that returns the status once a later generation has a durable checkpoint."""

    def found() -> dict[str, Any] | None:
        status = day.status()
        generation, saved = status["generation"], status["checkpoint_age_seconds"]
        return status if (generation or 0) > after_generation and saved is not None else None

    return found


def edit(day: UserProject, learning_rate: float) -> None:
    """Set the settings of the day, and a learning rate."""
    edits = deepcopy(EDITS)
    edits["training"]["config"]["optimizer"]["learning_rate"] = learning_rate
    day.edit(edits)


def test_a_day(day: UserProject, tmp_path: Path) -> None:
    # Create. Without a terminal, a change that needs approval is refused until its code is given.
    day.good("init", str(day.file), "--instance-type", "c7i.2xlarge", "--nodes", str(NODES), "--preset", "demo")
    edit(day, RATE)
    day.bootstrap()
    refused = day.call("up", "config/day.yaml", "--no-follow")
    assert refused.code == 4 and "confirm with --approved" in refused.errors, refused
    day.good("up", "config/day.yaml", "--approved", "30", "--no-follow")
    assert json.loads(day.good("why", "day", "--json"))["cause"] in ("dataset_missing", "")

    # The dataset follows. The run starts when it arrives.
    write_text(day.folder / "text")
    outputs = day.outputs()
    tokenize = ["--input", "text", "--output", f"s3://{outputs['DatasetBucket']}/datasets", "--name", "tiny"]
    tokenize += ["--workers", "1", "--vocabulary-size", "300", "--validation-share", "0.2"]
    day.good("training", "tokenize", *tokenize)
    follower = day.start("up", "config/day.yaml", log=tmp_path / "follow.log")  # nothing to deploy: only follows
    lines = day.start("events", "day", "--follow", "--kind", "generation_started", log=tmp_path / "events.log")
    first = day.wait_for("a checkpoint", training(day))
    assert first["phase"] == "running" and first["nodes_wanted"] == NODES and first["usd_per_hour"] > 0
    assert json.loads(day.good("why", "day", "--json"))["cause"] == ""

    # A notice: the node is replaced, and both commands that follow continue.
    victim = first["nodes"][0]["instance_id"]
    day.good("cloud", "interrupt", victim, "--state", str(day.cloud.state), "--notice-seconds", "20")

    def replaced() -> dict[str, Any] | None:
        status = training(day, first["generation"])()
        names = [] if status is None else [each["instance_id"] for each in status["nodes"] if each["rank"] is not None]
        return status if len(names) == NODES and victim not in names else None

    second = day.wait_for("the replacement to train", replaced)
    (newcomer,) = {each["instance_id"] for each in second["nodes"]} - {each["instance_id"] for each in first["nodes"]}
    day.wait_for("the replacement's events", lambda: newcomer in (tmp_path / "events.log").read_text())
    assert "loss" in day.good("events", "day", "--kind", "trainer")
    assert day.call("logs", "day", "--rank", "0").code == 0

    # Stop, and resume.
    day.good("stop", "day")
    assert follower.wait(timeout=60) == 0 and "trainstack resume day" in (tmp_path / "follow.log").read_text()
    stopped = day.status()
    assert (stopped["phase"], stopped["nodes"]) == ("stopped", [])
    assert stopped["checkpoint_step"] == stopped["step"]
    assert json.loads(day.good("why", "day", "--json"))["cause"] == "stopped"

    # The ledger contains every instance, and the interrupted one is free.
    costs = day.wait_for("the ledger to equal the bill", lambda: equal_costs(day))
    assert costs[victim] == 0.0 and len(costs) == NODES + 1
    assert "other resources, estimated per month" in day.good("cost", "day")
    day.good("resume", "day", "--wait")
    resumed = day.wait_for("a checkpoint after the resume", training(day, second["generation"]))
    assert resumed["step"] > stopped["step"]
    day.good("restart", "day")

    # A learning rate: the trainers restart in place.
    instances = {each["instance_id"] for each in day.status()["nodes"]}
    before = day.status()["generation"]
    edit(day, NEW_RATE)
    day.good("up", "config/day.yaml", "--no-follow")
    changed = day.wait_for("the changed run", training(day, before))
    follower = day.start("up", "config/day.yaml", log=tmp_path / "follow-again.log")
    assert {each["instance_id"] for each in changed["nodes"]} == instances

    # A shell, and a retry that is not needed.
    assert day.call("ssh", "day", "0", "--", "nvidia-smi").code == 7
    assert "start-session" in (tmp_path / "ssh").read_text() and "nvidia-smi" in (tmp_path / "ssh").read_text()
    assert day.call("retry", "day").code == 4

    # The nodes' reports: no generation lost a step.
    log = EventLog(day.cloud.client("logs"), "/trainstack/day")
    list(log.poll())
    assert lost_steps(log.events) == 0
    rates = {each["record"].get("learning_rate") for each in log.events if each["event"] == "trainer"}
    assert NEW_RATE in {round(rate, 6) for rate in rates if rate}

    day.wait_for("the follower", lambda: "running: step" in (tmp_path / "follow-again.log").read_text())

    # A node records that the run has failed, which ends it. A retry lifts the outcome.
    outcome = {
        "run": "day",
        "run_digest": changed["run_digest"],
        "outcome": "failed",
        "step": 1,
        "message": "rank 0: x",
    }
    control, key = outputs["ControlBucket"], control_prefix("day", "day") + "outcome.json"
    day.cloud.client("s3").put_object(Bucket=control, Key=key, Body=json.dumps(outcome).encode())
    day.wait_for("the end of the run", lambda: (found := day.status())["phase"] == "ended" and not found["nodes"])
    assert json.loads(day.good("why", "day", "--json"))["cause"] == "training_failed"
    assert follower.wait(timeout=60) == 1  # it reports the failed run
    day.good("retry", "day")
    assert day.status()["phase"] == "running"

    # By now, more instances have been billed.
    total = json.loads(day.good("cost", "day", "--json"))[0]["total"]
    assert total["usd"] > sum(costs.values()) and total["instances"] > len(costs)
    assert total["unpriced_seconds"] == 0.0

    # Remove what is billed, then the data.
    assert day.call("down", "config/day.yaml").code == 4
    day.good("down", "config/day.yaml", "--yes")
    lines.terminate()
    lines.wait(timeout=60)
    assert json.loads(day.good("zombies", "--json")) == {"zombies": [], "not_examined": []}
    assert day.call("down", "config/day.yaml", "--data", "--yes").code == 4
    day.good("down", "config/day.yaml", "--data", "--allow-destroy", "--yes")
    assert left_over(day) == []


def equal_costs(day: UserProject) -> dict[str, float] | None:
    """Return the cost of each instance according to `trainstack cost`, once the sum equals the bill.

    The bill follows from the times and prices that the embedded cloud has recorded. Its records contain the end of a
    termination, but not the start, after which AWS does not bill an instance.
    """
    lines = (day.cloud.state / "records.jsonl").read_text().splitlines()
    ended = [record for record in map(json.loads, lines) if record["kind"] == "instance_ended"]
    (result,) = json.loads(day.good("cost", "day", "--by", "node", "--json"))
    found = {each["label"].split()[0]: each["usd"] for each in result["groups"]}
    bill = sum(spot_usd(day, record) for record in ended)
    is_equal = sum(found.values()) == pytest.approx(bill, rel=0.03)
    return found if is_equal and set(found) == {record["instance_id"] for record in ended} else None


def spot_usd(day: UserProject, ended: dict[str, Any]) -> float:
    """Return AWS's charge for an instance that lived for less than an hour."""
    seconds = ended["unix_seconds"] - ended["launched_unix_seconds"]
    assert ended["market"] == "spot" and seconds < 3600.0
    if ended["reason"] == "Server.SpotInstanceTermination":
        return 0.0
    answer = day.cloud.client("ec2").describe_spot_price_history(
        InstanceTypes=[ended["instance_type"]],
        AvailabilityZone=ended["zone"],
        ProductDescriptions=["Linux/UNIX"],
    )
    (price,) = {float(each["SpotPrice"]) for each in answer["SpotPriceHistory"]}
    return price * max(seconds, 60.0) / 3600.0


def lost_steps(events: list[dict[str, Any]]) -> int:
    """Return the steps that were trained before a generation ended, and that the next one did not resume from."""
    reached = lost = starts = 0
    for each in sorted(events, key=lambda event: event["unix_seconds"]):
        if each["event"] == "generation_ended":
            reached = max(reached, each["step"])
        elif each["event"] == "trainer" and each["record"]["record"] == "start" and reached:
            lost += reached - (each["record"]["resumed_from_step"] or 0)
            starts += 1
    assert starts >= 4  # after the notice, the resume, the restart and the edit
    return lost


def left_over(day: UserProject) -> list[str]:
    """Return what remains in the account apart from the bootstrap."""
    client = day.cloud.client
    stacks = [each["StackName"] for each in client("cloudformation").describe_stacks()["Stacks"]]
    reservations = client("ec2").describe_instances()["Reservations"]
    machines = [each for group in reservations for each in group["Instances"] if each["State"]["Name"] != "terminated"]
    parameters = client("ssm").describe_parameters()["Parameters"]
    groups = client("logs").describe_log_groups()["logGroups"]
    found = [name for name in stacks if name != "CDKToolkit"]
    found += [each["InstanceId"] for each in machines]
    found += [each["Name"] for each in parameters if each["Name"].startswith("/trainstack/")]
    found += [each["logGroupName"] for each in groups if "day" in each["logGroupName"]]
    return found + [each["Name"] for each in client("s3").list_buckets()["Buckets"] if each["Name"].startswith("day-")]
