"""An edit to the learning rate during a run, with the unmodified CDK CLI: diff, deploy, restart in place, destroy."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from bootstrap.documents.object_keys import run_prefix
from localcloud.demo.watch import EventLog
from tests.flow.permissions import UNEXERCISED, Permission, granted, needed
from tests.localcloud.core.command_line import NO_MARK, ROOT, Cli
from tests.training.conftest import write_text

CDK = ROOT / "node_modules" / ".bin" / "cdk"
STACKS = ("NetworkStack", "StorageStack", "TrainingStack", "ObservabilityStack")
DEADLINE_SECONDS = 150.0  # for steps that take a few seconds on an idle machine
PROBLEMS = {"not_implemented", "function_failed", "function_not_run", "event_refused"}
RATE, NEW_RATE = 0.0015, 0.0007
NODES = 2
CHANGES = {
    # Separate addresses, so that the trainers' ports do not conflict with a demo on this machine.
    "network": {"cidr": "127.93.0.0/16", "zones": ["a", "b"]},
    "training": {
        "run": "change",
        "dataset": "tiny",
        "processes_per_node": 1,
        "config": {
            "steps": 500_000,  # more steps than the test waits for, so that the run does not finish
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
}

pytestmark = [
    pytest.mark.flow,
    pytest.mark.timeout(900),  # the first test includes the deployment, possibly on a busy machine
    pytest.mark.xdist_group("flow_change"),
    pytest.mark.skipif(not CDK.exists(), reason="node_modules is absent: npm ci"),
]


@dataclass
class Workplace:
    """A copy of the project, and the cloud used by the tools."""

    project: Path
    cloud: Cli

    @property
    def config(self) -> Path:
        return self.project / "config" / "change.yaml"

    def run(self, *command: str) -> str:
        """Run a command that must succeed; return its output."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        reach = json.loads(self.cloud.good("env", "--json"))
        environment = {**NO_MARK, **reach, "PATH": path, "CDK_DISABLE_CLI_TELEMETRY": "true", "NO_COLOR": "1"}
        with subprocess.Popen(
            command,
            cwd=self.project,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=DEADLINE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
        assert process.returncode == 0, f"{' '.join(command)}\n{output}"
        return output

    def cdk(self, verb: str, *arguments: str, synthesise: bool = False) -> str:
        """Run the CDK on the deployment file, or on the last synthesized assembly."""
        app = ["--context", "config=config/change.yaml"] if synthesise else ["--app", "build/cdk.out"]
        return self.run(str(CDK), verb, *arguments, *app)

    def write_config(self, learning_rate: float) -> None:
        document = {**yaml.safe_load((ROOT / "config" / "demo.yaml").read_text()), **CHANGES}
        # A node that is slow on a busy machine must not count as lost, because this would start another generation.
        document["node"]["supervise"]["heartbeat_timeout_seconds"] = 30.0
        document["training"]["config"]["optimizer"]["learning_rate"] = learning_rate
        self.config.write_text(yaml.safe_dump(document))

    def output(self, stack: str, name: str) -> str:
        described = self.cloud.client("cloudformation").describe_stacks(StackName=f"demo-{stack}")["Stacks"][0]
        return str({entry["OutputKey"]: entry["OutputValue"] for entry in described["Outputs"]}[name])

    def instances(self) -> dict[str, str]:
        """Return the state of each instance, including terminated ones."""
        reservations = self.cloud.client("ec2").describe_instances()["Reservations"]
        return {i["InstanceId"]: i["State"]["Name"] for each in reservations for i in each["Instances"]}

    def running(self) -> set[str]:
        return {identity for identity, state in self.instances().items() if state == "running"}

    def lines_of(self, file: str) -> list[dict[str, Any]]:
        path = self.cloud.state / file
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass
class Run:
    """The nodes' events so far."""

    log: EventLog

    def wait_for(self, what: str, found: Callable[[], Any]) -> Any:
        """Read events until `found` returns a true value; a failed boot ends the wait."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            list(self.log.poll())
            if value := found():
                return value
            assert not self.of("boot_failed"), self.of("boot_failed")
            last = json.dumps(self.log.events[-8:], indent=1)
            assert time.monotonic() < deadline, f"waited {DEADLINE_SECONDS} s for {what}; last events: {last}"
            time.sleep(0.2)

    def of(self, event: str) -> list[dict[str, Any]]:
        return [each for each in self.log.events if each["event"] == event]

    def trainer(self, record: str, since: float = 0.0) -> list[dict[str, Any]]:
        records = [each["record"] for each in self.of("trainer") if each["unix_seconds"] >= since]
        return [each for each in records if each["record"] == record]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    """A copy of the project, so that assets do not change during the test, and an empty cloud."""
    folder = tmp_path_factory.mktemp("change")
    project = folder / "project"
    (project / "config").mkdir(parents=True)
    for name in ("app.py", "cdk.json"):
        shutil.copy(ROOT / name, project)
    for name in ("bootstrap", "hardware", "stacks", "training"):
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
    cloud = Cli(folder / "cloud")
    cloud.good("up", "--port", "0")
    try:
        yield Workplace(project, cloud)
    finally:
        cloud.run("down")


@pytest.fixture(scope="module")
def run(workplace: Workplace) -> Run:
    """A new deployment whose run has a checkpoint."""
    write_text(workplace.project / "text")
    workplace.write_config(RATE)
    workplace.cdk("bootstrap", synthesise=True)
    workplace.cdk("deploy", "NetworkStack", "StorageStack", "--require-approval", "never", "--concurrency", "2")
    datasets = f"s3://{workplace.output('StorageStack', 'DatasetBucket')}/datasets"
    tokenize = ["--input", "text", "--output", datasets, "--name", "tiny", "--workers", "1"]
    tokenize += ["--vocabulary-size", "300", "--validation-share", "0.2"]
    workplace.run(sys.executable, "-m", "training", "tokenize", *tokenize)
    workplace.cdk("deploy", "--all", "--require-approval", "never")
    group = workplace.output("TrainingStack", "LogGroup")
    run = Run(EventLog(workplace.cloud.client("logs"), group))
    run.wait_for("every node in a generation", lambda: len(run.of("generation_started")) == NODES)
    run.wait_for("a checkpoint", lambda: run.trainer("checkpoint"))
    return run


@dataclass
class Change:
    """The effect of a deployment with another learning rate."""

    diff: str
    instances: set[str]
    first: list[dict[str, Any]]
    second: list[dict[str, Any]]
    start: dict[str, Any]
    step: dict[str, Any]


@pytest.fixture(scope="module")
def unchanged(workplace: Workplace, run: Run) -> str:
    return workplace.cdk("diff", "--method=change-set")


@pytest.fixture(scope="module")
def change(workplace: Workplace, run: Run, unchanged: str) -> Change:
    """The edit, its diff, its deployment, and the new generation after its first steps."""
    instances = workplace.running()
    first = run.of("generation_started")
    workplace.write_config(NEW_RATE)
    diff = workplace.cdk("diff", "--method=change-set", synthesise=True)
    workplace.cdk("deploy", "TrainingStack", "--exclusively", "--require-approval", "never")

    def second() -> list[dict[str, Any]]:
        return [each for each in run.of("generation_started") if each["run_digest"] != first[0]["run_digest"]]

    run.wait_for("every node in a generation of the changed run", lambda: len(second()) == NODES)
    since = min(each["unix_seconds"] for each in second())
    step = run.wait_for("steps of the changed run", lambda: run.trainer("step", since))[0]
    return Change(diff, instances, first, second(), run.trainer("start", since)[0], step)


@pytest.fixture(scope="module")
def interrupted(workplace: Workplace, run: Run, change: Change) -> set[str]:
    """Interrupt an instance with notice, and return the nodes of the generation that contains its replacement."""
    (victim, *_) = sorted(workplace.running())
    workplace.cloud.good("interrupt", victim, "--notice-seconds", "20")
    last = max(each["generation"] for each in change.second)

    def complete() -> set[str]:
        later = [each for each in run.of("generation_started") if each["generation"] > last]
        newest = max((each["generation"] for each in later), default=0)
        nodes = {each["instance_id"] for each in later if each["generation"] == newest}
        return nodes if len(nodes) == NODES and victim not in nodes else set()

    found: set[str] = run.wait_for("every node in a generation without the interrupted instance", complete)
    return found


@dataclass
class Destroyed:
    """The state before and after `cdk destroy`."""

    before: set[str]
    after: set[str]
    checkpoints: str
    problems_before: list[dict[str, Any]]
    permissions: set[Permission]


@pytest.fixture(scope="module")
def destroyed(workplace: Workplace, interrupted: set[str]) -> Destroyed:
    s3 = workplace.cloud.client("s3")

    def buckets() -> set[str]:
        return {bucket["Name"] for bucket in s3.list_buckets()["Buckets"]}

    before, checkpoints = buckets(), workplace.output("StorageStack", "CheckpointBucket")
    problems = workplace.lines_of("calls.jsonl")
    problems += [each for each in workplace.lines_of("records.jsonl") if each["kind"] in PROBLEMS]
    permissions = granted(workplace.cloud, "demo-TrainingStack")
    workplace.cdk("destroy", "--all", "--force")
    return Destroyed(before, buckets(), checkpoints, problems, permissions)


def changed_resources(diff: str) -> list[str]:
    """Return type and logical ID of each resource of a diff; details of resources are indented."""
    return re.findall(r"^\[[-+~]\] (\S+ \S+)", diff, re.MULTILINE)


def test_deployed_run_has_no_differences(unchanged: str) -> None:
    assert changed_resources(unchanged) == []
    assert unchanged.count("There were no differences") == len(STACKS)
    assert unchanged.count("create a read-only change set") == len(STACKS)


def test_learning_rate_changes_the_run_parameter_only(change: Change) -> None:
    assert changed_resources(change.diff) == ["AWS::SSM::Parameter Run"]
    assert "Number of stacks with differences: 1" in change.diff
    assert str(RATE) in change.diff
    assert str(NEW_RATE) in change.diff


def test_trainer_restarts_in_place(workplace: Workplace, change: Change) -> None:
    assert len(change.instances) == NODES
    assert set(workplace.instances()) == change.instances  # no other instance was launched
    assert {each["instance_id"] for each in change.first} == change.instances
    assert {each["instance_id"] for each in change.second} == change.instances
    assert {each["generation"] for each in change.second} == {change.first[-1]["generation"] + 1}


def test_changed_run_resumes_at_the_last_step(run: Run, change: Change) -> None:
    ended = [each for each in run.of("generation_ended") if each["generation"] == change.first[-1]["generation"]]
    assert {each["outcome"] for each in ended} == {"stopped"}
    assert change.start["resumed_from_step"] == ended[0]["step"] > 0
    assert change.step["step"] > ended[0]["step"]
    assert change.step["learning_rate"] == pytest.approx(NEW_RATE)


def test_destroy_terminates_the_instances_and_deletes_the_stacks(workplace: Workplace, destroyed: Destroyed) -> None:
    described = workplace.cloud.client("cloudformation").describe_stacks()["Stacks"]
    assert [stack["StackName"] for stack in described] == ["CDKToolkit"]
    assert set(workplace.instances().values()) == {"terminated"}
    daemon = int(json.loads((workplace.cloud.state / "cloud.json").read_text())["pid"])
    left = [each for each in workplace.cloud.processes() if each.pid != daemon]
    assert [(each.pid, each.cmdline()) for each in left] == []
    assert psutil.pid_exists(daemon)


def test_destroy_keeps_the_data_without_the_context_flag(workplace: Workplace, destroyed: Destroyed) -> None:
    assert destroyed.after == destroyed.before
    kept = workplace.cloud.client("s3").list_objects_v2(
        Bucket=destroyed.checkpoints, Prefix=f"{run_prefix('demo', 'change')}/checkpoints/log/"
    )
    assert kept["KeyCount"] > 0


def test_no_call_was_denied_or_missing_and_every_event_was_delivered(destroyed: Destroyed) -> None:
    assert destroyed.problems_before == []


def test_nodes_keep_their_permissions_until_they_are_terminated(workplace: Workplace, destroyed: Destroyed) -> None:
    denied = workplace.lines_of("calls.jsonl")
    assert [each for each in denied if "-NodeRole" in each["principal"]] == []


def test_every_permission_of_nodes_and_controller_is_needed_or_has_a_reason(
    workplace: Workplace, destroyed: Destroyed
) -> None:
    """Without any one of the needed permissions, a call of this run is denied. Add a call or a reason for a new one."""
    assert destroyed.permissions - needed(workplace.cloud) == set(UNEXERCISED)
