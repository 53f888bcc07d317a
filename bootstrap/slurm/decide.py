"""Decides what a job does after a generation: a pure function of outcomes, nodes and the job's state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

AGAIN, CONTINUE, FINISHED, FAILED, STOPPED, SUPERSEDED = (
    "again",
    "continue",
    "finished",
    "failed",
    "stopped",
    "superseded",
)
"""Actions: launch again in this job; continue in another job; end the run; end it as failed; end this job because the
user stopped or cancelled the run; end this job because a later generation is training."""


@dataclass(frozen=True)
class Seen:
    """The state after the trainers of a generation have exited.

    Attributes:
        ranks: Number of processes that were started.
        outcomes: Outcome documents by rank. A killed process has none.
        nodes: Nodes of the job, in order.
        lost: Nodes that Slurm reports as down or not responding.
        avoided: Nodes with a spot notice or with faults.
        stopping: Reasons reported by nodes that received a signal or a request to stop.
        has_failed_node: Whether a node failed before the others were signalled.
        reason: Reason why the job script was signalled; empty if it was not.
        cancelled: Whether the user cancelled the job.
        stopped: Whether the user stopped the run.
        failures: Consecutive failed generations before this one.
        checkpoint_before: Newest checkpoint step known before this generation, or None.
        has_later: Whether a later generation exists.
    """

    ranks: int
    outcomes: dict[int, dict[str, Any]]
    nodes: tuple[str, ...]
    lost: frozenset[str] = frozenset()
    avoided: frozenset[str] = frozenset()
    stopping: tuple[str, ...] = ()
    has_failed_node: bool = False
    reason: str = ""
    cancelled: bool = False
    stopped: bool = False
    failures: int = 0
    checkpoint_before: int | None = None
    has_later: bool = False


@dataclass(frozen=True)
class Decision:
    """An action with its cause.

    Attributes:
        failures: Consecutive failures including this generation; 0 if it did not fail.
        excluded: Nodes that the next launch must not use.
    """

    action: str
    cause: str
    message: str
    failures: int = 0
    excluded: tuple[str, ...] = ()
    checkpoint_step: int | None = None


def decide(seen: Seen, min_nodes: int, max_failures: int) -> Decision:
    """Return the next action. Repeated failures end a run; preemptions, time limits and lost nodes do not."""
    step = newest_checkpoint(seen.outcomes.values())
    if step is None:
        step = seen.checkpoint_before
    kinds = [outcome.get("outcome") for outcome in seen.outcomes.values()]
    if "bad_configuration" in kinds:
        return Decision(FAILED, "bad_configuration", _message(seen, "bad_configuration"), checkpoint_step=step)
    if seen.outcomes.get(0, {}).get("outcome") == "finished":
        return Decision(FINISHED, "finished", _message(seen, "finished"), checkpoint_step=step)
    if "superseded" in kinds:
        if seen.has_later:
            return Decision(SUPERSEDED, "superseded", "a later generation is training this run", checkpoint_step=step)
        message = (
            f"{_message(seen, 'superseded')}; the checkpoint store has a later generation than slurm.directory; set "
            "another training.run, or restore the run's folder"
        )
        return Decision(FAILED, "superseded", message, checkpoint_step=step)
    if seen.stopped or seen.cancelled:
        cause = "stopped" if seen.stopped else "cancelled"
        return Decision(STOPPED, cause, f"the user {cause} the run", checkpoint_step=step)
    gone = tuple(node for node in seen.nodes if node in seen.lost or node in seen.avoided)
    remaining = len(seen.nodes) - len(gone)
    leaves_job = bool(seen.reason) or any(reason != "spot_notice" for reason in seen.stopping)
    has_lost = any(node in seen.lost for node in gone)
    if gone and (has_lost or not leaves_job):  # Slurm ends a job with a lost node by SIGTERM
        cause = "node_lost" if has_lost else "node_avoided"
        action = AGAIN if remaining >= min_nodes and not leaves_job else CONTINUE
        return Decision(action, cause, f"{', '.join(gone)}: left the run", excluded=gone, checkpoint_step=step)
    stopped_ranks = 0 if seen.has_failed_node else kinds.count("stopped")
    if leaves_job and ("failed" not in kinds or stopped_ranks):
        cause = seen.reason or next(iter(sorted(seen.stopping)))
        return Decision(CONTINUE, cause, _message(seen, "stopped"), excluded=gone, checkpoint_step=step)
    if stopped_ranks:
        return Decision(CONTINUE, "stopped", _message(seen, "stopped"), excluded=gone, checkpoint_step=step)
    progressed = step is not None and (seen.checkpoint_before is None or step > seen.checkpoint_before)
    failures = 1 if progressed else seen.failures + 1
    message = _failure(seen)
    if failures > max_failures - 1:
        text = f"{failures} consecutive failures without a new checkpoint: {message}"
        return Decision(FAILED, "failed", text, failures, checkpoint_step=step)
    return Decision(CONTINUE if leaves_job else AGAIN, "failed", message, failures, gone, step)


def newest_checkpoint(outcomes: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the newest checkpoint step that an outcome reports, or None."""
    steps: list[int] = [each["checkpoint_step"] for each in outcomes if isinstance(each.get("checkpoint_step"), int)]
    return max(steps, default=None)


def _message(seen: Seen, kind: str) -> str:
    for _, outcome in sorted(seen.outcomes.items()):
        if outcome.get("outcome") == kind:
            return str(outcome.get("message") or kind)
    return "the trainers exited without an outcome"


def _failure(seen: Seen) -> str:
    """Return the cause of a failure. Ranks that lost a peer fail as well, so check for killed ranks first."""
    missing: Sequence[int] = [rank for rank in range(seen.ranks) if rank not in seen.outcomes]
    if missing and len(missing) < seen.ranks:
        return f"rank {missing[0]} was killed (no outcome); see the job's log, and check its memory"
    if missing:
        return "no process wrote an outcome; see the job's log"
    return _message(seen, "failed")
