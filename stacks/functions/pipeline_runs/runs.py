"""Starts, follows and stops the runs of a pipeline's members."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from . import decisions
from .records import InvalidRecord, Result, Task
from .store import SlotTaken, Store

CLOSED = ("TaskTimedOut", "TaskDoesNotExist", "InvalidToken")
"""Errors after which a token cannot be used again. Source (2026-11):
https://docs.aws.amazon.com/step-functions/latest/apireference/API_SendTaskHeartbeat.html"""
MAX_CAUSE = 32_000


class SlotsBusy(Exception):
    """All slots of the step are occupied. The state machine waits and starts the member again."""


@dataclass(frozen=True)
class Environment:
    """The function's settings.

    Attributes:
        deployment: Name of the deployment.
        checkpoint_bucket: Bucket of the runs' checkpoints.
        dataset_bucket: Bucket of the datasets and of the sources of prepared data.
        schema_version: Version of the documents that nodes read.
        code: The code bundle of the runs.
        fleets: All fleets of the deployment.
    """

    deployment: str
    checkpoint_bucket: str
    dataset_bucket: str
    schema_version: int
    code: Mapping[str, Any]
    fleets: Sequence[str]


class Runs:
    """The members of the pipeline's executions, and the runs in its slots.

    Args:
        environment: The function's settings.
        store: The pipeline's objects.
        ssm: A boto3 client.
        states: A boto3 client for Step Functions.
    """

    def __init__(self, environment: Environment, *, store: Store, ssm: Any, states: Any) -> None:
        self._environment = environment
        self._store = store
        self._ssm = ssm
        self._states = states

    def start(self, event: Mapping[str, Any], now_unix_seconds: float) -> dict[str, Any]:
        """Start a member's run in a free slot, or answer at once if a run with the same inputs has finished.

        Raises:
            SlotsBusy: Every slot of the step is occupied.
        """
        item, previous = event["item"], event.get("input") or {}
        digest = decisions.member_digest(item["digest"], str(previous.get("digest", "")), self._data(item["document"]))
        step, index, token, execution = event["step"], item["index"], event["token"], event["execution"]
        known = self._store.member(digest)
        if known is not None and known.finished_unix_seconds is not None:
            result = dataclasses.replace(known, step=step, index=index, settings=item["settings"], cached=True)
            self._store.put_result(execution, result)
            self._send_success(token)
            return {"started": None, "cached": known.run}
        run = decisions.run_name(step, index, digest) if known is None else known.run
        code, weights = self._environment.code, str(previous.get("weights", ""))
        last = None if known is None else known.fleet
        for fleet in decisions.slot_order(event["fleets"], last):
            written = decisions.run_document(item["document"], code=code, fleet=fleet, run=run, weights=weights)
            task = Task(
                *(token, execution, step, index, digest, run, decisions.canonical_digest(written), now_unix_seconds),
                *(tuple(event["metrics"]), item["settings"]),
            )
            if self._occupy(fleet, task):
                self._begin(fleet, task, written)
                return {"started": run, "fleet": fleet}
        raise SlotsBusy(f"all slots of step {step} are occupied: {', '.join(event['fleets'])}")

    def collect(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Return the member that the next step receives.

        Raises:
            InvalidRecord: A member's object is missing or invalid, or does not have the metric.
        """
        results = self._store.results(event["execution"], event["step"], int(event["members"]))
        chosen = decisions.best(results, event.get("keep"))
        trains = event.get("kind") == "train"
        previous = event.get("input") or {}
        return {
            "step": chosen.step,
            "index": chosen.index,
            "run": chosen.run,
            "fleet": chosen.fleet,
            "digest": chosen.digest,
            "settings": dict(chosen.settings),
            "metrics": dict(chosen.metrics),
            # A step that does not train passes on the weights that it received.
            "weights": self._weights(chosen) if trains else previous.get("weights", ""),
        }

    def check_all(self, now_unix_seconds: float) -> list[dict[str, Any]]:
        """Check the run in each slot: answer the state machine if it has ended, or send a heartbeat.

        A slot whose record is invalid is reported, and the other slots are checked.
        """
        found = []
        for fleet in self._environment.fleets:
            try:
                task, etag = self._store.slot(fleet)
                if task is not None:
                    found.append(
                        {"fleet": fleet, "run": task.run, "action": self._check(fleet, task, etag, now_unix_seconds)}
                    )
            except SlotTaken:
                found.append({"fleet": fleet, "action": "changed by another invocation"})
            except InvalidRecord as error:
                found.append({"fleet": fleet, "action": f"set aside: {error}"})
        return found

    def _check(self, fleet: str, task: Task, etag: str | None, now_unix_seconds: float) -> str:
        outcome = self._store.outcome(fleet, task.run)
        has_ended = outcome is not None and outcome.run_digest == task.run_digest
        if has_ended and task.ended_unix_seconds is None:
            task = dataclasses.replace(task, ended_unix_seconds=now_unix_seconds)
            etag = self._store.put_slot(fleet, task, etag)
        verdict = decisions.judge(
            task, outcome, self._store.status(fleet, task.run) if has_ended else None, now_unix_seconds
        )
        if isinstance(verdict, decisions.Wait):
            if self._is_open("send_task_heartbeat", taskToken=task.token):
                return "waits"
            self._stop(fleet, task)
            self._store.put_slot(fleet, None, etag)
            return "stopped"
        if isinstance(verdict, decisions.Succeed):
            result = dataclasses.replace(
                _result(fleet, task), metrics=verdict.metrics, finished_unix_seconds=now_unix_seconds
            )
            self._store.put_member(result)
            self._store.put_result(task.execution, result)
            # The state machine starts the next member as soon as it has the answer, and needs a free slot then. If
            # this invocation ends before the answer, the task's heartbeats end, and a retry finds the result.
            self._store.put_slot(fleet, None, etag)
            self._send_success(task.token)
            return "finished"
        cause = f"{task.run} in {fleet}: {verdict.cause}"[:MAX_CAUSE]
        self._store.put_slot(fleet, None, etag)
        self._is_open("send_task_failure", taskToken=task.token, error=verdict.error, cause=cause)
        return verdict.error

    def _occupy(self, fleet: str, task: Task) -> bool:
        """Put a task into a slot. Return False if another member occupies it."""
        try:
            present, etag = self._store.slot(fleet)
            if present is not None and present.digest != task.digest:
                return False
            self._store.put_slot(fleet, task, etag)
        except SlotTaken:
            return False
        return True

    def _begin(self, fleet: str, task: Task, document: Mapping[str, Any]) -> None:
        """Write a slot's run document, which starts the run."""
        self._store.put_member(_result(fleet, task))
        self._store.put_start(task)
        outcome = self._store.outcome(fleet, task.run)
        if outcome is not None and outcome.outcome != "finished":
            self._store.lift_outcome(fleet, task.run)
        try:  # an earlier execution may have stopped this slot's run
            self._ssm.delete_parameter(Name=f"/trainstack/{fleet}/desired")
        except ClientError as error:
            if error.response["Error"]["Code"] != "ParameterNotFound":
                raise
        self._ssm.put_parameter(
            Name=f"/trainstack/{fleet}/run",
            Value=json.dumps(document, separators=(",", ":")),
            Type="String",
            Tier="Intelligent-Tiering",
            Overwrite=True,
        )

    def _stop(self, fleet: str, task: Task) -> None:
        """Let the nodes save and leave. A later start of the member continues from the checkpoint."""
        value = {
            "schema_version": self._environment.schema_version,
            "state": "stopped",
            "requested_by": f"pipeline {self._environment.deployment} {task.execution}"[:256],
        }
        self._ssm.put_parameter(
            Name=f"/trainstack/{fleet}/desired", Value=json.dumps(value), Type="String", Overwrite=True
        )

    def _send_success(self, token: str) -> None:
        self._is_open("send_task_success", taskToken=token, output="{}")

    def _is_open(self, operation: str, **arguments: Any) -> bool:
        """Call Step Functions with a token. Return False if the task has ended, which is final."""
        try:
            getattr(self._states, operation)(**arguments)
        except ClientError as error:
            if error.response["Error"]["Code"] in CLOSED:
                return False
            raise
        return True

    def _weights(self, result: Result) -> str:
        return f"s3://{self._environment.checkpoint_bucket}/runs/{result.fleet}/{result.run}/checkpoints"

    def _data(self, document: Mapping[str, Any]) -> Sequence[tuple[str, int, str]]:
        """Return the objects that a run's dataset consists of, or that it is prepared from."""
        prepare = document.get("prepare")
        prefix = f"{prepare['source']}/" if prepare else f"datasets/{document['dataset']}/dataset.json"
        return self._store.objects(self._environment.dataset_bucket, prefix)


def _result(fleet: str, task: Task) -> Result:
    """Return the record of a member that has not finished."""
    return Result(
        *(task.step, task.index, task.digest, task.run, fleet, task.settings),
        started_unix_seconds=task.started_unix_seconds,
    )
