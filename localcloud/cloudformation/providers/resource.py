"""The pattern that the providers share: create, describe, change, delete, tags, and what is refused.

A type declares its properties and calls; what does not fit the pattern it overrides. Not here: anything about one
service.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from botocore.exceptions import ClientError

from ..provider import Made, ResourceContext, ResourceFailure
from .shapes import dig, invoke
from .tagging import TagCalls, form_of, tag_map
from .waiting import SETTLE_SECONDS, wait_for

Properties = Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """Where a provider acts: the stack's context and the client of the type's service."""

    context: ResourceContext
    client: Any

    def call(self, operation: str, **values: Any) -> dict[str, Any]:
        """Call `operation` with values as templates have them; None means not given."""
        return invoke(self.client, operation, values)

    def arn(self, service: str, resource: str, *, region: bool = True, account: bool = True) -> str:
        """Return the ARN of `resource` of `service` in this account and region."""
        where = f"{self.context.region if region else ''}:{self.context.account if account else ''}"
        return f"arn:{self.context.partition}:{service}:{where}:{resource}"


@dataclass(frozen=True)
class Create:
    """The create call and the dotted path of the physical id in its answer (unused where the name is the id)."""

    operation: str
    result: str = ""


@dataclass(frozen=True)
class Describe:
    """The describe call, the parameter that takes the id (`listed`: in a list), and the resource's dotted path."""

    operation: str
    identifier: str
    result: str = ""
    listed: bool = False


@dataclass(frozen=True)
class Delete:
    """The delete call and the parameter that takes the physical id."""

    operation: str
    identifier: str
    listed: bool = False


