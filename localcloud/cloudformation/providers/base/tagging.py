"""Converts tags from template form and calls each service's tagging operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from localcloud.cloudformation.provider import ResourceFailure
from localcloud.cloudformation.providers.base.shapes import invoke, text


@dataclass(frozen=True)
class TagCalls:
    """Names of a service's tagging operations and their parameters.

    Attributes:
        identity: Parameter for the resource's ID or ARN.
        on_create: Tag parameter of the create operation, or None if tags can only be added later.
        fixed: Arguments that every tagging call includes.
    """

    identity: str
    add: str = "tag_resource"
    remove: str = "untag_resource"
    tags: str = "Tags"
    keys: str = "TagKeys"
    on_create: str | None = "Tags"
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def put(self, client: Any, identity: str, tags: Mapping[str, str]) -> None:
        """Add `tags` to the resource, overwriting existing values."""
        if tags:
            form = tags_for_call(client, self.add, self.tags, tags)
            invoke(client, self.add, {self.identity: identity, self.tags: form, **self.fixed})

    def drop(self, client: Any, identity: str, keys: set[str]) -> None:
        """Remove the tags with these keys from the resource."""
        if keys:
            invoke(client, self.remove, {self.identity: identity, self.keys: sorted(keys), **self.fixed})


def tag_map(value: Any) -> dict[str, str]:
    """Return a template's tags, a list of {Key, Value} or an object, as a mapping.

    Raises:
        ResourceFailure: A tag has a field other than Key, Value and (for Auto Scaling) PropagateAtLaunch.
    """
    if isinstance(value, Mapping):
        return {key: text(item) for key, item in value.items()}
    unknown = sorted({name for item in value or [] for name in item} - {"Key", "Value", "PropagateAtLaunch"})
    if unknown:
        raise ResourceFailure(f"Tags: unknown fields: {', '.join(unknown)}; a tag has Key and Value")
    return {item["Key"]: text(item["Value"]) for item in value or []}


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags as a list of {Key, Value}, the form that most APIs use."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def tags_for_call(client: Any, operation: str, parameter: str, tags: Mapping[str, str]) -> Any:
    """Return tags in the form that `parameter` requires: a map, or a list of pairs with the API's field names."""
    model = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[operation])
    shape = {name.lower(): member for name, member in model.input_shape.members.items()}[parameter.lower()]
    if shape.type_name == "map":
        return dict(tags)
    key, value = sorted(shape.member.members, key=lambda name: "value" in name.lower())
    return [{key: name, value: content} for name, content in tags.items()]
