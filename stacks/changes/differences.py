"""Where two definitions of one resource differ, and what each difference does to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stacks.changes.references import Reference, is_intrinsic
from stacks.changes.schemas import PropertyPath, paths
from stacks.changes.texts import opened
from stacks.changes.update_rules import Effect, Resource, update_rule

ATTRIBUTES = ("DeletionPolicy", "UpdateReplacePolicy", "UpdatePolicy", "CreationPolicy", "DependsOn", "Condition")
"""What a resource has beside its properties and its metadata, compared whole."""
METADATA: PropertyPath = ("Metadata",)


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()
"""Stands for a value that one of the two sides does not have."""


@dataclass(frozen=True)
class Difference:
    """One difference: where, from what to what, and what it does.

    Properties have paths such as ("LaunchTemplateData", "ImageId"); other parts of a resource are named in
    ATTRIBUTES. `via` is the reference whose target moves although the template's text stays.
    """

    path: PropertyPath
    before: Any
    after: Any
    effect: Effect
    via: Reference | None = None
    source: str | None = None

    @property
    def is_metadata(self) -> bool:
        """Whether nothing but what checkers read differs."""
        return self.path[:1] == METADATA


def differences(before: Resource, after: Resource) -> list[Difference]:
    """Return how two definitions of one resource differ; both are of one type."""
    type_name = after["Type"]
    ruled = paths(type_name, "createOnlyProperties") | paths(type_name, "conditionalCreateOnlyProperties")
    old, new = (opened(type_name, one.get("Properties", {})) for one in (before, after))
    found = []
    for path, was, becomes in _different(old, new, ruled):
        effect, source = effect_of(type_name, path, before, after)
        found.append(Difference(path, was, becomes, effect, source=source))
    for name in (*ATTRIBUTES, *METADATA):
        was, becomes = before.get(name, MISSING), after.get(name, MISSING)
        if _comparable(name, was) != _comparable(name, becomes):
            found.append(Difference((name,), was, becomes, "in place"))
    return found


def effect_of(type_name: str, path: PropertyPath, before: Resource, after: Resource) -> tuple[Effect, str | None]:
    """Return what a change of one property does, and the page that says so where the schema does not."""
    named = tuple(part for part in path if not part.isdigit())
    rule = update_rule(type_name, named, before, after)
    if rule is not None:
        return rule.effect, rule.source
    if type_name.startswith("Custom::") or type_name == "AWS::CloudFormation::CustomResource":
        return ("replaces" if named[:1] == ("ServiceToken",) else "in place"), None
    # A conditional one without a rule of its own counts as replacing: better one warning too many.
    for key in ("createOnlyProperties", "conditionalCreateOnlyProperties"):
        for listed in paths(type_name, key):
            shorter = min(len(named), len(listed))
            if named[:shorter] == listed[:shorter]:
                return "replaces", None
    return "in place", None


def _comparable(name: str, value: Any) -> Any:
    """Return a value so that only what CloudFormation acts upon differs."""
    if name == "DependsOn" and value is not MISSING:
        return {value} if isinstance(value, str) else set(value)
    return value


def _different(
    before: Any, after: Any, ruled: frozenset[PropertyPath], path: PropertyPath = ()
) -> Iterator[tuple[PropertyPath, Any, Any]]:
    """Yield the innermost places that differ; a list counts as one unless its length stays."""
    if before == after:
        return
    if _opens(before) and _opens(after):
        for name in sorted(before.keys() | after.keys()):
            yield from _different(before.get(name, MISSING), after.get(name, MISSING), ruled, (*path, str(name)))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after) and not _names(before):
        for position, (was, becomes) in enumerate(zip(before, after, strict=True)):
            yield from _different(was, becomes, ruled, (*path, str(position)))
    elif _has_rules_below(path, ruled) and MISSING in (before, after):
        whole = after if before is MISSING else before
        for name in sorted(whole) if _opens(whole) else ():
            was, becomes = (MISSING, whole[name]) if before is MISSING else (whole[name], MISSING)
            yield from _different(was, becomes, ruled, (*path, str(name)))
    else:
        yield path, before, after


def _opens(value: Any) -> bool:
    return isinstance(value, Mapping) and not is_intrinsic(value)


def _names(values: list[Any]) -> bool:
    """Tell whether a list holds plain texts and numbers: it is read whole."""
    return all(not isinstance(item, (dict, list)) for item in values)


def _has_rules_below(path: PropertyPath, ruled: frozenset[PropertyPath]) -> bool:
    named = tuple(part for part in path if not part.isdigit())
    return bool(path) and any(len(one) > len(named) and one[: len(named)] == named for one in ruled)
