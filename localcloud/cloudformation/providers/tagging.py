"""Tags of a resource: from a template's forms to the calls of a service's tagging API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..provider import ResourceFailure
from .shapes import invoke, text


@dataclass(frozen=True)
class TagCalls:
    """How a service names its tagging calls; `identity` is the parameter that takes the id or ARN of the resource.

    `on_create` is the parameter of the create call that takes tags, None when tags can only be added later.
    """

    identity: str
    add: str = "tag_resource"
    remove: str = "untag_resource"
    tags: str = "Tags"
    keys: str = "TagKeys"
    on_create: str | None = "Tags"
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def put(self, client: Any, identity: str, tags: Mapping[str, str]) -> None:
        """Add `tags` to the resource, or overwrite their values."""
        if tags:
            form = form_of(client, self.add, self.tags, tags)
            invoke(client, self.add, {self.identity: identity, self.tags: form, **self.fixed})

    def drop(self, client: Any, identity: str, keys: set[str]) -> None:
        """Take the tags of these keys off the resource."""
        if keys:
            invoke(client, self.remove, {self.identity: identity, self.keys: sorted(keys), **self.fixed})


def tag_map(value: Any) -> dict[str, str]:
    """Return a template's tags, a list of {Key, Value} or an object, as a mapping.

    Raises:
        ResourceFailure: a tag has a key beside Key, Value and (for Auto Scaling) PropagateAtLaunch.
    """
    if isinstance(value, Mapping):
        return {key: text(item) for key, item in value.items()}
    unknown = sorted({name for item in value or [] for name in item} - {"Key", "Value", "PropagateAtLaunch"})
    if unknown:
        raise ResourceFailure(f"Tags: unknown {', '.join(unknown)}; a tag has Key and Value")
    return {item["Key"]: text(item["Value"]) for item in value or []}


def key_values(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags as the list of {Key, Value} that most APIs take."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def form_of(client: Any, operation: str, parameter: str, tags: Mapping[str, str]) -> Any:
    """Return tags in the form that `parameter` of `operation` has: a map, or a list of pairs, whatever their names."""
    model = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[operation])
    shape = {name.lower(): member for name, member in model.input_shape.members.items()}[parameter.lower()]
    if shape.type_name == "map":
        return dict(tags)
    key, value = sorted(shape.member.members, key=lambda name: "value" in name.lower())
    return [{key: name, value: content} for name, content in tags.items()]
