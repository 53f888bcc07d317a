"""The objects of a pipeline, and the records of its runs. Nodes can write the latter, so each value is checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

MAX_BYTES = 256 * 1024
MAX_MESSAGE = 4000
MAX_METRICS = 100
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")

T = TypeVar("T")


class InvalidRecord(ValueError):
    """A record is invalid. The message states the rule."""


@dataclass(frozen=True)
class Task:
    """A member that occupies a slot.

    Attributes:
        token: The state machine's task token, which no node can read.
        execution: Name of the execution.
        digest: Digest of the member's inputs.
        run_digest: Digest of the run document.
        metrics: Metrics that the run must report.
        ended_unix_seconds: Time at which the run's outcome was first seen.
    """

    token: str
    execution: str
    step: str
    index: int
    digest: str
    run: str
    run_digest: str
    started_unix_seconds: float
    metrics: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    ended_unix_seconds: float | None = None


@dataclass(frozen=True)
class Result:
    """A member's run and its place in an execution. `finished_unix_seconds` is None until it has finished."""

    step: str
    index: int
    digest: str
    run: str
    fleet: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    started_unix_seconds: float = 0.0
    finished_unix_seconds: float | None = None
    cached: bool = False

    @property
    def seconds(self) -> float | None:
        """Time from the start of the run to its end, or None until it has finished."""
        return None if self.finished_unix_seconds is None else self.finished_unix_seconds - self.started_unix_seconds


@dataclass(frozen=True)
class Outcome:
    """A run's outcome."""

    run_digest: str
    outcome: str
    message: str


@dataclass(frozen=True)
class Status:
    """A run's last progress. `ended`: its generation has ended, so the metrics are the last ones."""

    run_digest: str
    ended: bool
    metrics: Mapping[str, float]


def to_bytes(record: Task | Result) -> bytes:
    """Return a record as JSON."""
    return json.dumps({"schema_version": 1, **asdict(record)}).encode()


def task_of(content: bytes) -> Task | None:
    """Return the task in a slot's object, or None if the slot is free. Raises InvalidRecord."""
    values = _object(content)
    if not values.get("token"):
        return None
    metrics = tuple(str(each) for each in values.get("metrics", ()))
    return _made(Task, {**values, "metrics": metrics})


def result_of(content: bytes) -> Result:
    """Return a result. Raises InvalidRecord."""
    return _made(Result, _object(content))


def outcome_of(content: bytes) -> Outcome:
    """Return a run's outcome. Raises InvalidRecord."""
    values = _object(content)
    step = values.get("step")
    if not isinstance(step, int) or isinstance(step, bool):
        raise InvalidRecord("step: must be an integer")
    texts = [values.get(name) for name in ("run_digest", "outcome", "message")]
    if not all(isinstance(each, str) for each in texts):
        raise InvalidRecord("run_digest, outcome, message: must be text")
    return Outcome(str(texts[0]), str(texts[1]), str(texts[2])[:MAX_MESSAGE])


def status_of(content: bytes) -> Status:
    """Return a run's status. Metrics that are not finite numbers are ignored. Raises InvalidRecord."""
    values = _object(content)
    digest = values.get("run_digest")
    if not isinstance(digest, str):
        raise InvalidRecord("run_digest: must be text")
    given = values.get("metrics")
    named = {**(given if isinstance(given, dict) else {}), **{n: values.get(n) for n in ("loss", "validation_loss")}}
    metrics = {name: float(value) for name, value in list(named.items())[:MAX_METRICS] if _is_metric(name, value)}
    return Status(digest, values.get("ended") is True, metrics)


def _is_metric(name: object, value: object) -> bool:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or isinstance(value, bool):
        return False
    return isinstance(value, (int, float)) and abs(value) < 1e300


def _object(content: bytes) -> dict[str, Any]:
    if len(content) > MAX_BYTES:
        raise InvalidRecord(f"{len(content)} bytes: must have at most {MAX_BYTES}")
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(f"must be JSON ({error!r})") from error
    if not isinstance(values, dict):
        raise InvalidRecord("must be a JSON object")
    return values


def _made(kind: type[T], values: Mapping[str, Any]) -> T:
    names = {name: value for name, value in values.items() if name != "schema_version"}
    try:
        return kind(**names)
    except TypeError as error:
        raise InvalidRecord(str(error)) from error
