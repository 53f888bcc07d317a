"""A resource's definition with every function evaluated: what is stored of it, and what is compared on an update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localcloud.cloudformation.intrinsics import Resolver

# Everything but Type, DependsOn and Condition: those alone are no change, as on AWS.
ATTRIBUTES = ("Metadata", "DeletionPolicy", "UpdateReplacePolicy", "UpdatePolicy", "CreationPolicy")
HANDED_TO_PROVIDERS = ("UpdatePolicy", "CreationPolicy")


def evaluate(resolver: Resolver, definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return Type, Properties and attributes of a resource with their functions evaluated."""
    evaluated = {"Type": definition["Type"], "Properties": resolver.resolve(definition.get("Properties") or {})}
    for name in ATTRIBUTES:
        if name in definition:
            evaluated[name] = resolver.resolve(definition[name])
    return evaluated


def changed_attributes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the attributes that differ between two evaluated definitions."""
    return [name for name in ATTRIBUTES if old.get(name) != new.get(name)]
