"""One resource at a time: create, change, replace and remove, with the events that AWS sends.

Not here: which resource, and in which order (`execution`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from botocore.exceptions import BotoCoreError, ClientError

from localcloud.api import ApiError, Clients
from localcloud.cloudformation.accepted import ACCEPTED_TYPES
from localcloud.cloudformation.custom_resource import is_custom
from localcloud.cloudformation.definition import HANDED_TO_PROVIDERS
from localcloud.cloudformation.drift_comparison import Readable, ResourceDrift, differences, is_compared
from localcloud.cloudformation.provider import Made, Provider, ResourceContext, ResourceFailure
from localcloud.cloudformation.schemas import has_same_name
from localcloud.cloudformation.snapshots import take_snapshot
from localcloud.cloudformation.stack import Resource, Stack, now

logger = logging.getLogger(__name__)

REPLACING = "Requested update requires the creation of a new physical resource; hence creating one."
SAME_NAME = (
    "CloudFormation cannot update a stack when a custom-named resource requires replacing. "
    "Rename {name} and update the stack again."
)


@dataclass(frozen=True)
class RoleClients:
    """Clients signed by a stack's execution role, or by root when the stack has none."""

    clients: Clients
    role_arn: str | None
    region: str

    def client(self, service: str) -> Any:
        """Return a boto3 client for `service`."""
        return self.clients.client(service, role_arn=self.role_arn, region=self.region)


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
        self,
        stack: Stack,
        clients: Clients,
        providers: Mapping[str, Provider],
        custom: Callable[[str], Provider],
        token: str | None,
    ) -> None:
        self.stack = stack
        self.token = token
        self.tags: Mapping[str, str] = stack.configuration.tags
        self._clients = RoleClients(clients, stack.role_arn, stack.region)
        self._providers = providers
        self._custom = custom

    def provider(self, type_name: str) -> Provider:
        """Return the provider of a type.

        Raises:
            ResourceFailure: Nobody emulates the type.
        """
        if is_custom(type_name):
            return self._custom(type_name)
        if type_name in self._providers:
            return self._providers[type_name]
        if type_name in ACCEPTED_TYPES:
            return AcceptedProvider(type_name)
        raise ResourceFailure(f"{type_name}: no provider of the local cloud makes this type")

    def create(self, logical_id: str, definition: Mapping[str, Any], needs: frozenset[str]) -> Resource:
        """Make a resource."""
        generation = self.stack.next_generation(logical_id)
        resource = Resource(logical_id, definition["Type"], definition, needs=needs, generation=generation)
        self.stack.put(resource)
        self._tell(resource, "CREATE_IN_PROGRESS")
        context = self._context(resource)
        try:
            made = self._do(resource, "CREATE_FAILED", lambda p: p.create(context, resource.properties))
        except ResourceFailure as failure:
            resource.physical_id = failure.physical_id or ""
            raise
        done = self.stack.put(replace(resource, physical_id=made.physical_id, attributes=made.attributes))
        self._tell(done, "CREATE_COMPLETE")
        return done

    def replace(self, before: Resource, definition: Mapping[str, Any], needs: frozenset[str]) -> Resource:
        """Make the successor of a resource; the old one is removed in the clean-up."""
        after = replace(before, definition=definition, needs=needs, physical_id="", attributes={})
        if has_same_name(before.type_name, before.properties, after.properties):
            self.refuse(before, SAME_NAME.format(name=before.physical_id))
        self._tell(before, "UPDATE_IN_PROGRESS", REPLACING)
        after.generation = self.stack.next_generation(before.logical_id)
        context = self._context(after)
        made = self._do(before, "UPDATE_FAILED", lambda p: p.create(context, after.properties))
        done = self.stack.put(replace(after, physical_id=made.physical_id, attributes=made.attributes))
        self._tell(done, "UPDATE_COMPLETE")
        return done

    def update(self, before: Resource, definition: Mapping[str, Any], needs: frozenset[str]) -> Resource:
        """Change a resource in place; after a failure its definition is the old one still."""
        after = replace(before, definition=definition, needs=needs)
        self._tell(before, "UPDATE_IN_PROGRESS")
        context = self._context(after)
        made = self._do(
            before,
            "UPDATE_FAILED",
            lambda p: p.update(context, before.physical_id, before.properties, after.properties),
        )
        done = self.stack.put(replace(after, physical_id=made.physical_id, attributes=made.attributes))
        self._tell(done, "UPDATE_COMPLETE")
        return done

    def delete(self, resource: Resource, policy: str) -> None:
        """Remove a resource, or leave it or snapshot it first as its policy says, and drop it from the stack."""
        if not resource.physical_id:
            self.stack.drop(resource)
            return
        if policy == "Retain":
            self._tell(resource, "DELETE_SKIPPED")
            self.stack.drop(resource)
            return
        self._tell(resource, "DELETE_IN_PROGRESS")
        context = self._context(resource)
        if policy == "Snapshot":
            self._do(resource, "DELETE_FAILED", lambda p: take_snapshot(context, resource))
        self._do(resource, "DELETE_FAILED", lambda p: p.delete(context, resource.physical_id, resource.properties))
        self._tell(resource, "DELETE_COMPLETE")
        self.stack.drop(resource)

    def exists(self, resource: Resource) -> bool:
        """Tell whether a resource is still there."""
        provider = self.provider(resource.type_name)
        return provider.exists(self._context(resource), resource.physical_id, resource.properties)

    def drift(self, resource: Resource, known_ids: frozenset[str]) -> ResourceDrift:
        """Compare a resource with its template."""
        if not is_compared(resource.type_name):
            return ResourceDrift("NOT_CHECKED")
        if not self.exists(resource):
            return ResourceDrift("DELETED")
        provider, expected = self.provider(resource.type_name), resource.properties
        if not isinstance(provider, Readable):
            return ResourceDrift("IN_SYNC", actual=expected)
        actual = provider.actual(self._context(resource), resource.physical_id, expected, known_ids)
        found = differences(resource.type_name, expected, actual)
        return ResourceDrift("MODIFIED" if found else "IN_SYNC", found, {**expected, **actual})

    def refuse(self, resource: Resource, reason: str) -> NoReturn:
        """Fail a resource before its provider is asked.

        Raises:
            ResourceFailure: Always.
        """
        self._tell(resource, "UPDATE_FAILED" if resource.physical_id else "CREATE_FAILED", reason)
        raise ResourceFailure(f"{resource.logical_id}: {reason}")

    def _do(self, resource: Resource, failed: str, act: Callable[[Provider], Any]) -> Any:
        """Let a provider act; whatever it raises ends this resource only, and becomes the event's reason."""
        physical_id = None
        try:
            return act(self.provider(resource.type_name))
        except (ClientError, BotoCoreError, ApiError) as error:
            reason, cause = str(error), error
        except ResourceFailure as error:
            reason, cause, physical_id = str(error), error, error.physical_id
        except (LookupError, TypeError, ValueError, AttributeError, OSError) as error:
            # A property of a shape that the provider does not expect: the user's words are in the event.
            logger.exception("%s %s: provider failed", resource.type_name, resource.logical_id)
            reason, cause = f"Internal failure of the provider of {resource.type_name}: {error!r}", error
        self._tell(resource, failed, reason)
        raise ResourceFailure(f"{resource.logical_id}: {reason}", physical_id) from cause

    def _tell(self, resource: Resource, status: str, reason: str | None = None) -> None:
        with self.stack.lock:
            resource.status, resource.reason, resource.updated = status, reason, now()
            self.stack.event(resource.logical_id, resource.type_name, resource.physical_id, status, self.token, reason)

    def _context(self, resource: Resource) -> ResourceContext:
        stack = self.stack
        own = {
            "aws:cloudformation:stack-name": stack.name,
            "aws:cloudformation:stack-id": stack.stack_id,
            "aws:cloudformation:logical-id": resource.logical_id,
        }
        return ResourceContext(
            stack_name=stack.name,
            stack_id=stack.stack_id,
            logical_id=resource.logical_id,
            region=stack.region,
            account=stack.account,
            partition="aws",
            tags={**self.tags, **own},
            clients=self._clients,
            attributes={k: resource.definition[k] for k in HANDED_TO_PROVIDERS if k in resource.definition},
            generation=resource.generation,
        )
