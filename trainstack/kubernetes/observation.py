"""The status of a run in a Kubernetes cluster, and why it is not training: pure functions of its objects and records.

Sources (2026-11): https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/ and
https://kubernetes.io/docs/concepts/workloads/controllers/job/
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bootstrap.kubernetes.pod import instance_id
from bootstrap.supervise.membership.records import RunOutcome
from bootstrap.supervise.membership.records import RunStatus as Record
from trainstack.observe.why import Explanation

LATE_SECONDS = 120.0
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
_QUEUE = "kueue.x-k8s.io/queue-name"
_REMEDIES = {
    "Unschedulable": "see `kubectl describe pod POD`: no node has the requested GPUs, labels or tolerations yet",
    "ErrImagePull": "correct kubernetes.image, or add kubernetes.image_pull_secrets",
    "ImagePullBackOff": "correct kubernetes.image, or add kubernetes.image_pull_secrets",
    "CreateContainerConfigError": "run `trainstack up FILE` to create the ConfigMap again",
    "queued": "Kueue starts the pods when the queue has quota; see `kubectl describe localqueue QUEUE`",
    "stopped": "run `trainstack resume FILE`",
    "failed": "correct the cause, then run `trainstack up FILE`",
    "never_submitted": "run `trainstack up FILE`",
    "no_progress": "see `trainstack logs FILE`",
}


@dataclass(frozen=True)
class PodStatus:
    """A node of the run.

    Attributes:
        instance_id: Name in the control records.
        problem: Reason why the pod is not running, such as Unschedulable; empty if it is running.
    """

    name: str
    instance_id: str
    phase: str
    node: str
    problem: str
    message: str


@dataclass(frozen=True)
class RunStatus:
    """The output of `trainstack status` for `engine: kubernetes`. None: not known yet.

    Attributes:
        phase: `waiting`, `starting`, `running`, `stopping`, `stopped`, `ended` or `idle`.
        cause: `finished`, `failed`, `stopped`, `queued`, a pod's problem, or empty.
    """

    name: str
    run: str
    phase: str
    cause: str
    reason: str
    pods: tuple[PodStatus, ...]
    generation: int
    step: int | None
    steps_total: int | None
    loss: float | None
    tokens_per_second: float | None
    step_age_seconds: float | None
    checkpoint_step: int | None

    def to_json(self) -> dict[str, Any]:
        """Return the status as JSON values."""
        return {"engine": "kubernetes", **dataclasses.asdict(self)}

    def line(self) -> str:
        """Return the status as one line."""
        text = self.phase if not self.reason else f"{self.phase}: {self.reason}"
        if self.step is not None:
            text += f": step {self.step:,}" + (f" of {self.steps_total:,}" if self.steps_total is not None else "")
        if self.loss is not None:
            text += f", loss {self.loss:.4f}"
        saved = "no checkpoint" if self.checkpoint_step is None else f"checkpoint at step {self.checkpoint_step:,}"
        return f"{text}, {saved}"

    def lines(self) -> list[str]:
        """Return the status as lines for a terminal."""
        found = [f"{self.name}  run {self.run}  engine kubernetes", self.line()]
        if self.tokens_per_second is not None and self.step_age_seconds is not None:
            found.append(f"{self.tokens_per_second:,.0f} tokens/s; newest status {self.step_age_seconds:.0f} s ago")
        for pod in self.pods:
            found.append(f"{pod.name:<40} {pod.phase:<10} {pod.node or '-'}  {pod.problem}".rstrip())
        return found


def pod_status(pod: Mapping[str, Any]) -> PodStatus:
    """Return a pod's state from its API object."""
    metadata, status = pod["metadata"], pod.get("status", {})
    index = metadata.get("labels", {}).get(INDEX_LABEL) or metadata.get("annotations", {}).get(INDEX_LABEL) or "0"
    problem, message = "", ""
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            problem, message = condition.get("reason", "Pending"), condition.get("message", "")
    for container in status.get("containerStatuses", []):
        waiting = container.get("state", {}).get("waiting")
        if waiting is not None and waiting.get("reason") != "ContainerCreating":
            problem, message = waiting.get("reason", "Waiting"), waiting.get("message", "")
        ended = container.get("state", {}).get("terminated")
        if ended is not None and ended.get("exitCode"):
            problem, message = f"exit code {ended['exitCode']}", ended.get("reason", "")
    phase = "Terminating" if "deletionTimestamp" in metadata else status.get("phase", "Unknown")
    name = instance_id(int(index), metadata["uid"])
    return PodStatus(metadata["name"], name, phase, pod.get("spec", {}).get("nodeName", ""), problem, message)


