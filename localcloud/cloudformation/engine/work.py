"""Creates, updates, replaces and deletes individual resources and records the same events as AWS.

`execution` selects the resources and their order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from botocore.exceptions import BotoCoreError, ClientError

from localcloud.api import ApiError, Clients
from localcloud.cloudformation.engine.stack import Resource, Stack, now
from localcloud.cloudformation.provider import Provider, Provisioned, ResourceContext, ResourceFailure
from localcloud.cloudformation.resource_types import (
    ACCEPTED_TYPES,
    RECORDED_TYPES,
    SNAPSHOT_TYPES,
    has_same_name,
    is_custom,
    read_only_attributes,
    required_properties,
)
from localcloud.cloudformation.templates.definition import PROVIDER_ATTRIBUTES

logger = logging.getLogger(__name__)

INITIATED = "Resource creation Initiated"
REPLACING = "Requested update requires the creation of a new physical resource; hence creating one."
SAME_NAME = (
    "CloudFormation cannot update a stack when a custom-named resource requires replacing. "
    "Rename {name} and update the stack again."
)


@dataclass(frozen=True)
class RoleClients:
    """Clients that sign as a stack's execution role, or as root if the stack has no role."""

    clients: Clients
    role_arn: str | None
    region: str

    def client(self, service: str) -> Any:
        """Return a boto3 client for `service`."""
        return self.clients.client(service, role_arn=self.role_arn, region=self.region)


class AcceptedProvider:
    """Provider for an accepted type: assigns a physical ID and attributes without creating anything."""

    def __init__(self, type_name: str) -> None:
        self.type_name = type_name

    def create(self, context: ResourceContext, properties: Mapping[str, Any]) -> Provisioned:
        """Return a generated physical ID, which is also the value of the attributes that the service would assign."""
        return self._provisioned(context.generated_name())

    def update(
        self, context: ResourceContext, physical_id: str, old: Mapping[str, Any], new: Mapping[str, Any]
    ) -> Provisioned:
        """Return the same physical ID and attributes."""
        return self._provisioned(physical_id)

    def _provisioned(self, physical_id: str) -> Provisioned:
        return Provisioned(physical_id, dict.fromkeys(read_only_attributes(self.type_name), physical_id))

    def delete(self, context: ResourceContext, physical_id: str, properties: Mapping[str, Any]) -> None:
        """Do nothing."""

    def exists(self, context: ResourceContext, physical_id: str, properties: Mapping[str, Any]) -> bool:
        """Return True."""
        return True


