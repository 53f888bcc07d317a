"""Pods as processes, with control records in S3: how they join, leave and end, and their exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bootstrap.errors import BootstrapError
from bootstrap.kubernetes import exit_codes
from bootstrap.kubernetes.pod import read_pod
from tests.bootstrap.account import Account
from tests.kubernetes.cluster import LONG, Cluster

UID = "0f8fad5b-d9cb-469f-a165-70867728950e"
ENVIRONMENT = {
    "TRAINSTACK_POD_NAME": "run-0-x",
    "TRAINSTACK_POD_UID": UID,
    "TRAINSTACK_POD_ADDRESS": "10.0.0.1",
    "JOB_COMPLETION_INDEX": "3",
    "TRAINSTACK_GRACE_SECONDS": "120",
}


@pytest.fixture
def cluster(account: Account, tmp_path: Path, stand_in: str) -> Iterator[Cluster]:
    code = account.put_code({"training/__init__.py": "", "training/__main__.py": stand_in})
    account.put_dataset({"train-00000.bin": b"\1\0" * 100})
    made = Cluster(account, tmp_path, code)
    yield made
    for pod in made.kubelet.pods:
        pod.kill()


def test_pods_finish_a_run_and_exit_with_0(cluster: Cluster) -> None:
    cluster.run()
    kubelet = cluster.kubelet
    pods = [kubelet.start(0), kubelet.start(1)]
    kubelet.wait(lambda: all(pod.process.poll() is not None for pod in pods), "the pods to end")
    assert [pod.process.returncode for pod in pods] == [exit_codes.FINISHED] * 2
    assert cluster.outcome()["outcome"] == "finished"
    record = cluster.account.control("generations/00000001.json")
    assert {each["instance_id"] for each in record["members"]} == {pod.instance_id for pod in pods}
    late = kubelet.start(1)
    kubelet.wait(lambda: late.process.poll() is not None, "a late pod to end")
    assert late.process.returncode == exit_codes.FINISHED
    assert not late.events("generation_started"), "the run had ended before it joined"


def test_sigterm_loses_no_step_and_the_replacement_continues(cluster: Cluster) -> None:
    cluster.run(training=LONG)
    kubelet = cluster.kubelet
    kubelet.start(0), kubelet.start(1)
    kubelet.wait(lambda: cluster.steps_done() > 20, "steps")
    leaving = kubelet.pods[1]
    leaving.terminate()
    kubelet.wait(lambda: leaving.process.poll() is not None, "the pod to leave")
    assert leaving.process.returncode == exit_codes.LEFT
    assert leaving.events("generation_ended")[0]["outcome"] == "stopped"
    saved = cluster.saved_step
    assert saved == cluster.steps_done() > 20, "every step that was done is in the checkpoint"
    kubelet.start(1)
    others = [pod for pod in kubelet.pods if pod is not leaving]
    kubelet.wait(lambda: all(pod.process.poll() is not None for pod in others), "the run to end")
    assert [pod.process.returncode for pod in others] == [exit_codes.FINISHED] * 2
    steps = sorted(each["step"] for pod in kubelet.pods for each in pod.trainer("step"))
    assert steps == list(range(1, 401)), "no step was done twice"


def test_sigkill_loses_the_steps_since_the_last_checkpoint(cluster: Cluster) -> None:
    cluster.run(training={"steps": 600, "step_seconds": 0.02, "save_every": 10})
    kubelet = cluster.kubelet
    survivor, killed = kubelet.start(0), kubelet.start(1)
    kubelet.wait(lambda: cluster.steps_done() > 25, "steps")
    killed.kill()
    kubelet.wait(lambda: survivor.events("generation_ended"), "the survivor to notice")
    assert survivor.events("generation_ended")[0]["outcome"] == "lost_peer"
    done, saved = cluster.steps_done(), cluster.saved_step
    replacement = kubelet.start(1)
    kubelet.wait(lambda: survivor.process.poll() is not None, "the run to end")
    kubelet.wait(lambda: replacement.process.poll() is not None, "the replacement to end")
    assert (survivor.process.returncode, replacement.process.returncode) == (0, 0)
    assert 0 <= done - saved <= 10
    starts = [each for pod in kubelet.pods for each in pod.trainer("start") if each["resumed_from_step"]]
    assert min(starts, key=lambda each: each["unix_seconds"])["resumed_from_step"] == saved


def test_a_signal_before_the_first_generation_leaves_at_once(cluster: Cluster) -> None:
    cluster.run()
    pod = cluster.kubelet.start(0)
    cluster.kubelet.wait(lambda: pod.events("supervisor_started"), "the supervisor")
    pod.terminate()
    assert pod.process.wait(60) == exit_codes.LEFT


@pytest.mark.parametrize(
    ("training", "code"),
    [
        ({"steps": 1, "step_seconds": 0.01, "bad": True}, exit_codes.BAD_CONFIGURATION),
        ({"steps": 90, "step_seconds": 0.01, "fail_at": 5}, exit_codes.RUN_FAILED),
    ],
)
def test_a_failed_run_fails_the_job(cluster: Cluster, training: dict[str, Any], code: int) -> None:
    cluster.run(nodes=1, min_nodes=1, training=training)
    pod = cluster.kubelet.start(0)
    cluster.kubelet.wait(lambda: pod.process.poll() is not None, "the pod to end")
    assert pod.process.returncode == code
    assert code in exit_codes.FAIL_JOB


def test_a_run_of_another_job_fails_the_job(cluster: Cluster) -> None:
    cluster.run(nodes=1, min_nodes=1, training={"steps": 90, "step_seconds": 0.01, "superseded": True})
    pod = cluster.kubelet.start(0)
    cluster.kubelet.wait(lambda: pod.process.poll() is not None, "the pod to end")
    assert pod.process.returncode == exit_codes.SUPERSEDED
    assert "another job is training this run" in pod.log
    assert len(pod.events("generation_ended")) == 3


def test_a_failed_boot_counts_as_a_failure_and_is_reported(cluster: Cluster) -> None:
    cluster.run(dataset="missing")
    pod = cluster.kubelet.start(0)
    cluster.kubelet.wait(lambda: pod.process.poll() is not None, "the pod to end")
    assert pod.process.returncode == exit_codes.FAILED_NODE
    key = f"nodes/kubernetes:{pod.instance_id}/boot-failure.json"
    report = json.loads(cluster.account.s3.get_object(Bucket=cluster.account.records, Key=key)["Body"].read())
    assert report["step"] == "staging"


def test_missing_documents_fail_the_job(cluster: Cluster) -> None:
    pod = cluster.kubelet.start(0, TRAINSTACK_DOCUMENTS="/nonexistent")
    assert pod.process.wait(60) == exit_codes.BAD_CONFIGURATION
    assert "/nonexistent/node.json: not found" in pod.log


def test_the_environment_identifies_a_pod() -> None:
    pod = read_pod(ENVIRONMENT)
    assert pod.instance_id == "i-3-0f8fad5bd9cb469fa16570867728950e"
    assert (pod.grace_seconds, pod.market, pod.instance_type) == (120.0, "on-demand", "")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("TRAINSTACK_POD_UID", "", "TRAINSTACK_POD_UID: not set"),
        ("TRAINSTACK_POD_UID", "../x", "must be the UID of a pod"),
        ("TRAINSTACK_POD_ADDRESS", "fe80::1", "must be an IPv4 address"),
        ("JOB_COMPLETION_INDEX", "-1", "must be a completion index"),
        ("TRAINSTACK_GRACE_SECONDS", "5", "must be at least 20 seconds"),
    ],
)
def test_an_invalid_environment_is_refused(variable: str, value: str, message: str) -> None:
    with pytest.raises(BootstrapError, match=message):
        read_pod({**ENVIRONMENT, variable: value})


def test_all_problems_of_an_environment_are_reported() -> None:
    with pytest.raises(BootstrapError, match=r"TRAINSTACK_POD_NAME, .*JOB_COMPLETION_INDEX, TRAINSTACK_GRACE_SECONDS"):
        read_pod({})
