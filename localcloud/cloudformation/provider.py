"""The contract between the CloudFormation engine and the providers of single resource types.

The engine owns templates, the graph, change sets, events, roll-back and the decision between update and replacement; a
provider makes the service calls that create, change and remove one resource, as the real handler does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class ResourceContext:
    """Where a resource is made.

    `client(service)` gives a boto3 client signed by the stack's execution role (IAM is enforced on it), or by the
    caller when the stack has none. `tags` are the stack-level tags plus the three aws:cloudformation:* ones.
    `attributes` holds the resource's UpdatePolicy and CreationPolicy, evaluated. `generation` numbers the replacements
    of a resource: the new one gets another generated name than the old one beside it.
    """

    stack_name: str
    stack_id: str
    logical_id: str
    region: str
    account: str
    partition: str
    tags: Mapping[str, str]
    clients: Clientele
    attributes: Mapping[str, Any] = field(default_factory=dict)
    generation: int = 0

    def client(self, service: str) -> Any:
        """Return a boto3 client for `service`."""
        return self.clients.client(service)

    def generated_name(self, *, maximum_length: int = 64, lower_case: bool = False) -> str:
        """Return the physical name CloudFormation would make: stack-logical-suffix, the suffix stable per resource."""
        import hashlib

        seed = f"{self.stack_id}/{self.logical_id}" + (f"/{self.generation}" if self.generation else "")
        suffix = hashlib.sha256(seed.encode()).hexdigest()[:12]
        room = maximum_length - len(suffix) - 2
        logical = self.logical_id[: max(room // 2, room - len(self.stack_name))]
        name = f"{self.stack_name[: room - len(logical)]}-{logical}-{suffix}"
        return name.lower() if lower_case else name


class Clientele(Protocol):
    """Gives boto3 clients of one principal."""

    def client(self, service: str) -> Any:
        """Return a boto3 client for `service`."""
        ...


@dataclass(frozen=True)
class Made:
    """What a provider made: the id that Ref gives, and what Fn::GetAtt gives (dotted names flat)."""

    physical_id: str
    attributes: Mapping[str, Any] = field(default_factory=dict)


class ResourceFailure(Exception):
    """A resource could not be made, changed or removed; the message becomes the event's status reason.

    `physical_id` names what was made before a create failed half-way, so that the roll-back removes it.
    """

    def __init__(self, message: str, physical_id: str | None = None) -> None:
        super().__init__(message)
        self.physical_id = physical_id


class Provider(Protocol):
    """Creates, changes and removes resources of one type; ClientErrors may pass through, the engine reports them."""

    type_name: str

    def create(self, context: ResourceContext, properties: Mapping[str, Any]) -> Made:
        """Make the resource and wait until it is usable."""
        ...

    def update(
        self, context: ResourceContext, physical_id: str, old: Mapping[str, Any], new: Mapping[str, Any]
    ) -> Made:
        """Change the resource in place; only called when the engine decided that no replacement is needed."""
        ...

    def delete(self, context: ResourceContext, physical_id: str, properties: Mapping[str, Any]) -> None:
        """Remove the resource and wait until it is gone; a resource that is already gone is no error."""
        ...

    def exists(self, context: ResourceContext, physical_id: str, properties: Mapping[str, Any]) -> bool:
        """Tell whether the resource is still there (drift detection, and clean-up after a failure)."""
        ...