class Worker:
    """Creates, updates, replaces and deletes resources for a stack operation."""

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
        """Return the provider for a type.

        Raises:
            ResourceFailure: The type is not emulated.
        """
        if is_custom(type_name):
            return self._custom(type_name)
        if type_name in self._providers:
            return self._providers[type_name]
        if type_name in ACCEPTED_TYPES:
            return AcceptedProvider(type_name)
        raise ResourceFailure(f"{type_name}: resource type is not emulated")

    def create(self, logical_id: str, definition: Mapping[str, Any], needs: frozenset[str]) -> Resource:
        """Create a resource."""
        generation = self.stack.next_generation(logical_id)
        resource = Resource(logical_id, definition["Type"], definition, needs=needs, generation=generation)
        self.stack.put(resource)
        self._record(resource, "CREATE_IN_PROGRESS")
        context = self.context(resource)
        missing = [] if is_custom(resource.type_name) else required_properties(resource.type_name)
        problems = [f"The property {{/{n}}} is required" for n in missing if n not in resource.properties]
        if problems:
            self.fail(resource, f"Property validation failure: [{', '.join(problems)}]")
        try:
            made = self._call(resource, "CREATE_FAILED", lambda p: p.create(context, resource.properties))
        except ResourceFailure as failure:
            resource.physical_id = failure.physical_id or ""
            raise
        done = self.stack.put(replace(resource, physical_id=made.physical_id, attributes=made.attributes))
        self._record(done, "CREATE_IN_PROGRESS", RECORDED_TYPES.get(done.type_name, INITIATED))
        self._record(done, "CREATE_COMPLETE", RECORDED_TYPES.get(done.type_name))
        return done

    def replace(self, before: Resource, definition: Mapping[str, Any], needs: frozenset[str]) -> Resource:
        """Create a replacement for a resource. The clean-up deletes the old resource."""
        after = replace(before, definition=definition, needs=needs, physical_id="", attributes={})
        if has_same_name(before.type_name, before.properties, after.properties):
            self.fail(before, SAME_NAME.format(name=before.physical_id))
        self._record(before, "UPDATE_IN_PROGRESS", REPLACING)
        after.generation = self.stack.next_generation(before.logical_id)
        context = self.context(after)
        made = self._call(before, "UPDATE_FAILED", lambda p: p.create(context, after.properties))
        done = self.stack.put(replace(after, physical_id=made.physical_id, attributes=made.attributes))
        self._record(done, "UPDATE_IN_PROGRESS", INITIATED)
        self._record(done, "UPDATE_COMPLETE")
        return done

    def update(self, before: Resource, definition: Mapping[str, Any], needs: frozenset[str]) -> Resource:
        """Update a resource in place. If the update fails, the resource keeps its old definition."""
        after = replace(before, definition=definition, needs=needs)
        self._record(before, "UPDATE_IN_PROGRESS")
        context = self.context(after)
        made = self._call(
            before,
            "UPDATE_FAILED",
            lambda p: p.update(context, before.physical_id, before.properties, after.properties),
        )
        done = self.stack.put(replace(after, physical_id=made.physical_id, attributes=made.attributes))
        self._record(done, "UPDATE_COMPLETE")
        return done

    def delete(self, resource: Resource, policy: str) -> None:
        """Delete a resource according to its retention policy (Delete, Retain, Snapshot); remove it from the stack."""
        if not resource.physical_id:
            self.stack.drop(resource)
            return
        if policy == "Retain":
            self._record(resource, "DELETE_SKIPPED")
            self.stack.drop(resource)
            return
        self._record(resource, "DELETE_IN_PROGRESS")
        context = self.context(resource)
        if policy == "Snapshot":
            self._call(resource, "DELETE_FAILED", lambda _: _take_snapshot(context, resource))
        self._call(resource, "DELETE_FAILED", lambda p: p.delete(context, resource.physical_id, resource.properties))
        self._record(resource, "DELETE_COMPLETE")
        self.stack.drop(resource)

    def fail(self, resource: Resource, reason: str) -> NoReturn:
        """Mark a resource as failed without calling its provider.

        Raises:
            ResourceFailure: Always.
        """
        self._record(resource, "UPDATE_FAILED" if resource.physical_id else "CREATE_FAILED", reason)
        raise ResourceFailure(f"{resource.logical_id}: {reason}")

    def _call(self, resource: Resource, failed: str, act: Callable[[Provider], Any]) -> Any:
        """Call a provider. Record an error as the resource's status reason and raise it as ResourceFailure."""
        physical_id = None
        try:
            return act(self.provider(resource.type_name))
        except (ClientError, BotoCoreError, ApiError) as error:
            reason, cause = str(error), error
        except ResourceFailure as error:
            reason, cause, physical_id = str(error), error, error.physical_id
        except (LookupError, TypeError, ValueError, AttributeError, OSError) as error:
            # A property does not have the expected form.
            logger.exception("%s %s: provider failed", resource.type_name, resource.logical_id)
            reason, cause = f"Internal failure of the {resource.type_name} provider: {error!r}", error
        self._record(resource, failed, reason)
        raise ResourceFailure(f"{resource.logical_id}: {reason}", physical_id) from cause

    def _record(self, resource: Resource, status: str, reason: str | None = None) -> None:
        with self.stack.lock:
            resource.status, resource.reason, resource.updated = status, reason, now()
            self.stack.event(
                resource.logical_id,
                resource.type_name,
                resource.physical_id,
                status,
                self.token,
                reason,
                properties=resource.properties,
            )

    def context(self, resource: Resource) -> ResourceContext:
        """Return the context that a resource's provider requires."""
        stack = self.stack
        system_tags = {
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
            tags={**self.tags, **system_tags},
            clients=self._clients,
            attributes={k: resource.definition[k] for k in PROVIDER_ATTRIBUTES if k in resource.definition},
            generation=resource.generation,
        )


def _take_snapshot(context: ResourceContext, resource: Resource) -> None:
    """Take a snapshot of a volume and wait until it is complete.

    Source: https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-attribute-deletionpolicy.html
    (2026-11).
    """
    assert resource.type_name in SNAPSHOT_TYPES, "validation rejects other types"
    ec2 = context.client("ec2")
    description = f"{context.stack_name} {context.logical_id}: taken by CloudFormation before deletion"
    tags = [{"Key": key, "Value": value} for key, value in context.tags.items() if not key.startswith("aws:")]
    specifications = [{"ResourceType": "snapshot", "Tags": tags}] if tags else []
    made = ec2.create_snapshot(VolumeId=resource.physical_id, Description=description, TagSpecifications=specifications)
    ec2.get_waiter("snapshot_completed").wait(SnapshotIds=[made["SnapshotId"]])
