"""Differences between two definitions of one resource, and the effect of each difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stacks.changes.templates.references import Reference, is_intrinsic
from stacks.changes.templates.template_set import PropertyPath
from stacks.changes.templates.values import parse_documents
from stacks.changes.updates.schemas import paths
from stacks.changes.updates.update_rules import Effect, Resource, update_rule

ATTRIBUTES = ("DeletionPolicy", "UpdateReplacePolicy", "UpdatePolicy", "CreationPolicy", "DependsOn", "Condition")
"""Resource attributes other than properties and metadata. Each is compared as one value."""
METADATA: PropertyPath = ("Metadata",)


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()
"""Marks a value that is missing on one of the two sides."""


@dataclass(frozen=True)
class Difference:
    """One difference, with its path, both values and its effect.

    Properties have paths such as ("LaunchTemplateData", "ImageId"). ATTRIBUTES lists the other parts of a resource.
    `via` is a reference whose value changes even though the template text is unchanged.
    """

    path: PropertyPath
    before: Any
    after: Any
    effect: Effect
    via: Reference | None = None
    source: str | None = None
    is_attribute: bool = False
    """Whether the difference is in an attribute, such as DeletionPolicy, rather than in a property."""

    @property
    def is_metadata(self) -> bool:
        """Whether the difference is in the metadata, which only policy checkers read."""
        return self.is_attribute and self.path[:1] == METADATA


def differences(before: Resource, after: Resource) -> list[Difference]:
    """Return the differences between two definitions of a resource of the same type."""
    type_name = after["Type"]
    create_only = paths(type_name, "createOnlyProperties") | paths(type_name, "conditionalCreateOnlyProperties")
    old, new = (parse_documents(type_name, one.get("Properties", {})) for one in (before, after))
    found = []
    for path, was, becomes in _different(old, new, create_only):
        effect, source = effect_of(type_name, path, before, after)
        found.append(Difference(path, was, becomes, effect, source=source))
    for name in sorted((before.keys() | after.keys()) - {"Type", "Properties"}):
        was, becomes = before.get(name, MISSING), after.get(name, MISSING)
        if _comparable(name, was) != _comparable(name, becomes):
            found.append(Difference((name,), was, becomes, "in place", is_attribute=True))
    return found


def effect_of(type_name: str, path: PropertyPath, before: Resource, after: Resource) -> tuple[Effect, str | None]:
    """Return the effect of changing a property, and the documentation page if the schema does not define the effect."""
    named = tuple(part for part in path if not part.isdigit())
    rule = update_rule(type_name, named, before, after)
    if rule is not None:
        return rule.effect, rule.source
    if type_name.startswith("Custom::") or type_name == "AWS::CloudFormation::CustomResource":
        return ("replaces" if named[:1] == ("ServiceToken",) else "in place"), None
    # Treat a conditional create-only property without a rule as replacing: a false alarm is better than a missed
    # replacement.
    for key in ("createOnlyProperties", "conditionalCreateOnlyProperties"):
        for listed in paths(type_name, key):
            shorter = min(len(named), len(listed))
            if named[:shorter] == listed[:shorter]:
                return "replaces", None
    return "in place", None


def _comparable(name: str, value: Any) -> Any:
    """Return a value without the details that CloudFormation ignores."""
    if name == "DependsOn" and isinstance(value, (str, list)):
        return {value} if isinstance(value, str) else set(map(str, value))
    return value


def _different(
    before: Any, after: Any, create_only: frozenset[PropertyPath], path: PropertyPath = ()
) -> Iterator[tuple[PropertyPath, Any, Any]]:
    """Yield the innermost paths that differ. A list is compared as one value unless both lists have the same length."""
    if before == after:
        return
    if _is_object(before) and _is_object(after):
        for name in sorted(before.keys() | after.keys()):
            yield from _different(before.get(name, MISSING), after.get(name, MISSING), create_only, (*path, str(name)))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after) and not _is_plain(before):
        for position, (was, becomes) in enumerate(zip(before, after, strict=True)):
            yield from _different(was, becomes, create_only, (*path, str(position)))
    elif _has_create_only_below(path, create_only) and MISSING in (before, after):
        present = after if before is MISSING else before
        for name in sorted(present) if _is_object(present) else ():
            was, becomes = (MISSING, present[name]) if before is MISSING else (present[name], MISSING)
            yield from _different(was, becomes, create_only, (*path, str(name)))
    else:
        yield path, before, after


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping) and not is_intrinsic(value)


def _is_plain(values: list[Any]) -> bool:
    """Return True for a list of strings and numbers, which is reported as one value."""
    return all(not isinstance(item, (dict, list)) for item in values)


def _has_create_only_below(path: PropertyPath, create_only: frozenset[PropertyPath]) -> bool:
    named = tuple(part for part in path if not part.isdigit())
    return bool(path) and any(len(one) > len(named) and one[: len(named)] == named for one in create_only)
