"""State machines, executions and map runs."""

from __future__ import annotations

import base64
import json
import secrets
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

Status = Literal["RUNNING", "SUCCEEDED", "FAILED", "ABORTED"]
UNSUCCESSFUL = ("FAILED", "ABORTED")


class StateFailed(Exception):
    """A state failed with an error name and a cause, which Retry fields match."""

    def __init__(self, error: str, cause: str) -> None:
        super().__init__(f"{error}: {cause}")
        self.error = error
        self.cause = cause


@dataclass
class Machine:
    """A state machine. Executions keep the definition and the role with which they started."""

    arn: str
    name: str
    text: str
    definition: Mapping[str, Any]
    role_arn: str
    created: float
    revision_id: str
    tags: dict[str, str] = field(default_factory=dict)


@dataclass
class Attempt:
    """One attempt of a task.

    Attributes:
        token: Token of the task. Each attempt has its own.
        has_token: Whether the task waits for the token. Otherwise, it ends when the function returns.
    """

    execution: Execution
    token: str
    has_token: bool
    deadline: float
    heartbeat_deadline: float
    is_open: bool = True


@dataclass
class MapRun:
    """The child executions of a Map state.

    Attributes:
        pending: Indexes of the items that have not started, or whose executions wait for a redrive.
    """

    arn: str
    label: str
    parent: Execution
    state: Mapping[str, Any]
    items: list[Any]
    pending: deque[int]
    concurrency: int
    running: set[int] = field(default_factory=set)
    children: dict[int, Execution] = field(default_factory=dict)
    status: Status = "RUNNING"
    started: float = 0.0
    stopped: float | None = None
    redrives: int = 0

    def counts(self) -> dict[str, int]:
        """Return the number of executions by status, as in DescribeMapRun."""
        statuses = [child.status for child in self.children.values()]
        return {
            "pending": len([index for index in self.pending if index not in self.children]),
            "running": statuses.count("RUNNING"),
            "succeeded": statuses.count("SUCCEEDED"),
            "failed": statuses.count("FAILED"),
            "timedOut": 0,
            "aborted": statuses.count("ABORTED"),
            "total": len(self.items),
            "resultsWritten": 0,
        }


@dataclass
class Execution:
    """An execution of a state machine, or of a Map state's item processor.

    Attributes:
        state: Name of the current state. A redrive continues from it.
        data: Input of the current state.
        retries: Number of retries by each retrier of the current state.
        wake: Time of the next retry, Unix seconds.
    """

    arn: str
    name: str
    machine: Machine
    states: Mapping[str, Any]
    state: str
    data: Any
    input: Any
    started: float
    parent: MapRun | None = None
    index: int = 0
    status: Status = "RUNNING"
    stopped: float | None = None
    output: Any = None
    error: str | None = None
    cause: str | None = None
    redrives: int = 0
    redriven: float | None = None
    retries: dict[int, int] = field(default_factory=dict)
    wake: float | None = None
    attempt: Attempt | None = None
    map_run: MapRun | None = None
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def role_arn(self) -> str:
        """The role with which the execution calls services."""
        return self.machine.role_arn

    def note(self, kind: str, now: float, **details: Any) -> None:
        """Append an event to the history."""
        event = {"timestamp": datetime.fromtimestamp(now, UTC), "type": kind, "id": len(self.history) + 1}
        self.history.append({**event, "previousEventId": len(self.history), **details})

    def context(self, token: str | None = None) -> dict[str, Any]:
        """Return the context object, which paths that begin with `$$` read."""
        item = {} if self.parent is None else {"Item": {"Index": self.index, "Value": self.parent.items[self.index]}}
        started = datetime.fromtimestamp(self.started, UTC).isoformat(timespec="milliseconds")
        return {
            "Execution": {
                "Id": self.arn,
                "Name": self.name,
                "StartTime": started.replace("+00:00", "Z"),
                "Input": self.input,
                "RoleArn": self.role_arn,
                "RedriveCount": self.redrives,
            },
            "StateMachine": {"Id": self.machine.arn, "Name": self.machine.name},
            "State": {"Name": self.state, "RetryCount": sum(self.retries.values())},
            "Map": item,
            "Task": {} if token is None else {"Token": token},
        }


def new_token(execution: Execution) -> str:
    """Return a task token. Its first part names the state machine, on which IAM authorizes the use of the token."""
    suffix = "" if execution.parent is None else f"/{execution.parent.label}"
    owner = base64.urlsafe_b64encode(f"{execution.machine.arn}{suffix}".encode()).decode()
    return f"{owner}.{secrets.token_urlsafe(64)}"


def text_of(value: Any) -> str:
    """Return a value as JSON text."""
    return json.dumps(value, separators=(",", ":"))
