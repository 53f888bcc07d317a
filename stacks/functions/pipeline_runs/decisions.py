"""Decisions about the members of a pipeline, without calls to AWS."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .records import InvalidRecord, Outcome, Result, Status, Task

METRICS_SECONDS = 180.0
"""Maximum time from the outcome of a run to the status with its last metrics, which a node writes separately."""


@dataclass(frozen=True)
class Wait:
    """The run has not ended, or its last metrics have not arrived."""


@dataclass(frozen=True)
class Succeed:
    """The member has finished."""

    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Fail:
    """The member has failed."""

    error: Literal["RunFailed", "BadConfiguration", "MetricsMissing"]
    cause: str


def canonical_digest(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of canonical JSON, as the nodes compute it for a run document."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def member_digest(item: str, previous: str, data: Sequence[Sequence[Any]]) -> str:
    """Return the digest of everything that a member's result depends on.

    Args:
        item: Digest of its configuration, code and image.
        previous: Digest of the member whose weights it reads or "".
        data: Key, size and ETag of each object of its data.
    """
    return canonical_digest({"item": item, "previous": previous, "data": [list(each) for each in data]})


def run_name(step: str, index: int, digest: str) -> str:
    """Return the name of a member's run. A member with other inputs is a different run."""
    return f"{step}-{index}-{digest[:8]}"


def run_document(
    item: Mapping[str, Any], *, code: Mapping[str, Any], fleet: str, run: str, weights: str
) -> dict[str, Any]:
    """Return the run document of a member for a fleet.

    Args:
        item: The document in the members' object, without code, fleet and run.
        code: The code bundle.
        fleet: Name of the slot's fleet.
        run: Name of the run.
        weights: Checkpoints of the previous step's run, or "".
    """
    document = {**item, "code": dict(code), "deployment": fleet, "run": run}
    training = document["training"]
    if weights and training.get("entrypoint"):
        arguments = [*training.get("arguments", []), "--weights", weights]
        document["training"] = {**training, "arguments": arguments}
    return document


def slot_order(slots: Sequence[str], last: str | None) -> list[str]:
    """Return the slots in the order in which a member tries them: first the one with its checkpoints."""
    return sorted(slots, key=lambda slot: slot != last)


def judge(task: Task, outcome: Outcome | None, status: Status | None, now_unix_seconds: float) -> Wait | Succeed | Fail:
    """Decide on a member from its run's records."""
    if outcome is None or outcome.run_digest != task.run_digest:
        return Wait()
    if outcome.outcome == "bad_configuration":
        return Fail("BadConfiguration", outcome.message)
    if outcome.outcome != "finished":
        return Fail("RunFailed", outcome.message)
    own = status if status is not None and status.run_digest == task.run_digest else None
    metrics = {} if own is None else own.metrics
    missing = [name for name in task.metrics if name not in metrics]
    is_last = own is not None and own.ended
    if not missing and (is_last or not task.metrics):
        return Succeed(metrics)
    if task.ended_unix_seconds is None or now_unix_seconds - task.ended_unix_seconds < METRICS_SECONDS:
        return Wait()
    if missing:
        return Fail("MetricsMissing", f"run {task.run} did not report {', '.join(missing)}")
    return Succeed(metrics)


def best(results: Sequence[Result], metric: str | None) -> Result:
    """Return the result with the lowest metric, and the lowest index among equal ones.

    Raises:
        InvalidRecord: A result does not have the metric.
    """
    if metric is None:
        return results[0]
    without = [each.run for each in results if metric not in each.metrics]
    if without:
        raise InvalidRecord(f"{', '.join(without[:10])}: no metric {metric}")
    return min(results, key=lambda each: (each.metrics[metric], each.index))
