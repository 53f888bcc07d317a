"""The engine `kubernetes`: kubectl's calls and responses in the API's format, and records in moto's S3."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from moto import mock_aws

from bootstrap.documents.object_keys import control_prefix
from bootstrap.kubernetes.pod import instance_id
from trainstack.engines.engine import LogQuery, Submission
from trainstack.kubernetes.command import read_plan
from trainstack.kubernetes.engine import KubernetesEngine
from trainstack.kubernetes.manifests import manifests
from trainstack.session import CommandError

UIDS = ("0f8fad5b-d9cb-469f-a165-70867728950e", "7c9e6679-7425-40de-944b-e07fc1f90ae7")
UP = Submission((), 10, False, False)


def pod(index: int, phase: str = "Running", **status: Any) -> dict[str, Any]:
    labels = {"batch.kubernetes.io/job-completion-index": str(index)}
    metadata = {"name": f"trainstack-x-{index}-abcde", "uid": UIDS[index], "labels": labels}
    return {"metadata": metadata, "spec": {"nodeName": f"ip-10-0-0-{index}"}, "status": {"phase": phase, **status}}


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
}


class Kubectl:
    """Responds to kubectl's calls with objects in memory."""

    def __init__(self) -> None:
        self.job: dict[str, Any] | None = None
        self.pods: list[dict[str, Any]] = []
        self.workloads: list[dict[str, Any]] = []
        self.calls: list[tuple[str, ...]] = []
        self.applied: list[dict[str, Any]] = []

    def __call__(self, *arguments: str, text: str | None = None, seconds: float = 0.0) -> str:
        self.calls.append(arguments)
        match arguments:
            case ("get", "pods", *_):
                return json.dumps({"items": self.pods})
            case ("get", "workloads.kueue.x-k8s.io", *_):
                return json.dumps({"items": self.workloads})
            case ("get", *_):
                return "" if self.job is None else json.dumps(self.job)
            case ("apply", *_):
                self.applied = list(yaml.safe_load_all(text or ""))
            case ("delete", *_):
                self.job, self.pods = None, []
            case ("patch", "workloads.kueue.x-k8s.io", *rest):
                self.workloads[0]["spec"] |= json.loads(rest[2].removeprefix("--patch="))["spec"]
                assert self.job is not None
                self.job["spec"]["suspend"] = not self.workloads[0]["spec"]["active"]
                self.pods = []
            case ("patch", _, _, _, patch, *_):
                assert self.job is not None
                self.job["spec"] |= json.loads(patch.removeprefix("--patch="))["spec"]
                self.pods = []
            case _:
                raise AssertionError(arguments)
        return ""

    def verbs(self) -> list[str]:
        return [each[0] for each in self.calls if each[0] != "get"]


