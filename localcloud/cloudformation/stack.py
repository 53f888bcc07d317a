"""What the engine knows of stacks: their configuration, resources, events, change sets and outputs."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localcloud.cloudformation.drift_comparison import ResourceDrift
    from localcloud.cloudformation.execution import Deployment

STACK_TYPE = "AWS::CloudFormation::Stack"
# From these a stack may be updated. Source:
# https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/view-stack-events.html (stack status codes, 2026-11).
UPDATABLE = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "CREATE_FAILED", "UPDATE_FAILED")


def now() -> datetime:
    """Return the present in UTC, as event and stack times use it."""
    return datetime.now(tz=timezone.utc)


@dataclass
class Resource:
    """One resource of a stack as it is now.

    `definition` has its functions evaluated (see `definition.evaluate`); `physical_id` is empty until it is made;
    `needs` are the resources that must outlive it; `generation` numbers its replacements: generated names differ.
    """

    logical_id: str
    type_name: str
    definition: Mapping[str, Any]
    physical_id: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    needs: frozenset[str] = frozenset()
    generation: int = 0
    status: str = ""
    reason: str | None = None
    updated: datetime = field(default_factory=now)

    @property
    def properties(self) -> Mapping[str, Any]:
        """The resolved properties."""
        found: Mapping[str, Any] = self.definition["Properties"]
        return found


@dataclass(frozen=True)
class Configuration:
    """What a stack is told to be: everything that a deploy sets and a roll-back restores."""

    template_body: str = ""
    template: Mapping[str, Any] = field(default_factory=dict)
    raw_parameters: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    capabilities: tuple[str, ...] = ()

    @property
    def hidden_parameters(self) -> set[str]:
        """The names of the parameters that are shown to nobody (NoEcho)."""
        declared = self.template.get("Parameters", {})
        return {name for name, item in declared.items() if str(item.get("NoEcho", False)).lower() == "true"}


@dataclass
class ChangeSet:
    """A change set: what was asked, and what it would do."""

    name: str
    change_set_id: str
    kind: str
    configuration: Configuration
    role_arn: str | None
    changes: list[dict[str, Any]]
    description: str | None = None
    status: str = "CREATE_COMPLETE"
    reason: str | None = None
    execution_status: str = "AVAILABLE"
    on_failure: str | None = None
    deployment_config: Mapping[str, Any] = field(default_factory=dict)
    created: datetime = field(default_factory=now)


@dataclass
class Stack:
    """A stack and its history. `lock` guards changes of status, events and resources."""

    name: str
    stack_id: str
    region: str
    account: str
    configuration: Configuration = field(default_factory=Configuration)
    status: str = "REVIEW_IN_PROGRESS"
    reason: str | None = None
    role_arn: str | None = None
    disable_rollback: bool = False
    retain_except_on_create: bool = False
    termination_protection: bool = False
    resources: dict[str, Resource] = field(default_factory=dict)
    outputs: list[dict[str, Any]] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)
    events: list[dict[str, Any]] = field(default_factory=list)
    change_sets: dict[str, ChangeSet] = field(default_factory=dict)
    change_set_id: str | None = None
    deployment_config: Mapping[str, Any] = field(default_factory=dict)
    operation_id: str = ""
    operations: list[dict[str, str]] = field(default_factory=list)
    pending: Deployment | None = None
    generations: dict[str, int] = field(default_factory=dict)
    drift: Mapping[str, ResourceDrift] = field(default_factory=dict)
    drift_checked: datetime | None = None
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

    def begin(self, status: str, operation: str, token: str | None, reason: str | None = "User Initiated") -> None:
        """Start an operation: a new operation id and the status that says so.

        Args:
            operation: CloudFormation's OperationType, such as CREATE_STACK.
        """
        with self.lock:
            self.operation_id = str(uuid.uuid4())
            self.operations.insert(0, {"OperationType": operation, "OperationId": self.operation_id})
            self.set_status(status, token, reason)

    def set_status(self, status: str, token: str | None, reason: str | None = None) -> None:
        """Change the stack's status and tell it as an event."""
        with self.lock:
            self.status, self.reason = status, reason
            if not status.startswith(("REVIEW", "CREATE")):
                self.updated = now()
            self.event(self.name, STACK_TYPE, self.stack_id, status, token, reason)

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
        with self.lock:
            at = now()
            if self.events:
                # Clients sort by milliseconds; events of one stack must keep their order there.
                at = max(at, self.events[-1]["Timestamp"] + timedelta(milliseconds=1))
            entry: dict[str, Any] = {
                "StackId": self.stack_id,
                "StackName": self.name,
                "EventId": str(uuid.uuid4()),
                "OperationId": self.operation_id,
                "LogicalResourceId": logical_id,
                "PhysicalResourceId": physical_id,
                "ResourceType": type_name,
                "Timestamp": at,
                "ResourceStatus": status,
            }
            if token is not None:
                entry["ClientRequestToken"] = token
            if reason is not None:
                entry["ResourceStatusReason"] = reason
            self.events.append(entry)

    def next_generation(self, logical_id: str) -> int:
        """Return the number of the next resource of this logical id, from 0."""
        with self.lock:
            number = self.generations.get(logical_id, 0)
            self.generations[logical_id] = number + 1
            return number

    def put(self, resource: Resource) -> Resource:
        """Make a resource the stack's own, in place of what had its logical id."""
        with self.lock:
            self.resources[resource.logical_id] = resource
        return resource

    def drop(self, resource: Resource) -> None:
        """Forget a resource that is gone, unless its logical id has another resource by now."""
        with self.lock:
            current = self.resources.get(resource.logical_id)
            if current is not None and current.physical_id == resource.physical_id:
                del self.resources[resource.logical_id]

    def exports(self) -> dict[str, Any]:
        """Return the values of this stack's exports by name."""
        return {o["ExportName"]: o["OutputValue"] for o in self.outputs if "ExportName" in o}