def status_of(
    name: str,
    run: str,
    job: Mapping[str, Any] | None,
    pods: Sequence[Mapping[str, Any]],
    record: Record | None,
    outcome: RunOutcome | None,
    now_unix_seconds: float,
    *,
    is_deactivated: bool = False,
) -> RunStatus:
    """Return the status of a run.

    Args:
        record: The newest status that the pods have reported.
        outcome: The outcome of the run.
        is_deactivated: Whether the user has stopped the job's workload in Kueue.
    """
    found = tuple(pod_status(pod) for pod in pods)
    phase, cause, reason = _phase(job, found, record, outcome, is_deactivated=is_deactivated)
    return RunStatus(
        name=name,
        run=run,
        phase=phase,
        cause=cause,
        reason=reason,
        pods=found,
        generation=record.generation if record is not None else 0,
        step=record.step if record is not None else None,
        steps_total=record.steps_total if record is not None else None,
        loss=record.loss if record is not None else None,
        tokens_per_second=record.tokens_per_second if record is not None else None,
        step_age_seconds=now_unix_seconds - record.unix_seconds if record is not None else None,
        checkpoint_step=record.checkpoint.step if record is not None and record.checkpoint is not None else None,
    )


def _phase(
    job: Mapping[str, Any] | None,
    pods: Sequence[PodStatus],
    record: Record | None,
    outcome: RunOutcome | None,
    *,
    is_deactivated: bool,
) -> tuple[str, str, str]:
    ended = _ended(job)
    if outcome is not None and (ended or job is None):
        return "ended", "finished" if outcome.outcome == "finished" else "failed", outcome.message
    if ended:
        return "ended", *ended
    if job is None:
        return "idle", "never_submitted", "the cluster has no job for this run"
    active = [pod for pod in pods if pod.phase in ("Running", "Pending", "Terminating")]
    if job["spec"].get("suspend"):
        if _QUEUE in job["metadata"].get("labels", {}) and not is_deactivated:
            return "waiting", "queued", f"the job is waiting in queue {job['metadata']['labels'][_QUEUE]}"
        return ("stopping" if active else "stopped"), "stopped", "the user stopped the run"
    blocked = [pod for pod in active if pod.problem]
    running = [pod for pod in active if pod.phase == "Running"]
    members = record.members if record is not None else ()
    if running and {pod.instance_id for pod in running} & set(members):
        return "running", "", ""
    if blocked:
        return "waiting", blocked[0].problem, f"{blocked[0].name}: {blocked[0].message or blocked[0].problem}"
    if active:
        return "starting", "", f"{len(running)} of {len(active)} pods are running"
    return "waiting", "no_pods", "the job has no pods yet"


def _ended(job: Mapping[str, Any] | None) -> tuple[str, str] | None:
    """Return cause and reason if the job has ended. A JobSet reports `Completed`, the other flavours `Complete`."""
    for condition in (job or {}).get("status", {}).get("conditions", []):
        if condition["status"] == "True" and condition["type"] in ("Complete", "Completed"):
            return "finished", ""
        if condition["status"] == "True" and condition["type"] == "Failed":
            return "failed", condition.get("message") or condition.get("reason", "the job failed")
    return None


def explanation_of(status: RunStatus) -> Explanation:
    """Explain why a run is in its phase."""
    cause, sentence = status.cause, status.line()
    if status.phase == "running" and (status.step_age_seconds or 0.0) > LATE_SECONDS:
        cause, sentence = "no_progress", f"The newest status is {status.step_age_seconds:.0f} s old."
    evidence = tuple(f"{pod.name}: {pod.problem}: {pod.message}" for pod in status.pods if pod.problem)
    return Explanation(status.phase, cause, sentence, evidence, _REMEDIES.get(cause, ""))
