"""Explains in one sentence why a run is not training, with the evidence and the remedy.

The run controller classifies the causes (`stacks.functions.run_controller.causes`). This module adds the sentences, and
the nodes' reports on failed training.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bootstrap.documents.object_keys import results_prefix
from bootstrap.events.schema import GenerationEnded
from stacks.functions.run_controller.causes import REMEDIES, Cause
from trainstack.account import Clients, Observation
from trainstack.observe.status import LATE_SECONDS, Status, duration

SENTENCES: Mapping[Cause, str] = {
    Cause.PERMISSION: "AWS denies the launch of nodes.",
    Cause.CONFIGURATION: "AWS or the trainer rejects a resource or setting.",
    Cause.QUOTA: "The account's quota is too low for the nodes.",
    Cause.DATASET_MISSING: "The dataset does not exist.",
    Cause.BOOT_FAILURE: "Nodes fail to boot.",
    Cause.PRICE: "The maximum price is below the nodes' price.",
    Cause.CAPACITY: "AWS does not have capacity for the nodes.",
    Cause.GANG_INCOMPLETE: "The gang is incomplete: too few nodes are in service.",
    Cause.UNKNOWN: "The run has too few nodes, and AWS has not reported a known reason.",
    Cause.TRAINING_FAILED: "Training failed.",
    Cause.SPEND_LIMIT: "The run has reached a limit in its deployment file.",
    Cause.STOPPED: "An operator stopped the run.",
    Cause.FINISHED: "The run has finished.",
}
FAILURE_DAYS = 7
"""Maximum age of the failure reports to read."""
FAILURES_PATTERN = '{ ($.event = "generation_ended") && ($.outcome = "failed") }'
MAX_MESSAGE_CHARACTERS = 1000


@dataclass(frozen=True)
class Failure:
    """The earliest report on the newest failed generation, with the message of its first failed rank."""

    generation: int
    instance_id: str
    unix_seconds: float
    message: str


@dataclass(frozen=True)
class Explanation:
    """Why a run is in its phase. `cause` and `remedy` are empty if nothing prevents training."""

    phase: str
    cause: str
    sentence: str
    evidence: tuple[str, ...]
    remedy: str

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as JSON values."""
        return dataclasses.asdict(self)

    def lines(self) -> list[str]:
        """Return the explanation as lines of text."""
        head = f"{self.cause or self.phase}: {self.sentence}"
        return [head, *(f"  {each}" for each in self.evidence), *([f"remedy: {self.remedy}"] if self.remedy else [])]


def explain(seen: Observation, status: Status, failure: Callable[[], Failure | None]) -> Explanation:
    """Explain a run's phase.

    Args:
        seen: The observation from which the status was derived.
        status: The status.
        failure: Reads the first report on the newest failed generation, if training failed or stopped reporting.
    """
    cause = Cause(status.cause) if status.cause else None
    is_silent = status.status_age_seconds is None or status.status_age_seconds > LATE_SECONDS
    found = (
        failure() if cause is Cause.TRAINING_FAILED or (cause is None and _should_train(status, is_silent)) else None
    )
    if cause is None and found is not None and found.generation >= (status.generation or 0):
        cause = Cause.TRAINING_FAILED
    evidence = [*_controller(seen, status), *([] if found is None else _failure(seen, found)), *_numbers(status)]
    if cause is None:
        return Explanation(status.phase, "", _progress(status, is_silent), tuple(evidence), "")
    return Explanation(status.phase, str(cause), SENTENCES[cause], tuple(evidence), REMEDIES[cause])


def first_failure(client: Clients, seen: Observation, now_unix_seconds: float) -> Failure | None:
    """Return the first report on the newest generation that failed, or None.

    Raises:
        botocore.exceptions.ClientError: AWS rejected the call.
    """
    start = int((now_unix_seconds - FAILURE_DAYS * 86400) * 1000)
    pages = (
        client("logs")
        .get_paginator("filter_log_events")
        .paginate(logGroupName=seen.deployment.log_group, startTime=start, filterPattern=FAILURES_PATTERN)
    )
    return newest([entry["message"] for page in pages for entry in page["events"]])


def newest(messages: Sequence[str]) -> Failure | None:
    """Return the earliest failure of the newest failed generation. Other text is ignored."""
    found = [failure for message in messages if (failure := _decode(message)) is not None]
    last = max((each.generation for each in found), default=0)
    return min((each for each in found if each.generation == last), key=lambda each: each.unix_seconds, default=None)


def _decode(text: str) -> Failure | None:
    try:
        event = json.loads(text)
        is_failure = event["event"] == GenerationEnded.event_name() and event["outcome"] == "failed"
        failure = Failure(
            int(event["generation"]),
            str(event["instance_id"]),
            float(event["unix_seconds"]),
            str(event["message"])[:MAX_MESSAGE_CHARACTERS],
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return failure if is_failure else None


def _should_train(status: Status, is_silent: bool) -> bool:
    return status.phase == "running" and is_silent and bool(status.nodes)


def _progress(status: Status, is_silent: bool) -> str:
    if status.phase == "running" and not is_silent:
        total = "" if status.steps_total is None else f" of {status.steps_total:,}"
        return (
            f"Nothing is wrong: the run is training, at step {status.step:,}{total}."
            if status.step is not None
            else ("Nothing is wrong: the run has started training.")
        )
    if _should_train(status, is_silent):
        return "The nodes are in service, but they have not reported training yet."
    return f"{status.reason[:1].upper()}{status.reason[1:]}."


def _controller(seen: Observation, status: Status) -> list[str]:
    """Return the controller's reason, AWS's message and the age of both."""
    state = seen.controller
    if state is None or state.run_digest != status.run_digest:
        return [f"run controller: {status.reason}"]
    age = "" if status.controller_age_seconds is None else f" ({duration(status.controller_age_seconds)} ago)"
    found = [f"run controller: {state.reason}{age}", *([f"message: {state.problem}"] if state.problem else [])]
    found += [f"deadline: {status.deadline}"] if status.deadline else []
    return [*found, *([f"zones: {state.choice}"] if state.choice else [])]


def _failure(seen: Observation, failure: Failure) -> list[str]:
    run = "" if seen.run is None else seen.run.run
    bucket, results = seen.deployment.checkpoint_bucket, results_prefix(seen.deployment.name, run)
    prefix = f"s3://{bucket}/{results}gen-{failure.generation}/"
    where = f"generation {failure.generation} on {failure.instance_id}"
    return [f"first error: {failure.message} ({where})", f"logs and tracebacks: {prefix}"]


def _numbers(status: Status) -> list[str]:
    wanted = "" if status.nodes_wanted is None else f" of {status.nodes_wanted}"
    found = [f"nodes: {len(status.nodes)}{wanted}"]
    if status.step is not None and status.status_age_seconds is not None:
        found.append(f"newest report: step {status.step:,}, {duration(status.status_age_seconds)} ago")
    if status.checkpoint_step is not None:
        found.append(f"newest durable checkpoint: step {status.checkpoint_step:,}")
    return [*found, *status.notes]
