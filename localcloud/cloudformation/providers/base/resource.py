"""Base classes that create, describe, update, delete and tag resources and reject unsupported properties.

A provider declares its properties and API calls and overrides the methods for any steps that differ. Service-specific
code belongs in that service's provider.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from botocore.exceptions import ClientError

from localcloud.cloudformation.provider import Provisioned, ResourceContext, ResourceFailure
from localcloud.cloudformation.providers.base.shapes import get_path, invoke
from localcloud.cloudformation.providers.base.tagging import TagCalls, tag_map, tags_for_call
from localcloud.cloudformation.providers.base.waiting import READY_TIMEOUT_SECONDS, wait_for

Properties = Mapping[str, Any]


@dataclass(frozen=True)
class ResourceApi:
    """The API of a resource type's service, called on behalf of a resource in a stack."""

    context: ResourceContext
    client: Any

    def call(self, operation: str, **values: Any) -> dict[str, Any]:
        """Call `operation` with values in template form; None values are omitted."""
        return invoke(self.client, operation, values)

    def arn(self, service: str, resource: str, *, region: bool = True, account: bool = True) -> str:
        """Return the ARN of a resource in this account and region."""
        where = f"{self.context.region if region else ''}:{self.context.account if account else ''}"
        return f"arn:{self.context.partition}:{service}:{where}:{resource}"


@dataclass(frozen=True)
class Create:
    """Create operation, and the dotted path to the physical ID in its response (empty if the name is the ID)."""

    operation: str
    result: str = ""


@dataclass(frozen=True)
class Describe:
    """Describe operation, its ID parameter (a list if `listed`) and the dotted path to the result."""

    operation: str
    identifier: str
    result: str = ""
    listed: bool = False


@dataclass(frozen=True)
class Delete:
    """Delete operation and its ID parameter (a list if `listed`)."""

    operation: str
    identifier: str
    listed: bool = False


