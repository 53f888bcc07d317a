"""Stack state: configuration, resources, events, change sets, outputs and undo log."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

STACK_TYPE = "AWS::CloudFormation::Stack"
# Statuses that allow an update. Source:
# https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/view-stack-events.html (stack status codes, 2026-11).
UPDATABLE = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "CREATE_FAILED", "UPDATE_FAILED")
DriftStatus = Literal["IN_SYNC", "MODIFIED", "DELETED", "NOT_CHECKED"]


def now() -> datetime:
    """Return the current time in UTC, for events and stacks."""
    return datetime.now(tz=UTC)


@dataclass
class Resource:
    """Current state of a resource in a stack.

    Attributes:
        definition: Type, properties and attributes, with functions evaluated (see `definition.evaluate`).
        physical_id: Physical ID, which is empty until the resource exists.
        needs: Resources that this resource depends on, which must be deleted after it.
        generation: Number of replacements so far, which is part of generated names.
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
        """The evaluated properties."""
        found: Mapping[str, Any] = self.definition["Properties"]
        return found

    def attribute(self, name: str) -> Any:
        """Return an attribute. As on AWS, the properties that the template sets are also attributes.

        Raises:
            KeyError: The resource has no such attribute.
        """
        if name in self.attributes:
            return self.attributes[name]
        value: Any = self.properties
        for part in name.split("."):
            if not isinstance(value, Mapping):
                raise KeyError(name)
            value = value[part]
        return value


@dataclass(frozen=True)
class Configuration:
    """A stack's template, parameters, tags and capabilities, which a deployment sets and a rollback restores."""

    template_body: str = ""
    template: Mapping[str, Any] = field(default_factory=dict)
    raw_parameters: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    capabilities: tuple[str, ...] = ()

    @property
    def hidden_parameters(self) -> set[str]:
        """Names of the parameters whose values are masked (NoEcho)."""
        declared = self.template.get("Parameters", {})
        return {name for name, item in declared.items() if str(item.get("NoEcho", False)).lower() == "true"}


@dataclass
class ChangeSet:
    """A requested configuration and the changes that result from it."""

    name: str
    change_set_id: str
    kind: str
    configuration: Configuration
    role_arn: str | None
    changes: list[dict[str, Any]]
    warnings: list[str] = field(default_factory=list)
    description: str | None = None
    status: str = "CREATE_COMPLETE"
    reason: str | None = None
    execution_status: str = "AVAILABLE"
    on_failure: str | None = None
    deployment_config: Mapping[str, Any] = field(default_factory=dict)
    created: datetime = field(default_factory=now)

    @property
    def is_open(self) -> bool:
        """Whether the change set is neither executed nor obsolete. Only open change sets are listed."""
        return self.execution_status in ("AVAILABLE", "UNAVAILABLE")

    @property
    def holds_name(self) -> bool:
        """Whether the change set can be found by its name."""
        return self.is_open or self.execution_status == "EXECUTE_IN_PROGRESS"


@dataclass
class Undo:
    """An operation's undo log. It is kept while the stack is in a failed state, and the next operation extends it.

    Attributes:
        before: All resources before the first operation.
        created: Logical IDs of the created resources.
        updated: Logical IDs of the updated resources, in order.
        attempted: Definitions of failed updates, which may have been partially applied.
        replaced: Resources that have been replaced.
        orphans: Resources to delete after success or failure, such as replacements that were themselves replaced.
    """

    configuration: Configuration
    outputs: list[dict[str, Any]]
    imports: set[str]
    before: Mapping[str, Resource]
    created: set[str] = field(default_factory=set)
    updated: dict[str, None] = field(default_factory=dict)
    attempted: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    replaced: dict[str, Resource] = field(default_factory=dict)
    orphans: list[Resource] = field(default_factory=list)


@dataclass(frozen=True)
class PropertyDifference:
    """A difference between a template and a resource at a JSON pointer. Missing values are None."""

    path: str
    expected: Any
    actual: Any


@dataclass(frozen=True)
class ResourceDrift:
    """Result of drift detection for a resource."""

    status: DriftStatus
    differences: Sequence[PropertyDifference] = field(default=())
    actual: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_drifted(self) -> bool:
        """Whether the resource was modified or deleted outside the stack."""
        return self.status in ("MODIFIED", "DELETED")


