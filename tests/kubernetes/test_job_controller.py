"""A Job's pods, replaced by a job controller, with the real kubectl and an API server in memory (kmock)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bootstrap.kubernetes import exit_codes
from tests.bootstrap.account import Account
from tests.bootstrap.waiting import wait_or_fail
from tests.kubernetes.cluster import LONG, Cluster
from tests.kubernetes.job_controller import Api, JobController
from trainstack.kubernetes import kubectl
from trainstack.kubernetes.command import read_plan
from trainstack.kubernetes.manifests import manifest_text, manifests

BIN = Path(__file__).resolve().parents[2] / "build" / "kubernetes-venv" / "bin"
pytestmark = [
    pytest.mark.slow,  # make test-kubernetes runs it
    pytest.mark.timeout(400),
]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Start an API server, and make it kubectl's only cluster; yield its URL."""
    assert (BIN / "kubectl").exists(), f"{BIN}: no kubectl; run `make build/kubernetes-venv/.installed`"
    process = subprocess.Popen(
        [BIN / "python", Path(__file__).with_name("api_server.py")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert url.startswith("http://127.0.0.1:")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "kubectl").symlink_to(BIN / "kubectl")
    configuration = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "memory", "cluster": {"server": url}}],
        "users": [{"name": "user", "user": {}}],
        "contexts": [{"name": "lab", "context": {"cluster": "memory", "user": "user"}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(configuration))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("KUBECACHEDIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    yield url
    process.kill()
    process.wait()


class Lab:
    """A cluster with the job of a deployment file, and a controller that runs its pods."""

    def __init__(self, cluster: Cluster, server: str, directory: Path) -> None:
        document = {
            "name": "x",
            "engine": "kubernetes",
            "kubernetes": {"image": "i:1", "bucket": "bucket", "gpus": 1, "context": "lab", "max_failures": 2},
            "capacity": {"nodes": 2},
            "training": {"dataset": "text", "config": {"steps": 100, "global_batch_size": 8}},
        }
        file = directory / "x.yaml"
        file.write_text(yaml.safe_dump(document))
        plan = read_plan(file)
        self.cluster, self.objects = cluster, kubectl.Cluster(plan)
        self._manifests = manifest_text(manifests(plan, "job", None))
        self.controller = JobController(Api(server, plan.section.namespace), cluster.kubelet)

    def start(self, **changes: Any) -> None:
        self.cluster.run(**changes)
        self.objects.apply(self._manifests)
        self.controller.start()

    def wait(self, condition: Any, what: str) -> Any:
        def is_true() -> Any:
            if self.controller.error is not None:
                raise self.controller.error
            return condition()

        return wait_or_fail(is_true, 240, what, lambda: json.dumps([pod["status"] for pod in self.pods()]))

    def wait_for_end(self) -> dict[str, Any]:
        """Return the job's condition after its end."""
        found: dict[str, Any] = self.wait(
            lambda: self.objects.required_job().get("status", {}).get("conditions", [None])[-1], "the job to end"
        )
        return found

    def pods(self, phase: str | None = None) -> list[dict[str, Any]]:
        return [pod for pod in self.objects.pods() if phase in (None, pod["status"]["phase"])]

    def steps(self) -> list[int]:
        return sorted(each["step"] for pod in self.cluster.kubelet.pods for each in pod.trainer("step"))


@pytest.fixture
def lab(account: Account, tmp_path: Path, stand_in: str, server: str) -> Iterator[Lab]:
    code = account.put_code({"training/__init__.py": "", "training/__main__.py": stand_in})
    account.put_dataset({"train-00000.bin": b"\1\0" * 100})
    made = Lab(Cluster(account, tmp_path, code), server, tmp_path)
    yield made
    if made.controller.is_alive():
        made.controller.stop()
    for pod in made.cluster.kubelet.pods:
        pod.kill()


def exit_codes_of(pods: list[dict[str, Any]]) -> list[int]:
    return sorted(pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] for pod in pods)


def test_replaced_pods_finish_the_run(lab: Lab) -> None:
    lab.start(training={**LONG, "save_every": 10})
    lab.wait(lambda: lab.cluster.steps_done() > 20, "steps")
    evicted = lab.pods("Running")[1]
    lab.controller.evict(evicted)
    lab.wait(lambda: len(lab.pods()) == 3, "a replacement of the evicted pod")
    assert exit_codes_of(lab.pods("Failed")) == [exit_codes.LEFT]
    lab.wait(lambda: lab.cluster.kubelet.pods[2].events("generation_started"), "the replacement to join")
    joined_at = lab.cluster.steps_done()
    lab.wait(lambda: lab.cluster.steps_done() > joined_at + 20, "further steps")
    done = lab.steps()
    assert done == list(range(1, len(done) + 1)), "the eviction has lost and repeated no step"
    killed = lab.pods("Running")[0]
    lab.controller.process(killed).kill()
    lab.wait(lambda: len(lab.pods()) == 4, "a replacement of the killed pod")
    assert lab.wait_for_end() == {"type": "Complete", "status": "True", "reason": "CompletionsReached"}
    assert exit_codes_of(lab.pods("Failed")) == [exit_codes.LEFT, 137]
    assert len(lab.pods("Succeeded")) == 2
    starts = [each for pod in lab.cluster.kubelet.pods for each in pod.trainer("start")]
    resumed = max(starts, key=lambda each: each["unix_seconds"])["resumed_from_step"]
    steps = lab.steps()
    assert set(range(resumed + 1, 401)) <= set(steps), "the run continues from a checkpoint to its last step"
    repeated = len(steps) - len(set(steps))
    assert repeated <= 10, "only the kill repeats steps, and at most those since the last checkpoint"
    unreported = set(range(1, resumed + 1)) - set(steps)  # the killed pod had trained these, but not yet reported them
    assert len(unreported) <= resumed - len(done)


def test_a_suspended_job_saves_and_continues(lab: Lab) -> None:
    lab.start(training=LONG)
    lab.wait(lambda: lab.cluster.steps_done() > 20, "steps")
    lab.objects.suspend(lab.objects.required_job(), suspended=True)
    lab.wait(lambda: not lab.pods(), "the pods to end")
    stopped_at = lab.cluster.steps_done()
    assert lab.cluster.saved_step == stopped_at
    lab.objects.suspend(lab.objects.required_job(), suspended=False)
    assert lab.wait_for_end()["type"] == "Complete"
    assert lab.steps() == list(range(1, 401)), "no step was lost or repeated"


def test_deleting_the_job_waits_for_the_last_checkpoint(lab: Lab) -> None:
    lab.start(training=LONG)
    lab.wait(lambda: lab.cluster.steps_done() > 20, "steps")
    lab.objects.delete_job(60)
    assert lab.objects.job() is None and not lab.pods()
    assert lab.cluster.saved_step == lab.cluster.steps_done() > 20


@pytest.mark.parametrize(
    ("training", "code"),
    [
        ({"steps": 1, "step_seconds": 0.01, "bad": True}, exit_codes.BAD_CONFIGURATION),
        ({"steps": 90, "step_seconds": 0.01, "fail_at": 5}, exit_codes.RUN_FAILED),
    ],
)
def test_a_failed_run_fails_the_job_without_replacements(lab: Lab, training: dict[str, Any], code: int) -> None:
    lab.start(training=training)
    assert lab.wait_for_end() == {"type": "Failed", "status": "True", "reason": "PodFailurePolicy"}
    lab.wait(lambda: not lab.pods("Running"), "the other pod to end")
    assert len(lab.pods()) == 2
    assert code in exit_codes_of(lab.pods())


def test_pods_that_fail_again_and_again_exhaust_the_limit(lab: Lab) -> None:
    lab.start(dataset="missing")
    assert lab.wait_for_end() == {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}
    lab.wait(lambda: not lab.pods("Running"), "the other pods to end")
    assert 3 <= len(lab.pods()) <= 5, "two failures are allowed, and both pods fail at the same time"