class Place:
    """A deployment file, its engine, and the responses of its cluster and bucket."""

    def __init__(self, directory: Path, s3: Any) -> None:
        self.s3, self.kubectl, self._path = s3, Kubectl(), directory / "x.yaml"
        self.lines: list[tuple[str, ...]] = []
        self.write()

    def write(self, section: dict[str, Any] | None = None, steps: int = 100) -> None:
        document = {
            "name": "x",
            "engine": "kubernetes",
            "kubernetes": {"image": "i:1", "bucket": "bucket", "gpus": 1, "context": "lab", **(section or {})},
            "capacity": {"nodes": 2},
            "training": {"dataset": "text", "config": {"steps": steps, "global_batch_size": 8}},
        }
        self._path.write_text(yaml.safe_dump(document))
        self.plan = read_plan(self._path)

    @property
    def engine(self) -> KubernetesEngine:
        return KubernetesEngine(self.plan, self._path, self.kubectl, self._stream, self.s3)

    def _stream(self, *arguments: str) -> Iterator[str]:
        self.lines.append(arguments)
        yield "line"

    def exists(self, **spec: Any) -> None:
        """Create the job that `up` would create."""
        job = manifests(self.plan, "job", self.plan.section.queue)[-1]
        job["metadata"]["uid"] = "3f2504e0-4f89-41d3-9a0c-0305e82c3301"
        job["spec"] |= spec
        self.kubectl.job = job

    def put(self, name: str, **record: Any) -> None:
        key = control_prefix("x", "run-1") + name
        self.s3.put_object(Bucket="bucket", Key=key, Body=json.dumps(record).encode())

    def report(self, **changes: Any) -> None:
        """Write the status of a run that trains in two pods."""
        values: dict[str, Any] = {
            "run": "run-1",
            "run_digest": self.plan.run.digest(),
            "generation": 3,
            "members": [instance_id(index, uid) for index, uid in enumerate(UIDS)][::-1],
            "step": 40,
            "steps_total": 100,
            "loss": 3.5,
            "validation_loss": None,
            "tokens_per_second": 1000.0,
            "step_seconds": 0.5,
            "mfu": None,
            "checkpoint": {"step": 30, "unix_seconds": 1.0},
            "unix_seconds": 1_800_000_000.0,
        }
        self.put("status.json", **{**values, **changes})

    def end(self, outcome: str, message: str = "") -> None:
        digest = self.plan.run.digest()
        self.put("outcome.json", run="run-1", run_digest=digest, outcome=outcome, step=100, message=message)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        s3 = boto3.client("s3", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
        s3.create_bucket(Bucket="bucket")
        yield Place(tmp_path, s3)


def test_up_uploads_the_bundles_and_applies_the_manifests(place: Place) -> None:
    place.engine.submit(UP)
    assert [each["kind"] for each in place.kubectl.applied] == ["ConfigMap", "Service", "Job"]
    keys = {each["Key"] for each in place.s3.list_objects_v2(Bucket="bucket")["Contents"]}
    assert keys == {place.plan.node.bundle.key, place.plan.run.code.key}
    assert all("--context=lab" in call and "--namespace=default" in call for call in place.kubectl.calls)


def test_an_edit_of_the_training_keeps_the_job(place: Place) -> None:
    place.exists(suspend=True)
    place.write(steps=200)
    place.engine.submit(UP)
    assert place.kubectl.verbs() == ["apply"]
    assert [each["kind"] for each in place.kubectl.applied] == ["ConfigMap", "Service"], "the job stays suspended"
    assert json.loads(place.kubectl.applied[0]["data"]["run.json"])["training"]["steps"] == 200


def test_an_edit_of_the_pods_replaces_the_job(place: Place) -> None:
    place.exists()
    place.write({"image": "i:2"})
    place.engine.submit(UP)
    assert place.kubectl.verbs() == ["delete", "apply"]
    delete = next(call for call in place.kubectl.calls if call[0] == "delete")
    assert "--timeout=180s" in delete and "--cascade=foreground" in delete, "the grace period of 120 s is over by then"
    assert place.kubectl.applied[-1]["kind"] == "Job"


def test_up_retries_a_failed_run_but_not_a_finished_one(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.exists()
    assert place.kubectl.job is not None
    place.kubectl.job["status"] = {"conditions": [{"type": "Failed", "status": "True", "message": "exit code 70"}]}
    place.end("failed", "three failures")
    place.engine.submit(UP)
    assert place.kubectl.verbs() == ["delete", "apply"]
    place.end("finished")
    place.kubectl.calls.clear()
    place.engine.submit(UP)
    assert place.kubectl.verbs() == []
    assert "the run has finished; set another training.run" in capsys.readouterr().err


def test_status_of_a_run_that_trains(place: Place) -> None:
    place.exists()
    place.kubectl.pods = [pod(0), pod(1)]
    place.report()
    found = place.engine.observe()
    assert (found.phase, found.generation, found.step, found.checkpoint_step) == ("running", 3, 40, 30)
    assert found.lines()[1] == "running: step 40 of 100, loss 3.5000, checkpoint at step 30"
    assert found.to_json()["engine"] == "kubernetes"


@pytest.mark.parametrize(
    ("pods", "phase", "cause", "remedy"),
    [
        ([pod(0, "Pending", conditions=[UNSCHEDULABLE])], "waiting", "Unschedulable", "no node has the requested GPUs"),
        (
            [pod(0, "Pending", containerStatuses=[{"state": {"waiting": {"reason": "ImagePullBackOff"}}}])],
            "waiting",
            "ImagePullBackOff",
            "correct kubernetes.image",
        ),
        (
            [pod(0, "Pending", containerStatuses=[{"state": {"waiting": {"reason": "ContainerCreating"}}}])],
            "starting",
            "",
            "",
        ),
        ([pod(0)], "starting", "", ""),
        ([], "waiting", "no_pods", ""),
    ],
)
def test_why_a_run_does_not_train(place: Place, pods: list[Any], phase: str, cause: str, remedy: str) -> None:
    place.exists()
    place.kubectl.pods = pods
    found = place.engine.explain()
    assert (found.phase, found.cause) == (phase, cause)
    assert remedy in found.remedy


def test_why_a_run_ended(place: Place) -> None:
    assert place.engine.explain().cause == "never_submitted"
    place.exists()
    assert place.kubectl.job is not None
    place.kubectl.job["status"] = {"conditions": [{"type": "Failed", "status": "True", "message": "exit code 78"}]}
    place.kubectl.pods = [pod(0, "Failed", containerStatuses=[{"state": {"terminated": {"exitCode": 78}}}])]
    found = place.engine.explain()
    assert (found.phase, found.cause) == ("ended", "failed") and "exit code 78" in found.sentence
    assert found.evidence == ("trainstack-x-0-abcde: exit code 78: ",)
    place.end("failed", "learning_rate must be above 0")
    assert "learning_rate must be above 0" in place.engine.explain().sentence


def test_stop_suspends_the_job_and_resume_continues_it(place: Place) -> None:
    place.exists()
    place.kubectl.pods = [pod(0), pod(1)]
    place.engine.stop(waits=True, as_json=False)
    assert place.kubectl.job is not None and place.kubectl.job["spec"]["suspend"] is True
    assert (place.engine.observe().phase, place.engine.explain().remedy) == ("stopped", "run `trainstack resume FILE`")
    place.engine.resume(waits=False, as_json=False)
    assert place.kubectl.job["spec"]["suspend"] is False


def test_a_job_in_a_queue_is_stopped_by_its_workload(place: Place) -> None:
    place.write({"queue": "gpus"})
    place.exists(suspend=True)
    place.kubectl.workloads = [{"metadata": {"name": "job-x"}, "spec": {"active": True}}]
    assert (place.engine.observe().phase, place.engine.observe().cause) == ("waiting", "queued")
    place.engine.stop(waits=True, as_json=False)
    assert place.kubectl.workloads[0]["spec"]["active"] is False
    assert place.engine.observe().phase == "stopped"
    place.kubectl.workloads = []
    with pytest.raises(CommandError, match="Kueue has no workload for the job"):
        place.engine.resume(waits=False, as_json=False)


def test_logs_of_a_rank_are_those_of_its_pod(place: Place) -> None:
    place.exists()
    place.kubectl.pods = [pod(0), pod(1)]
    place.report()
    assert list(place.engine.logs(LogQuery("", 0, 60.0, False))) == ["line"]
    assert place.lines[-1][:3] == ("logs", "trainstack-x-1-abcde", "--since=60s")
    list(place.engine.logs(LogQuery("", None, 60.0, True)))
    assert "--prefix" in place.lines[-1] and "--follow" in place.lines[-1]
    with pytest.raises(CommandError, match="no pod has this rank now"):
        list(place.engine.logs(LogQuery("", 7, 60.0, False)))
    with pytest.raises(CommandError, match="--node: other: no such pod"):
        list(place.engine.logs(LogQuery("other", None, 60.0, False)))


def test_unsupported_calls_are_refused_by_name(place: Place) -> None:
    with pytest.raises(CommandError, match="engine kubernetes has no stacks and no review"):
        place.engine.submit(Submission(("TrainingStack",), 10, False, False))
    with pytest.raises(CommandError, match="not found; run `trainstack up FILE`"):
        place.engine.stop(waits=True, as_json=False)
    place.exists()
    assert place.kubectl.job is not None
    place.kubectl.job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    with pytest.raises(CommandError, match="the job has ended"):
        place.engine.resume(waits=True, as_json=False)