@dataclass
class Stack:
    """A stack and its history.

    Attributes:
        undo: Undo log of the running or last failed operation.
        cancelled: Event that stops the running update when set.
        lock: Lock that guards changes to the status, events and resources.
    """

    name: str
    stack_id: str
    region: str
    account: str
    configuration: Configuration = field(default_factory=Configuration)
    status: str = "REVIEW_IN_PROGRESS"
    reason: str | None = "User Initiated"
    role_arn: str | None = None
    disable_rollback: bool = False
    retain_except_on_create: bool = False
    termination_protection: bool = False
    resources: dict[str, Resource] = field(default_factory=dict)
    outputs: list[dict[str, Any]] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)
    events: list[dict[str, Any]] = field(default_factory=list)
    change_sets: list[ChangeSet] = field(default_factory=list)
    change_set_id: str | None = None
    deployment_config: Mapping[str, Any] = field(default_factory=dict)
    operation_id: str = ""
    operations: list[dict[str, str]] = field(default_factory=list)
    undo: Undo | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)
    generations: dict[str, int] = field(default_factory=dict)
    drift: Mapping[str, ResourceDrift] = field(default_factory=dict)
    drift_checked: datetime | None = None
    created: datetime = field(default_factory=now)
    updated: datetime | None = None
    deleted: datetime | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def is_busy(self) -> bool:
        """Whether an operation is running."""
        return self.status.endswith("_IN_PROGRESS") and self.status != "REVIEW_IN_PROGRESS"

    @property
    def exists(self) -> bool:
        """Whether the stack has been created and is not deleted."""
        return self.status not in ("REVIEW_IN_PROGRESS", "DELETE_COMPLETE")

    def begin(self, status: str, operation: str, token: str | None, reason: str | None = "User Initiated") -> None:
        """Start an operation with a new operation ID.

        Args:
            operation: CloudFormation's OperationType, such as CREATE_STACK.
        """
        with self.lock:
            self.operation_id = str(uuid.uuid4())
            self.operations.insert(0, {"OperationType": operation, "OperationId": self.operation_id})
            self.set_status(status, token, reason)

    def set_status(self, status: str, token: str | None, reason: str | None = None) -> None:
        """Set the stack's status and append an event."""
        with self.lock:
            self.status, self.reason = status, reason
            if not status.startswith(("REVIEW", "CREATE", "DELETE")):
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
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        """Append an event. Events are in chronological order."""
        with self.lock:
            at = now()
            if self.events:
                # Clients sort events by milliseconds, so consecutive events must differ by at least 1 ms.
                at = max(at, self.events[-1]["Timestamp"] + timedelta(milliseconds=1))
            entry: dict[str, Any] = {
                "StackId": self.stack_id,
                "StackName": self.name,
                "EventId": str(uuid.uuid4()),
                "LogicalResourceId": logical_id,
                "PhysicalResourceId": physical_id,
                "ResourceType": type_name,
                "Timestamp": at,
                "ResourceStatus": status,
            }
            if properties is not None:
                entry["EventId"] = f"{logical_id}-{status}-{at.isoformat(timespec='milliseconds')[:23]}Z"
                entry["ResourceProperties"] = json.dumps(properties, default=str)
            if self.operation_id:
                entry["OperationId"] = self.operation_id
            if token is not None:
                entry["ClientRequestToken"] = token
            if reason is not None:
                entry["ResourceStatusReason"] = reason
            self.events.append(entry)

    def next_generation(self, logical_id: str) -> int:
        """Return the generation of the next resource with this logical ID, starting at 0."""
        with self.lock:
            number = self.generations.get(logical_id, 0)
            self.generations[logical_id] = number + 1
            return number

    def put(self, resource: Resource) -> Resource:
        """Store a resource, replacing any resource with the same logical ID."""
        with self.lock:
            self.resources[resource.logical_id] = resource
        return resource

    def drop(self, resource: Resource) -> None:
        """Remove a deleted resource, unless another resource has taken its logical ID."""
        with self.lock:
            current = self.resources.get(resource.logical_id)
            if current is not None and current.physical_id == resource.physical_id:
                del self.resources[resource.logical_id]

    def exports(self) -> dict[str, Any]:
        """Return the values of this stack's exports, keyed by name."""
        return {o["ExportName"]: o["OutputValue"] for o in self.outputs if "ExportName" in o}