class Resource:
    """A provider made of declarations.

    `create_only` and `updatable` together are all properties that the type accepts; any other is refused. `afterwards`
    are those that the create call does not take: `configure` sets them. `renames` are properties whose parameter has
    another name. `defaults` are the values that a property goes back to when a template drops it; `undroppable` are
    those that no call can take back once set.
    """

    type_name: ClassVar[str]
    service: ClassVar[str]
    create_only: ClassVar[frozenset[str]] = frozenset()
    updatable: ClassVar[frozenset[str]] = frozenset()
    afterwards: ClassVar[frozenset[str]] = frozenset()
    renames: ClassVar[Mapping[str, str]] = {}
    defaults: ClassVar[Properties] = {}
    undroppable: ClassVar[frozenset[str]] = frozenset()
    creates: ClassVar[Create]
    describes: ClassVar[Describe]
    deletes: ClassVar[Delete]
    gone: ClassVar[frozenset[str]] = frozenset()
    name_property: ClassVar[str | None] = None
    name_length: ClassVar[int] = 64
    refuses_existing: ClassVar[bool] = False
    tags_property: ClassVar[str] = "Tags"
    tag_calls: ClassVar[TagCalls | None] = None
    system_tags: ClassVar[bool] = True
    ready_states: ClassVar[tuple[str, frozenset[str]] | None] = None
    gone_states: ClassVar[tuple[str, frozenset[str]] | None] = None
    settle_seconds: ClassVar[float] = SETTLE_SECONDS

    # What the engine calls -----------------------------------------------------------------------------------------

    def create(self, context: ResourceContext, properties: Properties) -> Made:
        """Make the resource and wait until it is usable; one that fails half-way is removed again."""
        self._refuse_unknown(properties)
        at = self.place(context)
        properties = self.named(at, properties)
        self._refuse_existing(at, properties)
        physical_id = self.make(at, {n: v for n, v in properties.items() if n not in self.afterwards})
        try:
            self.settle(at, physical_id, properties)
            given = {n: v for n, v in properties.items() if n not in self.afterwards}
            self.configure(at, physical_id, given, properties)
            if self.tag_calls is not None and self.tag_calls.on_create is None:
                self.retag(at, physical_id, {}, properties)
            return self.made(at, physical_id, properties)
        except (ClientError, ResourceFailure) as error:
            self._remove_half_made(context, physical_id, properties, error)
            raise

    def update(self, context: ResourceContext, physical_id: str, old: Properties, new: Properties) -> Made:
        """Change the resource in place.

        Raises:
            ResourceFailure: the template sets a property that this type does not have here, or one that cannot be
                changed in place.
        """
        self._refuse_unknown(new)
        names = {name for name in {*old, *new} if old.get(name) != new.get(name)}
        fixed = sorted(name for name in names - self.updatable if self._wanted(name, old) != self._wanted(name, new))
        if fixed:
            raise ResourceFailure(f"{self.type_name} cannot change in place: {', '.join(fixed)}")
        stuck = sorted(names & self.undroppable - set(new))
        if stuck:
            raise ResourceFailure(
                f"{self.type_name}: {', '.join(stuck)} cannot be dropped in place; set a value instead"
            )
        at = self.place(context)
        if self.name_property is not None:
            old, new = ({**properties, self.name_property: self.name_of(physical_id)} for properties in (old, new))
        filled = {**{name: self.defaults[name] for name in names - set(new) if name in self.defaults}, **new}
        self.configure(at, physical_id, old, filled)
        self.retag(at, physical_id, old, new)
        self.settle(at, physical_id, new)
        return self.made(at, physical_id, new)

    def delete(self, context: ResourceContext, physical_id: str, properties: Properties) -> None:
        """Remove the resource and wait until it is gone."""
        at = self.place(context)
        try:
            self.remove(at, physical_id, properties)
        except ClientError as error:
            if code_of(error) not in self.gone:
                raise
        else:
            self.vanish(at, physical_id, properties)

    def exists(self, context: ResourceContext, physical_id: str, properties: Properties) -> bool:
        """Tell whether the resource is still there."""
        return self.found(self.place(context), physical_id, properties) is not None

    # What a type declares or overrides -----------------------------------------------------------------------------

    def place(self, context: ResourceContext) -> Place:
        """Return where this type acts."""
        return Place(context, context.client(self.service))

    def named(self, at: Place, properties: Properties) -> Properties:
        """Return the properties with the physical name, CloudFormation's own where the template has none."""
        if self.name_property is None or properties.get(self.name_property):
            return properties
        return {**properties, self.name_property: at.context.generated_name(maximum_length=self.name_length)}

    def name_of(self, physical_id: str) -> str:
        """Return the resource's name."""
        return physical_id

    def arguments(self, at: Place, properties: Properties) -> dict[str, Any]:
        """Return what the create call takes for these properties, tags aside."""
        return {self.renames.get(n, n): v for n, v in properties.items() if n != self.tags_property}

    def make(self, at: Place, properties: Properties) -> str:
        """Call the create call; return the physical id."""
        arguments = {**self.arguments(at, properties), **self.creation_tags(at, properties)}
        response = at.call(self.creates.operation, **arguments)
        if self.creates.result:
            return str(dig(response, self.creates.result))
        assert self.name_property is not None
        return str(properties[self.name_property])

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Bring the resource from the properties `old` to `new`; on creation `old` is what the create call took."""

    def settle(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Wait until the resource is usable."""
        if self.ready_states is None:
            return
        path, states = self.ready_states

        def ready() -> bool:
            return dig(self.found(at, physical_id, properties), path) in states

        wait_for(ready, f"{physical_id} to become {'/'.join(sorted(states))}", timeout_seconds=self.settle_seconds)

    def vanish(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Wait until the removed resource is gone."""
        if self.gone_states is not None:
            wait_for(
                lambda: self.found(at, physical_id, properties) is None,
                f"{physical_id} to be gone",
                timeout_seconds=self.settle_seconds,
            )

    def found(self, at: Place, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Return the service's description of the resource, None when there is none."""
        try:
            found = self.describe(at, physical_id, properties)
        except ClientError as error:
            if code_of(error) in self.gone:
                return None
            raise
        if found and self.gone_states is not None and dig(found, self.gone_states[0]) in self.gone_states[1]:
            return None
        return found or None

    def describe(self, at: Place, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Call the describe call."""
        call = self.describes
        identity: Any = self.name_of(physical_id)
        response = at.call(call.operation, **{call.identifier: [identity] if call.listed else identity})
        found: dict[str, Any] | None = dig(response, call.result) if call.result else response
        return found

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return what Fn::GetAtt gives, from the service's description."""
        return {}

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Call the delete call."""
        call = self.deletes
        identity: Any = self.name_of(physical_id)
        at.call(call.operation, **{call.identifier: [identity] if call.listed else identity})

    def tag_identity(self, at: Place, physical_id: str, properties: Properties) -> str:
        """Return the id or ARN that the tagging calls take."""
        return physical_id

    # Tags ----------------------------------------------------------------------------------------------------------

    def wanted_tags(self, context: ResourceContext, properties: Properties) -> dict[str, str]:
        """Return the tags of the stack, then of the resource, which win."""
        inherited = {k: v for k, v in context.tags.items() if self.system_tags or not k.startswith("aws:")}
        return {**inherited, **self.own_tags(properties)}

    def own_tags(self, properties: Properties) -> dict[str, str]:
        """Return the tags that the resource's own properties give."""
        return tag_map(properties.get(self.tags_property))

    def creation_tags(self, at: Place, properties: Properties) -> dict[str, Any]:
        """Return the tag parameter of the create call."""
        tags = self.wanted_tags(at.context, properties)
        if self.tag_calls is None or self.tag_calls.on_create is None or not tags:
            return {}
        parameter = self.tag_calls.on_create
        return {parameter: form_of(at.client, self.creates.operation, parameter, tags)}

    def retag(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Bring the tags to what the stack and `new` want; tags that neither ever set are left alone."""
        if self.tag_calls is None:
            return
        wanted = self.wanted_tags(at.context, new)
        identity = self.tag_identity(at, physical_id, new)
        self.tag_calls.put(at.client, identity, wanted)
        self.tag_calls.drop(at.client, identity, set(self.own_tags(old)) - set(wanted))

    # Inside --------------------------------------------------------------------------------------------------------

    def made(self, at: Place, physical_id: str, properties: Properties) -> Made:
        """Describe the resource as the engine wants it."""
        found = self.found(at, physical_id, properties)
        if found is None:
            raise ResourceFailure(f"{self.type_name} {physical_id} is not there any more")
        return Made(physical_id, {n: v for n, v in self.attributes(at, found, properties).items() if v is not None})

    def _wanted(self, name: str, properties: Properties) -> Any:
        return properties.get(name, self.defaults.get(name))

    def _refuse_unknown(self, properties: Properties) -> None:
        unknown = sorted(set(properties) - self.create_only - self.updatable)
        if unknown:
            raise ResourceFailure(
                f"{self.type_name}: the local cloud does not know the properties {', '.join(unknown)}; "
                f"it knows {', '.join(sorted(self.create_only | self.updatable))}"
            )

    def _refuse_existing(self, at: Place, properties: Properties) -> None:
        if self.refuses_existing:
            identity = self.prospective_id(at, properties)
            if self.found(at, identity, properties) is not None:
                raise ResourceFailure(
                    f"Resource of type '{self.type_name}' with identifier '{identity}' already exists."
                )

    def prospective_id(self, at: Place, properties: Properties) -> str:
        """Return the physical id that creation will give, for types whose create call would overwrite silently."""
        assert self.name_property is not None
        return str(properties[self.name_property])

    def _remove_half_made(
        self, context: ResourceContext, physical_id: str, properties: Properties, cause: Exception
    ) -> None:
        try:
            self.delete(context, physical_id, properties)
        except (ClientError, ResourceFailure) as error:
            raise ResourceFailure(f"{cause}; and removing the half-made {physical_id} failed: {error}") from cause


class PutResource(Resource):
    """A type whose create call is also its update call; the update overwrites the whole resource."""

    refuses_existing = True

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Put the whole resource again when a property other than its tags differs."""
        if changed(old, new, *(self.updatable - {self.tags_property})):
            at.call(self.creates.operation, **self.arguments(at, new))


def changed(old: Properties, new: Properties, *names: str) -> dict[str, Any]:
    """Return those of `names` whose value differs between `old` and `new`, with the new value (None: dropped)."""
    return {name: new.get(name) for name in names if old.get(name) != new.get(name)}


def added_removed(old: Properties, new: Properties, name: str) -> tuple[list[Any], list[Any]]:
    """Return which items of the list property `name` are new, and which went away."""
    before, after = old.get(name) or [], new.get(name) or []
    return [item for item in after if item not in before], [item for item in before if item not in after]


def codes(*names: str) -> frozenset[str]:
    """Return error codes as the set that `gone` wants."""
    return frozenset(names)


def code_of(error: ClientError) -> str:
    """Return the error code of a refused call."""
    return str(error.response.get("Error", {}).get("Code", ""))
