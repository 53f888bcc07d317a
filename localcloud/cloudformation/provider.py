"""Interface between the CloudFormation engine and the resource type providers.

The engine handles templates, the dependency graph, change sets, events and rollback, and chooses between update and
replacement. Like a real resource handler, a provider makes the service calls that create, update and delete a
resource.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable


class ClientFactory(Protocol):
    """Creates boto3 clients that sign as a single principal."""

    def client(self, service: str) -> Any:
        """Return a boto3 client for `service`."""
        ...


@dataclass(frozen=True)
class ResourceContext:
    """A resource's stack, name, tags and clients.

    Attributes:
        tags: The stack's tags plus the three aws:cloudformation:* tags.
        clients: Clients that sign as the stack's execution role, with IAM enforced, or as root if there is no role.
        attributes: The resource's evaluated UpdatePolicy and CreationPolicy.
        generation: Number of replacements so far. It makes a replacement's generated name differ from the old name.
    """

    stack_name: str
    stack_id: str
    logical_id: str
    region: str
    account: str
    partition: str
    tags: Mapping[str, str]
    clients: ClientFactory
    attributes: Mapping[str, Any] = field(default_factory=dict)
    generation: int = 0

    def client(self, service: str) -> Any:
        """Return a boto3 client for `service`."""
        return self.clients.client(service)

    def generated_name(self, *, maximum_length: int = 64, lower_case: bool = False) -> str:
        """Return a physical name in CloudFormation's form, stack-logical-suffix. The name is the same on every call."""
        seed = f"{self.stack_id}/{self.logical_id}" + (f"/{self.generation}" if self.generation else "")
        suffix = hashlib.sha256(seed.encode()).hexdigest()[:12]
        room = maximum_length - len(suffix) - 2
        logical = self.logical_id[: max(room // 2, room - len(self.stack_name))]
        name = f"{self.stack_name[: room - len(logical)]}-{logical}-{suffix}"
        return name.lower() if lower_case else name


@dataclass(frozen=True)
class Provisioned:
    """A created or updated resource: its Ref value and its Fn::GetAtt values (nested names are dotted)."""

    physical_id: str
    attributes: Mapping[str, Any] = field(default_factory=dict)


class ResourceFailure(Exception):
    """Creating, updating or deleting a resource failed; the message becomes the event's status reason.

    `physical_id` names a partially created resource, which the rollback deletes.
    """

    def __init__(self, message: str, physical_id: str | None = None) -> None:
        super().__init__(message)
        self.physical_id = physical_id


class Provider(Protocol):
    """Creates, updates and deletes resources of a single type. The engine reports any ClientError that it raises."""

    type_name: str

    def create(self, context: ResourceContext, properties: Mapping[str, Any]) -> Provisioned:
        """Create the resource and wait until it is ready."""
        ...

    def update(
        self, context: ResourceContext, physical_id: str, old: Mapping[str, Any], new: Mapping[str, Any]
    ) -> Provisioned:
        """Update the resource in place. The engine calls this only if no replacement is needed."""
        ...

    def delete(self, context: ResourceContext, physical_id: str, properties: Mapping[str, Any]) -> None:
        """Delete the resource and wait until it no longer exists. A missing resource is not an error."""
        ...

    def exists(self, context: ResourceContext, physical_id: str, properties: Mapping[str, Any]) -> bool:
        """Return True if the resource exists (for drift detection)."""
        ...


@runtime_checkable
class ReadableProvider(Protocol):
    """Provider that reads a resource's current properties for drift detection."""

    def read_properties(
        self, context: ResourceContext, physical_id: str, properties: Mapping[str, Any], known_ids: frozenset[str]
    ) -> Mapping[str, Any]:
        """Return the current properties in template form. Properties missing from the result are not compared.

        Args:
            known_ids: Physical IDs of all resources in all stacks. They identify settings, such as security group
                rules, that are resources themselves and therefore not part of this resource.
        """
        ...
