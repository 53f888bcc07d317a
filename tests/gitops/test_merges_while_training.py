"""Merges that are carried while machines train: which of them the trainer notices, and that none ends the run."""

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


def running(place: Workplace) -> set[str]:
    pages = place.cloud.client("ec2").describe_instances()["Reservations"]
    machines = [one for page in pages for one in page["Instances"]]
    return {one["InstanceId"] for one in machines if one["State"]["Name"] in ("pending", "running")}


def output(place: Workplace, stack: str, name: str) -> str:
    described: dict[str, Any] = place.cloud.client("cloudformation").describe_stacks(StackName=f"demo-{stack}")
    return next(str(one["OutputValue"]) for one in described["Stacks"][0]["Outputs"] if one["OutputKey"] == name)


@pytest.fixture
def repository(workplace: Workplace) -> Repository:
    """A repository whose deployment trains from the first merge on: its dataset is there before."""
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
    """The run, once every machine is in the gang and a checkpoint is there."""
    run = Run(EventLog(repository.place.cloud.client("logs"), output(repository.place, "TrainingStack", "LogGroup")))
    run.wait_for("every node in a generation", lambda: len(run.of("generation_started")) == NODES)
    run.wait_for("a checkpoint", lambda: run.trainer("checkpoint"))
    return run


def trains_on(run: Run, generations: int, since: float) -> None:
    """Wait for steps after a moment, and hold that no gang was formed meanwhile."""
    run.wait_for("steps after the merge", lambda: run.trainer("step", since))
    assert len(run.of("generation_started")) == generations


def test_machines_train_through_a_sequence_of_merges(repository: Repository, run: Run) -> None:
    machines = running(repository.place)
    assert len(machines) == NODES

    # A hyperparameter: the trainers start again on the same machines, where they were.
    repository.merge("Learn more slowly", training__config__optimizer={"learning_rate": RATE})
    slower = repository.deliver("deploy")
    assert slower.exit_code == 0, slower.output
    run.wait_for("a gang of the changed run", lambda: len(run.of("generation_started")) == 2 * NODES)
    since = max(one["unix_seconds"] for one in run.of("generation_started"))
    step = run.wait_for("steps of the changed run", lambda: run.trainer("step", since))[0]
    start = run.trainer("start")[-1]
    assert start["resumed_from_step"] > 0 and step["learning_rate"] == pytest.approx(RATE)
    assert running(repository.place) == machines

    # An instance type more: for machines to come; those that are there train on.
    types = [*repository.config["capacity"]["instance_types"], "m6i.2xlarge"]
    repository.merge("Take another type too", capacity__instance_types=types)
    added = repository.deliver("deploy")
    assert added.exit_code == 0, added.output
    trains_on(run, 2 * NODES, time.time())
    assert running(repository.place) == machines

    # A way out of the network: stopped at the gate.
    repository.merge("Open the network", network__nat=True)
    stopped = repository.deliver("deploy")
    assert stopped.exit_code == 3, stopped.output
    trains_on(run, 2 * NODES, time.time())
    repository.revert()

    # Agreed to by mistake, and refused by AWS: put back, and the run of before never stopped.
    repository.merge("Give nodes a policy", node__extra_policies=[NO_POLICY])
    failed = repository.deliver("deploy", "--approved", "40")
    assert failed.exit_code == 1, failed.output
    trains_on(run, 2 * NODES, time.time())
    assert running(repository.place) == machines
    assert not run.of("generation_ended")[NODES:], "a trainer ended after the restart for the hyperparameter"
