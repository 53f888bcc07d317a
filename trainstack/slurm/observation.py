"""The status of a run on a Slurm cluster, and why it is not training."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainstack.observe.why import Explanation
from trainstack.slurm.files import MemberRecords
from trainstack.slurm.queue import QueuedJob, explain

LATE_SECONDS = 120.0
"""Age of the newest step above which a running job is reported as starting or stuck."""


@dataclass(frozen=True)
class RunStatus:
    """The status of one run: the output of `trainstack status` for `engine: slurm`. None: not known yet.

    Attributes:
        phase: `waiting`, `starting`, `running`, `stopping`, `stopped`, `ended`, or `idle`: no job continues the run.
        cause: `finished`, `failed`, `stopped`, Slurm's reason of a pending job, or empty.
        jobs: Numbers of the queued and running jobs.
        nodes: Nodes of the newest generation.
    """

    name: str
    run: str
    phase: str
    cause: str
    reason: str
    jobs: tuple[str, ...]
    generation: int
    step: int | None
    steps_total: int | None
    loss: float | None
    tokens_per_second: float | None
    step_age_seconds: float | None
    checkpoint_step: int | None
    nodes: tuple[str, ...]
    failures: int

    def to_json(self) -> dict[str, Any]:
        """Return the status as JSON values."""
        return {"engine": "slurm", **dataclasses.asdict(self)}

    def line(self) -> str:
        """Return the status as one line."""
        text = f"{self.phase}: {self.reason}" if self.phase != "running" else self.phase
        if self.step is not None:
            total = "" if self.steps_total is None else f" of {self.steps_total:,}"
            text += f": step {self.step:,}{total}"
        if self.loss is not None:
            text += f", loss {self.loss:.4f}"
        saved = "no checkpoint" if self.checkpoint_step is None else f"checkpoint at step {self.checkpoint_step:,}"
        return f"{text}, {saved}"

    def lines(self) -> list[str]:
        """Return the status as lines for a terminal."""
        found = [f"{self.name}  run {self.run}  engine slurm", self.line()]
        if self.jobs:
            found.append(f"jobs {', '.join(self.jobs)}")
        if self.generation:
            found.append(f"generation {self.generation} on {', '.join(self.nodes)}")
        if self.tokens_per_second is not None and self.step_age_seconds is not None:
            found.append(f"{self.tokens_per_second:,.0f} tokens/s; newest step {self.step_age_seconds:.0f} s ago")
        if self.failures:
            found.append(f"{self.failures} consecutive failures without a new checkpoint")
        return found


def status_of(name: str, records: MemberRecords, jobs: Sequence[QueuedJob], now_unix_seconds: float) -> RunStatus:
    """Return a run's status. `jobs`: the run's jobs in the queue."""
    phase, cause, reason = _phase(records, jobs)
    metrics = records.metrics
    age = now_unix_seconds - float(metrics["unix_seconds"]) if "unix_seconds" in metrics else None
    return RunStatus(
        name=name,
        run=records.run,
        phase=phase,
        cause=cause,
        reason=reason,
        jobs=tuple(job.number for job in jobs),
        generation=records.generation,
        step=metrics.get("step"),
        steps_total=records.steps_total,
        loss=metrics.get("loss"),
        tokens_per_second=metrics.get("tokens_per_second"),
        step_age_seconds=age,
        checkpoint_step=records.checkpoint_step,
        nodes=records.nodes,
        failures=records.failures,
    )


def _phase(records: MemberRecords, jobs: Sequence[QueuedJob]) -> tuple[str, str, str]:
    """Return the phase, its cause, and its reason."""
    active = [job for job in jobs if job.state not in ("PENDING", "COMPLETING")]
    if records.end:
        return "ended", records.end, records.message
    if records.is_stopped:
        return ("stopping" if jobs else "stopped"), "stopped", "the user stopped the run"
    if active:
        job = active[0]
        if records.metrics and records.generation:
            return "running", "", f"job {job.number} on {job.nodes}"
        return "starting", "", f"job {job.number} on {job.nodes}"
    pending = [job for job in jobs if job.state == "PENDING"]
    if pending:
        sentence, _ = explain(pending[0])
        return "waiting", pending[0].reason, sentence
    if jobs:
        return "stopping", "", f"job {jobs[0].number} is completing"
    if records.generation == 0:
        return "idle", "never_submitted", "no job has been submitted"
    return "idle", "no_job", "no job continues the run"


def explanation_of(status: RunStatus, records: MemberRecords, jobs: Sequence[QueuedJob]) -> Explanation:
    """Explain why a run is in its phase."""
    evidence = [f"newest decision: {records.cause}: {records.message}"] if records.cause else []
    pending = [job for job in jobs if job.state == "PENDING"]
    sentence, remedy, cause = "", "", status.cause
    if status.cause == "failed":
        sentence, remedy = "Training failed.", "correct the cause, then run `trainstack resume FILE`"
    elif status.cause == "finished":
        sentence = "The run has finished."
    elif status.cause == "stopped":
        sentence, remedy = "The user stopped the run.", "run `trainstack resume FILE`"
    elif status.phase == "idle":
        sentence, remedy = f"{status.reason[:1].upper()}{status.reason[1:]}.", "run `trainstack up FILE`"
        if status.cause == "no_job":
            sentence = (
                "No job continues the run: its last job was killed before it could submit another one, or cancelled."
            )
            remedy = "run `trainstack resume FILE`; slurm.continue_by: spare queues the next job in advance"
    elif status.phase == "waiting":
        sentence, remedy = explain(pending[0])
        evidence.append(f"job {pending[0].number}: {pending[0].detail}; expected start: {pending[0].start}")
    elif status.step_age_seconds is not None and status.step_age_seconds > LATE_SECONDS:
        sentence = f"The newest step is {status.step_age_seconds:.0f} s old."
        remedy, cause = "see `trainstack logs FILE`", "no_progress"
    else:
        sentence = status.line()
    return Explanation(status.phase, cause, sentence, tuple(evidence), remedy)
