"""Calls kubectl and reads a run's objects.

kubectl uses the user's context, credentials and plug-ins (such as `aws eks get-token`).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

from stacks.config.clusters import cluster_name
from stacks.config.kubernetes import Flavour
from trainstack.kubernetes.plan import Plan
from trainstack.session import FAILED, MISSING, CommandError

CALL_SECONDS = 120.0
DELETE_MARGIN_SECONDS = 60.0
"""Time that the deletion of a job may take beyond the grace period of its pods."""
RESOURCES: dict[Flavour, str] = {
    "job": "jobs.batch",
    "jobset": "jobsets.jobset.x-k8s.io",
    "trainjob": "trainjobs.trainer.kubeflow.org",
}
SELECTOR = "app.kubernetes.io/name=trainstack,app.kubernetes.io/instance="
Call = Callable[..., str]
"""Runs kubectl with arguments, an optional text for standard input and a time limit, and returns its output."""


def call(*arguments: str, text: str | None = None, seconds: float = CALL_SECONDS) -> str:
    """Run kubectl and return its output.

    Raises:
        CommandError: kubectl is missing, or the call failed.
    """
    try:
        done = subprocess.run(["kubectl", *arguments], input=text, capture_output=True, text=True, timeout=seconds)
    except FileNotFoundError as error:
        raise CommandError(FAILED, "kubectl: not found; install it, and configure the cluster's context") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(FAILED, f"kubectl {arguments[0]}: no response in {seconds:.0f} s") from error
    if done.returncode:
        raise CommandError(FAILED, f"kubectl {' '.join(arguments[:3])}: {done.stderr.strip()[-800:]}")
    return done.stdout


def stream(*arguments: str) -> Iterator[str]:
    """Run kubectl and yield its lines. Raises CommandError as `call` does."""
    try:
        process = subprocess.Popen(["kubectl", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except FileNotFoundError as error:
        raise CommandError(FAILED, "kubectl: not found; install it, and configure the cluster's context") from error
    assert process.stdout is not None and process.stderr is not None
    try:
        for line in process.stdout:
            yield line.rstrip("\n")
        if process.wait():
            raise CommandError(FAILED, f"kubectl {arguments[0]}: {process.stderr.read().strip()[-800:]}")
    finally:
        process.kill()
        process.wait()


class Cluster:
    """The objects of one run."""

    def __init__(self, plan: Plan, run: Call = call) -> None:
        self._plan, self._run = plan, run
        self.resource = RESOURCES[plan.section.flavour]

    @property
    def place(self) -> list[str]:
        """kubectl's arguments for the context and the namespace."""
        config = self._plan.config
        # An eks section names one cluster, so the pods must not reach another one that kubectl has selected.
        context = self._plan.section.context or (cluster_name(config.name) if config.has_eks_stack else None)
        return [*([f"--context={context}"] if context else []), f"--namespace={self._plan.section.namespace}"]

    @property
    def selector(self) -> str:
        """Label selector of the run's objects."""
        return SELECTOR + self._plan.config.name

    def job(self) -> dict[str, Any] | None:
        """Return the job, JobSet or TrainJob, or None. Raises CommandError."""
        text = self._run("get", self.resource, self._plan.name, "--ignore-not-found", "-o=json", *self.place)
        return dict(json.loads(text)) if text.strip() else None

    def required_job(self) -> dict[str, Any]:
        """Return the job. Raises CommandError if there is none."""
        found = self.job()
        if found is None:
            raise CommandError(MISSING, f"{self.resource} {self._plan.name}: not found; run `trainstack up FILE`")
        return found

    def pods(self) -> list[dict[str, Any]]:
        """Return the run's pods. Raises CommandError."""
        text = self._run("get", "pods", f"--selector={self.selector}", "-o=json", *self.place)
        return list(json.loads(text)["items"])

    def apply(self, manifests: str) -> None:
        """Create or change objects. Raises CommandError."""
        self._run("apply", "--server-side", "--field-manager=trainstack", "-f=-", *self.place, text=manifests)

    def delete_job(self, grace_seconds: float) -> None:
        """Delete the job and wait until its pods have saved and exited. Raises CommandError."""
        seconds = grace_seconds + DELETE_MARGIN_SECONDS
        limit = f"--timeout={seconds:.0f}s"
        options = ("--ignore-not-found", "--cascade=foreground", "--wait", limit)
        self._run("delete", self.resource, self._plan.name, *options, *self.place, seconds=seconds + 10)

    def suspend(self, job: dict[str, Any], *, suspended: bool) -> None:
        """Suspend or resume a job. Kueue sets the field of jobs in a queue, so change their workload instead.

        Source (2026-11): https://kueue.sigs.k8s.io/docs/concepts/workload/#active

        Raises:
            CommandError: A call failed, or Kueue has no workload for the job.
        """
        if "kueue.x-k8s.io/queue-name" not in job["metadata"].get("labels", {}):
            self._patch(self.resource, self._plan.name, {"spec": {"suspend": suspended}})
            return
        for workload in self._workloads(job):
            self._patch("workloads.kueue.x-k8s.io", workload["metadata"]["name"], {"spec": {"active": not suspended}})

    def is_deactivated(self, job: dict[str, Any]) -> bool:
        """Return whether the user has stopped a job in a queue. Raises CommandError."""
        return any(each["spec"].get("active") is False for each in self._workloads(job))

    def _workloads(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        label = f"--selector=kueue.x-k8s.io/job-uid={job['metadata']['uid']}"
        found = list(json.loads(self._run("get", "workloads.kueue.x-k8s.io", label, "-o=json", *self.place))["items"])
        if not found:
            raise CommandError(FAILED, f"{self._plan.name}: Kueue has no workload for the job; see Kueue's log")
        return found

    def _patch(self, resource: str, name: str, patch: dict[str, Any]) -> None:
        self._run("patch", resource, name, "--type=merge", f"--patch={json.dumps(patch)}", *self.place)
