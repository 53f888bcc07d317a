"""What the engine knows of stacks: their resources, events, change sets and outputs."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

FINAL_STATUSES = ("_COMPLETE", "_FAILED")


def now() -> datetime:
    """Return the present in UTC, as event and stack times use it."""
    return datetime.now(tz=timezone.utc)


@dataclass
class Resource:
    """One resource of a stack as it is now: resolved properties, attributes, and what it needs."""

    logical_id: str
    type_name: str
    physical_id: str = ""
    properties: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    definition: Mapping[str, Any] = field(default_factory=dict)
    needs: frozenset[str] = frozenset()
    status: str = ""
    reason: str | None = None
    updated: datetime = field(default_factory=now)


@dataclass
class ChangeSet:
    """A change set: what was asked, and what it would do."""

    name: str
    change_set_id: str
    kind: str
    template_body: str
    template: Mapping[str, Any]
    raw_parameters: dict[str, str]
    parameters: dict[str, Any]
    tags: dict[str, str]
    role_arn: str | None
    capabilities: list[str]
    changes: list[dict[str, Any]]
    description: str | None = None
    status: str = "CREATE_COMPLETE"
    reason: str | None = None
    execution_status: str = "AVAILABLE"
    on_failure: str | None = None
    created: datetime = field(default_factory=now)


@dataclass
class Stack:
    """A stack and its history. `lock` guards changes of status and of the maps."""

    name: str
    stack_id: str
    region: str
    account: str
    status: str = "REVIEW_IN_PROGRESS"
    reason: str | None = None
    description: str | None = None
    template_body: str = ""
    template: Mapping[str, Any] = field(default_factory=dict)
    raw_parameters: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    capabilities: list[str] = field(default_factory=list)
    role_arn: str | None = None
    disable_rollback: bool = False
    termination_protection: bool = False
    resources: dict[str, Resource] = field(default_factory=dict)
    outputs: list[dict[str, Any]] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)
    events: list[dict[str, Any]] = field(default_factory=list)
    change_sets: dict[str, ChangeSet] = field(default_factory=dict)
    change_set_id: str | None = None
    created: datetime = field(default_factory=now)
    updated: datetime | None = None
    deleted: datetime | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def is_busy(self) -> bool:
        """Whether an operation is under way."""
        return self.status.endswith("_IN_PROGRESS") and self.status != "REVIEW_IN_PROGRESS"

    @property
    def exists(self) -> bool:
        """Whether the stack has ever been made and is not deleted."""
        return self.status not in ("REVIEW_IN_PROGRESS", "DELETE_COMPLETE")

    def set_status(self, status: str, token: str | None, reason: str | None = None) -> None:
        """Change the stack's status and tell it as an event."""
        with self.lock:
            self.status, self.reason = status, reason
            self.updated = now()
            self.event(self.name, "AWS::CloudFormation::Stack", self.stack_id, status, token, reason)

    def event(
        self,
        logical_id: str,
        type_name: str,
        physical_id: str,
        status: str,
        token: str | None,
        reason: str | None = None,
    ) -> None:
        """Append an event, newest last."""
        entry: dict[str, Any] = {
            "StackId": self.stack_id,
            "StackName": self.name,
            "EventId": str(uuid.uuid4()),
            "LogicalResourceId": logical_id,
            "PhysicalResourceId": physical_id,
            "ResourceType": type_name,
            "Timestamp": now(),
            "ResourceStatus": status,
        }
        if token is not None:
            entry["ClientRequestToken"] = token
        if reason is not None:
            entry["ResourceStatusReason"] = reason
        with self.lock:
            self.events.append(entry)

    def exports(self) -> dict[str, Any]:
        """Return the values of this stack's exports by name."""
        return {o["ExportName"]: o["OutputValue"] for o in self.outputs if "ExportName" in o}
