"""One resource at a time: create, change, replace, remove and undo, with the events that AWS sends."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from localcloud.api import ApiError, Clients
from localcloud.cloudformation.accepted import ACCEPTED_TYPES
from localcloud.cloudformation.provider import Made, Provider, ResourceContext, ResourceFailure
from localcloud.cloudformation.stack import Resource, Stack, now

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RoleClients:
    """Clients signed by a stack's execution role, or by root when the stack has none."""

    clients: Clients
    role_arn: str | None

    def client(self, service: str) -> Any:
        """Return a boto3 client for `service`."""
        return self.clients.client(service, role_arn=self.role_arn)


class AcceptedProvider:
    """Stands for a type of the accepted list: it has an id and no effect."""

    def __init__(self, type_name: str) -> None:
        self.type_name = type_name

    def create(self, context: ResourceContext, properties: Mapping[str, Any]) -> Made:
        """Give it an id."""
        return Made(context.generated_name())

    def update(
        self, context: ResourceContext, physical_id: str, old: Mapping[str, Any], new: Mapping[str, Any]
    ) -> Made:
        """Keep its id."""
        return Made(physical_id)

    def delete(self, context: ResourceContext, physical_id: str, properties: Mapping[str, Any]) -> None:
        """Nothing to remove."""

    def exists(self, context: ResourceContext, physical_id: str, properties: Mapping[str, Any]) -> bool:
        """It is there as long as the stack says so."""
        return True


class Worker:
    """Carries out work on the resources of one stack operation."""

    def __init__(
        self, stack: Stack, clients: Clients, providers: Mapping[str, Provider], custom: Provider, token: str | None
    ) -> None:
        self.stack = stack
        self.token = token
        self._clients = RoleClients(clients, stack.role_arn)
        self._providers = providers
        self._custom = custom

    def provider(self, type_name: str) -> Provider:
        """Return the provider of a type.

        Raises:
            ResourceFailure: Nobody emulates the type.
        """
        if type_name.startswith("Custom::") or type_name == "AWS::CloudFormation::CustomResource":
            return self._custom
        if type_name in self._providers:
            return self._providers[type_name]
        if type_name in ACCEPTED_TYPES:
            return AcceptedProvider(type_name)
        raise ResourceFailure(f"{type_name}: no provider of the local cloud makes this type")

    def create(self, logical_id: str, definition: Mapping[str, Any], properties: Mapping[str, Any]) -> Resource:
        """Make a resource."""
        resource = Resource(logical_id, definition["Type"], properties=properties, definition=definition)
        self._tell(resource, "CREATE_IN_PROGRESS")
        context = self._context(logical_id, definition)
        made = self._do(resource, "CREATE_FAILED", lambda p: p.create(context, properties))
        resource = replace(resource, physical_id=made.physical_id, attributes=made.attributes)
        self._tell(resource, "CREATE_COMPLETE")
        return resource

    def update(self, before: Resource, definition: Mapping[str, Any], properties: Mapping[str, Any]) -> Resource:
        """Change a resource in place."""
        after = replace(before, properties=properties, definition=definition)
        self._tell(after, "UPDATE_IN_PROGRESS")
        context = self._context(before.logical_id, definition)
        made = self._do(
            after, "UPDATE_FAILED", lambda p: p.update(context, before.physical_id, before.properties, properties)
        )
        after = replace(after, physical_id=made.physical_id, attributes=made.attributes)
        self._tell(after, "UPDATE_COMPLETE")
        return after

    def replace(self, before: Resource, definition: Mapping[str, Any], properties: Mapping[str, Any]) -> Resource:
        """Make the successor of a resource; the old one is removed in the clean-up."""
        after = replace(before, type_name=definition["Type"], properties=properties, definition=definition)
        self._tell(
            after,
            "UPDATE_IN_PROGRESS",
            "Requested update requires the creation of a new physical resource; hence creating one.",
        )
        # The id of the old resource makes the generated name of the new one another.
        context = self._context(f"{before.logical_id}", definition, generation=before.physical_id)
        made = self._do(after, "UPDATE_FAILED", lambda p: p.create(context, properties))
        if made.physical_id == before.physical_id and before.type_name == after.type_name:
            reason = (
                "CloudFormation cannot update a stack when a custom-named resource requires replacing. "
                f"Rename {before.physical_id} and update the stack again."
            )
            self._tell(after, "UPDATE_FAILED", reason)
            raise ResourceFailure(reason)
        after = replace(after, physical_id=made.physical_id, attributes=made.attributes)
        self._tell(after, "UPDATE_COMPLETE")
        return after

    def delete(self, resource: Resource, policy_name: str = "DeletionPolicy", *, rolling_back: bool = False) -> None:
        """Remove a resource, unless its policy keeps it."""
        policy = resource.definition.get(policy_name, "Delete")
        if policy == "Retain" and not (rolling_back and policy_name == "UpdateReplacePolicy"):
            self._tell(resource, "DELETE_SKIPPED")
            return
        if policy == "RetainExceptOnCreate" and not rolling_back:
            self._tell(resource, "DELETE_SKIPPED")
            return
        if policy == "Snapshot" and not rolling_back:
            reason = "DeletionPolicy Snapshot: the local cloud takes no snapshots; use Retain or Delete"
            self._tell(resource, "DELETE_FAILED", reason)
            raise ResourceFailure(reason)
        self._tell(resource, "DELETE_IN_PROGRESS")
        context = self._context(resource.logical_id, resource.definition)
        self._do(resource, "DELETE_FAILED", lambda p: p.delete(context, resource.physical_id, resource.properties))
        self._tell(resource, "DELETE_COMPLETE")

    def exists(self, resource: Resource) -> bool:
        """Tell whether a resource is still there."""
        context = self._context(resource.logical_id, resource.definition)
        provider = self.provider(resource.type_name)
        return provider.exists(context, resource.physical_id, resource.properties)

    def _do(self, resource: Resource, failed: str, act: Any) -> Any:
        try:
            return act(self.provider(resource.type_name))
        except (ClientError, BotoCoreError, ApiError, ResourceFailure, KeyError, TypeError, ValueError) as error:
            if not isinstance(error, (ClientError, ResourceFailure, ApiError)):
                logger.exception("%s %s", resource.type_name, resource.logical_id)
            reason = str(error) if isinstance(error, (ClientError, ResourceFailure, ApiError)) else repr(error)
            self._tell(resource, failed, reason)
            raise ResourceFailure(f"{resource.logical_id}: {reason}") from error

    def _tell(self, resource: Resource, status: str, reason: str | None = None) -> None:
        resource.status, resource.reason, resource.updated = status, reason, now()
        self.stack.event(resource.logical_id, resource.type_name, resource.physical_id, status, self.token, reason)

    def _context(self, logical_id: str, definition: Mapping[str, Any], generation: str = "") -> ResourceContext:
        stack = self.stack
        own = {
            "aws:cloudformation:stack-name": stack.name,
            "aws:cloudformation:stack-id": stack.stack_id,
            "aws:cloudformation:logical-id": logical_id,
        }
        return ResourceContext(
            stack_name=stack.name,
            stack_id=stack.stack_id + generation,
            logical_id=logical_id,
            region=stack.region,
            account=stack.account,
            partition="aws",
            tags={**stack.tags, **own},
            clients=self._clients,
            attributes={k: definition[k] for k in ("UpdatePolicy", "CreationPolicy") if k in definition},
        )