class Resource:
    """Provider that is defined mostly by declarations.

    Attributes:
        create_only: Properties that can only be set at creation.
        updatable: Properties that can change in place. Properties in neither set are rejected.
        set_after_create: Properties that the create operation does not accept; `configure` sets them.
        parameter_names: API parameter names by property, where the two differ.
        defaults: Values that properties revert to when removed from the template.
        unremovable: Properties that no API call can unset.
        fails_if_exists: Whether the provider checks for an existing resource that the create operation would overwrite.
    """

    type_name: ClassVar[str]
    service: ClassVar[str]
    create_only: ClassVar[frozenset[str]] = frozenset()
    updatable: ClassVar[frozenset[str]] = frozenset()
    set_after_create: ClassVar[frozenset[str]] = frozenset()
    parameter_names: ClassVar[Mapping[str, str]] = {}
    defaults: ClassVar[Properties] = {}
    unremovable: ClassVar[frozenset[str]] = frozenset()
    create_call: ClassVar[Create]
    describe_call: ClassVar[Describe]
    delete_call: ClassVar[Delete]
    not_found_codes: ClassVar[frozenset[str]] = frozenset()
    name_property: ClassVar[str | None] = None
    name_length: ClassVar[int] = 64
    fails_if_exists: ClassVar[bool] = False
    tags_property: ClassVar[str] = "Tags"
    tag_calls: ClassVar[TagCalls | None] = None
    system_tags: ClassVar[bool] = True
    ready_states: ClassVar[tuple[str, frozenset[str]] | None] = None
    deleted_states: ClassVar[tuple[str, frozenset[str]] | None] = None
    ready_timeout_seconds: ClassVar[float] = READY_TIMEOUT_SECONDS

    # Called by the engine -----------------------------------------------------------------------------------------

    def create(self, context: ResourceContext, properties: Properties) -> Provisioned:
        """Create the resource and wait until it is ready. Delete it if a later step fails."""
        self._require_known(properties)
        api = self.api(context)
        properties = self.with_name(api, properties)
        self._require_absent(api, properties)
        physical_id = self.call_create(api, {n: v for n, v in properties.items() if n not in self.set_after_create})
        try:
            self.wait_until_ready(api, physical_id, properties)
            given = {n: v for n, v in properties.items() if n not in self.set_after_create}
            self.configure(api, physical_id, given, properties)
            if self.tag_calls is not None and self.tag_calls.on_create is None:
                self.retag(api, physical_id, {}, properties)
            return self.provisioned(api, physical_id, properties)
        except (ClientError, ResourceFailure) as error:
            self._delete_partial(context, physical_id, properties, error)
            raise

    def update(self, context: ResourceContext, physical_id: str, old: Properties, new: Properties) -> Provisioned:
        """Change the resource in place.

        Raises:
            ResourceFailure: The template sets an unsupported property, or changes one that cannot change in place.
        """
        self._require_known(new)
        names = {name for name in {*old, *new} if old.get(name) != new.get(name)}
        fixed = sorted(name for name in names - self.updatable if self._wanted(name, old) != self._wanted(name, new))
        if fixed:
            raise ResourceFailure(f"{self.type_name}: properties cannot change in place: {', '.join(fixed)}")
        removed = sorted(names & self.unremovable - set(new))
        if removed:
            raise ResourceFailure(
                f"{self.type_name}: properties cannot be removed in place: {', '.join(removed)}; set a value instead"
            )
        api = self.api(context)
        if self.name_property is not None:
            old, new = ({**properties, self.name_property: self.name_of(physical_id)} for properties in (old, new))
        filled = {**{name: self.defaults[name] for name in names - set(new) if name in self.defaults}, **new}
        self.configure(api, physical_id, old, filled)
        self.retag(api, physical_id, old, new)
        self.wait_until_ready(api, physical_id, new)
        return self.provisioned(api, physical_id, new)

    def delete(self, context: ResourceContext, physical_id: str, properties: Properties) -> None:
        """Delete the resource and wait until the service no longer returns it."""
        api = self.api(context)
        try:
            self.call_delete(api, physical_id, properties)
        except ClientError as error:
            if error_code(error) not in self.not_found_codes:
                raise
        else:
            self.wait_until_deleted(api, physical_id, properties)

    def exists(self, context: ResourceContext, physical_id: str, properties: Properties) -> bool:
        """Return True if the service still has the resource."""
        return self.find(self.api(context), physical_id, properties) is not None

    # Declared or overridden by each type -----------------------------------------------------------------------------

    def api(self, context: ResourceContext) -> ResourceApi:
        """Return the API for this type's service, using the stack's client."""
        return ResourceApi(context, context.client(self.service))

    def with_name(self, api: ResourceApi, properties: Properties) -> Properties:
        """Return the properties with a physical name, which is generated if the template does not set one."""
        if self.name_property is None or properties.get(self.name_property):
            return properties
        return {**properties, self.name_property: api.context.generated_name(maximum_length=self.name_length)}

    def name_of(self, physical_id: str) -> str:
        """Return the identifier that API calls use."""
        return physical_id

    def arguments(self, api: ResourceApi, properties: Properties) -> dict[str, Any]:
        """Return the arguments of the create operation, without tags."""
        return {self.parameter_names.get(n, n): v for n, v in properties.items() if n != self.tags_property}

    def call_create(self, api: ResourceApi, properties: Properties) -> str:
        """Call the create operation and return the physical ID."""
        arguments = {**self.arguments(api, properties), **self.creation_tags(api, properties)}
        response = api.call(self.create_call.operation, **arguments)
        if self.create_call.result:
            return str(get_path(response, self.create_call.result))
        assert self.name_property is not None
        return str(properties[self.name_property])

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Change the resource from `old` to `new`. After creation, `old` holds the properties that are already set."""

    def wait_until_ready(self, api: ResourceApi, physical_id: str, properties: Properties) -> None:
        """Wait until the resource is ready."""
        if self.ready_states is None:
            return
        path, states = self.ready_states

        def ready() -> bool:
            return get_path(self.find(api, physical_id, properties), path) in states

        wait_for(ready, f"{physical_id} to be {'/'.join(sorted(states))}", timeout_seconds=self.ready_timeout_seconds)

    def wait_until_deleted(self, api: ResourceApi, physical_id: str, properties: Properties) -> None:
        """Wait until the deleted resource is no longer returned."""
        if self.deleted_states is not None:
            wait_for(
                lambda: self.find(api, physical_id, properties) is None,
                f"deletion of {physical_id}",
                timeout_seconds=self.ready_timeout_seconds,
            )

    def find(self, api: ResourceApi, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Return the service's description of the resource, or None if the resource does not exist."""
        try:
            found = self.describe(api, physical_id, properties)
        except ClientError as error:
            if error_code(error) in self.not_found_codes:
                return None
            raise
        if (
            found
            and self.deleted_states is not None
            and get_path(found, self.deleted_states[0]) in self.deleted_states[1]
        ):
            return None
        return found or None

    def describe(self, api: ResourceApi, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Call the describe operation."""
        call = self.describe_call
        identity: Any = self.name_of(physical_id)
        response = api.call(call.operation, **{call.identifier: [identity] if call.listed else identity})
        found: dict[str, Any] | None = get_path(response, call.result) if call.result else response
        return found

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the Fn::GetAtt values from the service's description, `found`."""
        return {}

    def call_delete(self, api: ResourceApi, physical_id: str, properties: Properties) -> None:
        """Call the delete operation."""
        call = self.delete_call
        identity: Any = self.name_of(physical_id)
        api.call(call.operation, **{call.identifier: [identity] if call.listed else identity})

    def tag_identity(self, api: ResourceApi, physical_id: str, properties: Properties) -> str:
        """Return the ID or ARN that the tagging operations use."""
        return physical_id

    # Tags ----------------------------------------------------------------------------------------------------------

    def desired_tags(self, context: ResourceContext, properties: Properties) -> dict[str, str]:
        """Return the stack's tags overridden by the resource's own tags."""
        inherited = {k: v for k, v in context.tags.items() if self.system_tags or not k.startswith("aws:")}
        return {**inherited, **self.template_tags(properties)}

    def template_tags(self, properties: Properties) -> dict[str, str]:
        """Return the tags in the resource's properties."""
        return tag_map(properties.get(self.tags_property))

    def creation_tags(self, api: ResourceApi, properties: Properties) -> dict[str, Any]:
        """Return the create operation's tag parameter."""
        tags = self.desired_tags(api.context, properties)
        if self.tag_calls is None or self.tag_calls.on_create is None or not tags:
            return {}
        parameter = self.tag_calls.on_create
        return {parameter: tags_for_call(api.client, self.create_call.operation, parameter, tags)}

    def retag(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Set the desired tags and delete tags that only `old` has; keep tags that were set outside the stack."""
        if self.tag_calls is None:
            return
        wanted = self.desired_tags(api.context, new)
        identity = self.tag_identity(api, physical_id, new)
        self.tag_calls.put(api.client, identity, wanted)
        self.tag_calls.drop(api.client, identity, set(self.template_tags(old)) - set(wanted))

    # Internal --------------------------------------------------------------------------------------------------------

    def provisioned(self, api: ResourceApi, physical_id: str, properties: Properties) -> Provisioned:
        """Return the resource's physical ID and attributes."""
        found = self.find(api, physical_id, properties)
        if found is None:
            raise ResourceFailure(f"{self.type_name} {physical_id} no longer exists")
        return Provisioned(
            physical_id, {n: v for n, v in self.attributes(api, found, properties).items() if v is not None}
        )

    def _wanted(self, name: str, properties: Properties) -> Any:
        return properties.get(name, self.defaults.get(name))

    def _require_known(self, properties: Properties) -> None:
        unknown = sorted(set(properties) - self.create_only - self.updatable)
        if unknown:
            raise ResourceFailure(
                f"{self.type_name}: properties not emulated: {', '.join(unknown)}; "
                f"emulated: {', '.join(sorted(self.create_only | self.updatable))}"
            )

    def _require_absent(self, api: ResourceApi, properties: Properties) -> None:
        if self.fails_if_exists:
            identity = self.prospective_id(api, properties)
            if self.find(api, identity, properties) is not None:
                raise ResourceFailure(
                    f"Resource of type '{self.type_name}' with identifier '{identity}' already exists."
                )

    def prospective_id(self, api: ResourceApi, properties: Properties) -> str:
        """Return the physical ID that a create call would assign, if the create operation can overwrite a resource."""
        assert self.name_property is not None
        return str(properties[self.name_property])

    def _delete_partial(
        self, context: ResourceContext, physical_id: str, properties: Properties, cause: Exception
    ) -> None:
        try:
            self.delete(context, physical_id, properties)
        except (ClientError, ResourceFailure) as error:
            raise ResourceFailure(
                f"{cause}; deleting the partially created {physical_id} also failed: {error}"
            ) from cause


class PutResource(Resource):
    """Provider for a type whose create operation also updates resources, by overwriting them completely."""

    fails_if_exists = True

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Put the complete resource again if a property other than its tags differs."""
        if changed(old, new, *(self.updatable - {self.tags_property})):
            api.call(self.create_call.operation, **self.arguments(api, new))


def changed(old: Properties, new: Properties, *names: str) -> dict[str, Any]:
    """Return the new values of the properties in `names` that differ between `old` and `new` (None if removed)."""
    return {name: new.get(name) for name in names if old.get(name) != new.get(name)}


def added_removed(old: Properties, new: Properties, name: str) -> tuple[list[Any], list[Any]]:
    """Return the items added to and removed from the list property `name`."""
    before, after = old.get(name) or [], new.get(name) or []
    return [item for item in after if item not in before], [item for item in before if item not in after]


def error_codes(*names: str) -> frozenset[str]:
    """Return error codes as a set, for `not_found_codes`."""
    return frozenset(names)


def error_code(error: ClientError) -> str:
    """Return a failed call's error code."""
    return str(error.response.get("Error", {}).get("Code", ""))
