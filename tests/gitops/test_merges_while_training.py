"""Merges that are deployed during training: none ends the run, and only one restarts the trainer."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest
import yaml

from localcloud.demo.watch import EventLog
from tests.deploy.conftest import CDK, ROOT, Workplace
from tests.flow.test_change import CHANGES, NODES, Run
from tests.training.conftest import write_text

from .conftest import Repository, versioned

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not CDK.exists(), reason="node_modules is absent: npm ci"),
]
NO_POLICY = "arn:aws:iam::aws:policy/NoSuchPolicy"
RATE = 0.0007


def running(workplace: Workplace) -> set[str]:
    pages = workplace.cloud.client("ec2").describe_instances()["Reservations"]
    instances = [one for page in pages for one in page["Instances"]]
    return {one["InstanceId"] for one in instances if one["State"]["Name"] in ("pending", "running")}


def output(workplace: Workplace, stack: str, name: str) -> str:
    described: dict[str, Any] = workplace.cloud.client("cloudformation").describe_stacks(StackName=f"demo-{stack}")
    return next(str(one["OutputValue"]) for one in described["Stacks"][0]["Outputs"] if one["OutputKey"] == name)


@pytest.fixture
def repository(workplace: Workplace) -> Repository:
    """A repository whose deployment trains from the first merge on, on an existing dataset."""
    config = {**yaml.safe_load((ROOT / "config" / "demo.yaml").read_text()), **yaml.safe_load(yaml.safe_dump(CHANGES))}
    config["network"]["cidr"] = "127.95.0.0/16"
    config["node"]["supervise"]["heartbeat_timeout_seconds"] = 30.0
    repository = versioned(workplace, config)
    repository.merge("Train a small model")
    assert workplace.cdk("deploy", "StorageStack", "--require-approval", "never").exit_code == 0
    write_text(workplace.project / "build" / "text")
    datasets = f"s3://{output(workplace, 'StorageStack', 'DatasetBucket')}/datasets"
    command = [sys.executable, "-m", "training", "tokenize", "--input", "build/text", "--output", datasets]
    made = repository.run(*command, "--name", "tiny", "--workers", "1", "--vocabulary-size", "300")
    assert made.exit_code == 0, made.output
    first = repository.deliver("deploy", "--approved", "40")
    assert first.exit_code == 0, first.output
    return repository


@pytest.fixture
def run(repository: Repository) -> Run:
    """The run, once every node is in the gang and a checkpoint exists."""
    run = Run(
        EventLog(repository.workplace.cloud.client("logs"), output(repository.workplace, "TrainingStack", "LogGroup"))
    )
    run.wait_for("every node in a generation", lambda: len(run.of("generation_started")) == NODES)
    run.wait_for("a checkpoint", lambda: run.trainer("checkpoint"))
    return run


def keeps_training(run: Run, generations: int, since: float) -> None:
    """Wait for steps after a point in time, and check that no new generation started."""
    run.wait_for("steps after the merge", lambda: run.trainer("step", since))
    assert len(run.of("generation_started")) == generations


def test_nodes_train_through_a_sequence_of_merges(repository: Repository, run: Run) -> None:
    instances = running(repository.workplace)
    assert len(instances) == NODES

    # A hyperparameter: the trainers restart on the same instances and resume from their checkpoint.
    repository.merge("Learn more slowly", training__config__optimizer={"learning_rate": RATE})
    slower = repository.deliver("deploy")
    assert slower.exit_code == 0, slower.output
    run.wait_for("a gang of the changed run", lambda: len(run.of("generation_started")) == 2 * NODES)
    since = max(one["unix_seconds"] for one in run.of("generation_started"))
    step = run.wait_for("steps of the changed run", lambda: run.trainer("step", since))[0]
    start = run.trainer("start")[-1]
    assert start["resumed_from_step"] > 0 and step["learning_rate"] == pytest.approx(RATE)
    assert running(repository.workplace) == instances

    # Another instance type: applies to new nodes; existing nodes keep training.
    types = [*repository.config["capacity"]["instance_types"], "m6i.2xlarge"]
    repository.merge("Take another type too", capacity__instance_types=types)
    added = repository.deliver("deploy")
    assert added.exit_code == 0, added.output
    keeps_training(run, 2 * NODES, time.time())
    assert running(repository.workplace) == instances

    # A NAT gateway: stopped at the gate.
    repository.merge("Open the network", network__nat=True)
    stopped = repository.deliver("deploy")
    assert stopped.exit_code == 3, stopped.output
    keeps_training(run, 2 * NODES, time.time())
    repository.revert()

    # Approved by mistake, and AWS rejects it: rolled back, and the run never stops.
    repository.merge("Give nodes a policy", node__extra_policies=[NO_POLICY])
    failed = repository.deliver("deploy", "--approved", "40")
    assert failed.exit_code == 1, failed.output
    keeps_training(run, 2 * NODES, time.time())
    assert running(repository.workplace) == instances
    assert not run.of("generation_ended")[NODES:], "a trainer ended after the restart for the hyperparameter"
