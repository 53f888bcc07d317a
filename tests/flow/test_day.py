"""A day of work with a run, from an empty account to an empty account, using only the commands of `trainstack`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from bootstrap.documents.object_keys import control_prefix
from localcloud.demo.watch import EventLog
from tests.localcloud.core.command_line import NO_MARK, ROOT, Cli
from tests.training.conftest import write_text

CDK = ROOT / "node_modules" / ".bin" / "cdk"
DEADLINE_SECONDS = 300.0
PACKAGES = ("bootstrap", "hardware", "localcloud", "stacks", "training", "trainstack")
RATE, NEW_RATE = 0.0015, 0.0007
NODES = 2
PLUGIN = """#!/bin/sh
# Stands in for the AWS CLI, which starts the Session Manager plugin.
echo "$@" > "$STUB_RECORD"
exit 7
"""
EDITS: dict[str, Any] = {
    "network": {"cidr": "127.94.0.0/16", "zones": ["a", "b"]},  # loopback addresses that the demo does not use
    "storage": {"deletion": "destroy"},
    "training": {
        "run": "day",
        "dataset": "tiny",
        "processes_per_node": 1,
        "config": {
            "steps": 500_000,  # more steps than the test waits for
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
    pytest.mark.slow,  # not in test-flow, because it has not completed yet
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("flow_day"),
    pytest.mark.skipif(not CDK.exists(), reason="node_modules is absent: npm ci"),
]


@dataclass
class Ended:
    """A command that has ended."""

    code: int
    output: str
    errors: str


@dataclass
class Day:
    """A copy of the project, the cloud, and the commands called so far."""

    project: Path
    cloud: Cli
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        return self.project / "config" / "day.yaml"

    def environment(self) -> dict[str, str]:
        path = f"{self.project / 'stubs'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        own = {"PATH": path, "PYTHONPATH": str(self.project), "NO_COLOR": "1"}
        return {**NO_MARK, **own, **self.extra}

    def start(self, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
        """Start a command whose output goes to a file."""
        with log.open("wb") as output:
            return subprocess.Popen(
                self._command(arguments), cwd=self.project, env=self.environment(), stdout=output, stderr=output
            )

    def call(self, *arguments: str) -> Ended:
        """Run a command and return its result."""
        done = subprocess.run(
            self._command(arguments),
            cwd=self.project,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def good(self, *arguments: str) -> str:
        """Run a command that must succeed, and return its standard output."""
        done = self.call(*arguments)
        assert done.code == 0, f"{' '.join(arguments)}: {done}"
        return done.output

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.good("status", "day", "--json"))
        return found

    def wait_for(self, what: str, found: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not (value := found()):
            assert time.monotonic() < deadline, f"waited {DEADLINE_SECONDS} s for {what}: {self.call('why', 'day')}"
            time.sleep(1.0)
        return value

    def training(self, after_generation: int = 0) -> Callable[[], dict[str, Any] | None]:
        """Return a function that returns the status once a later generation has a durable checkpoint."""

        def found() -> dict[str, Any] | None:
            status = self.status()
            generation, saved = status["generation"], status["checkpoint_age_seconds"]
            return status if (generation or 0) > after_generation and saved is not None else None

        return found

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "trainstack", "--local", "--state", str(self.cloud.state), *arguments]


@pytest.fixture
def day(tmp_path: Path) -> Iterator[Day]:
    project = tmp_path / "project"
    (project / "config").mkdir(parents=True)
    (project / "docs").mkdir()
    for name in ("app.py", "cdk.json"):
        shutil.copy(ROOT / name, project)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
    (project / "node_modules").symlink_to(ROOT / "node_modules")
    (project / "stubs").mkdir()
    for name in ("aws", "session-manager-plugin"):
        (project / "stubs" / name).write_text(PLUGIN)
        (project / "stubs" / name).chmod(0o755)
    cloud = Cli(tmp_path / "cloud")
    cloud.good("up", "--port", "0")
    try:
        yield Day(project, cloud, {"STUB_RECORD": str(tmp_path / "ssh")})
    finally:
        cloud.run("down")


def edit(day: Day, learning_rate: float) -> None:
    """Edit the file as a user would."""
    document = {**yaml.safe_load(day.file.read_text()), **EDITS}
    demo = yaml.safe_load((ROOT / "config" / "demo.yaml").read_text())
    document["node"] = demo["node"]
    # A node that is slow on a busy machine must not count as lost, because this would start another generation.
    document["node"]["python"]["wheelhouse"] = "off"  # the emulated nodes have this environment's packages
    document["node"]["supervise"]["heartbeat_timeout_seconds"] = 30.0
    document["capacity"] |= {"placement": "cluster", "gang_timeout_seconds": 120}
    document["training"]["config"]["optimizer"]["learning_rate"] = learning_rate
    day.file.write_text(yaml.safe_dump(document))


def bootstrap(day: Day) -> None:
    """Bootstrap the account for the CDK, once, as docs/runbook.md describes."""
    reach = json.loads(day.cloud.good("env", "--json"))
    command = [str(CDK), "bootstrap", "--context", "config=config/day.yaml"]
    subprocess.run(command, cwd=day.project, env={**day.environment(), **reach}, check=True, capture_output=True)


def test_a_day(day: Day, tmp_path: Path) -> None:
    # Create. Without a terminal, a change that needs approval is rejected until its code is passed.
    day.good("init", str(day.file), "--instance-type", "c7i.2xlarge", "--nodes", str(NODES), "--preset", "demo")
    edit(day, RATE)
    bootstrap(day)
    refused = day.call("up", "config/day.yaml", "--no-follow")
    assert refused.code == 4 and "confirm with --approved" in refused.errors, refused
    day.good("up", "config/day.yaml", "--approved", "30", "--no-follow")
    assert json.loads(day.good("why", "day", "--json"))["cause"] in ("dataset_missing", "")

    # Upload the dataset. The run starts when the upload is complete.
    write_text(day.project / "text")
    stack = day.cloud.client("cloudformation").describe_stacks(StackName="day-StorageStack")["Stacks"][0]
    outputs = {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}
    tokenize = ["--input", "text", "--output", f"s3://{outputs['DatasetBucket']}/datasets", "--name", "tiny"]
    tokenize += ["--workers", "1", "--vocabulary-size", "300", "--validation-share", "0.2"]
    day.good("training", "tokenize", *tokenize)
    follower = day.start(
        "up", "config/day.yaml", log=tmp_path / "follow.log"
    )  # there is nothing to deploy, so it only follows the run
    lines = day.start("events", "day", "--follow", "--kind", "generation_started", log=tmp_path / "events.log")
    first = day.wait_for("a checkpoint", day.training())
    assert first["phase"] == "running" and first["nodes_wanted"] == NODES and first["usd_per_hour"] > 0
    assert json.loads(day.good("why", "day", "--json"))["cause"] == ""

    # Send a notice: the node is replaced, and both commands that follow the run continue.
    victim = first["nodes"][0]["instance_id"]
    day.good("cloud", "interrupt", victim, "--state", str(day.cloud.state), "--notice-seconds", "20")

    def replaced() -> dict[str, Any] | None:
        status = day.training(first["generation"])()
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
    day.good("resume", "day", "--wait")
    resumed = day.wait_for("a checkpoint after the resume", day.training(second["generation"]))
    assert resumed["step"] > stopped["step"]
    day.good("restart", "day")

    # Change the learning rate: the trainers restart in place.
    instances = {each["instance_id"] for each in day.status()["nodes"]}
    before = day.status()["generation"]
    edit(day, NEW_RATE)
    day.good("up", "config/day.yaml", "--no-follow")
    changed = day.wait_for("the changed run", day.training(before))
    follower = day.start("up", "config/day.yaml", log=tmp_path / "follow-again.log")
    assert {each["instance_id"] for each in changed["nodes"]} == instances

    # Open a shell, and request a retry that is not needed.
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

    # A node records that the run has failed, which ends the run. A retry deletes this outcome.
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

    # Remove the billed resources, then the data.
    assert day.call("down", "config/day.yaml").code == 4
    day.good("down", "config/day.yaml", "--yes")
    lines.terminate()
    lines.wait(timeout=60)
    assert json.loads(day.good("zombies", "--json")) == {"zombies": [], "not_examined": []}
    assert day.call("down", "config/day.yaml", "--data", "--yes").code == 4
    day.good("down", "config/day.yaml", "--data", "--allow-destroy", "--yes")
    assert left_over(day) == []


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


def left_over(day: Day) -> list[str]:
    """Return the resources that remain in the account, except those of the bootstrap."""
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
