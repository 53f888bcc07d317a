"""Tells for each changed property whether it is changed in place, replaces the resource, or cannot be changed.

The registry schemas say it through createOnlyProperties; `replacement_rules` says what they leave out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from localcloud.cloudformation.intrinsics import has_unknown
from localcloud.cloudformation.replacement_rules import Rule, rule, rule_paths
from localcloud.cloudformation.schemas import paths

Recreation = Literal["Never", "Always", "Conditionally"]
MISSING = object()


@dataclass(frozen=True)
class PropertyChange:
    """One changed property: where, from what to what, and what it means for the resource."""

    path: tuple[str, ...]
    before: Any
    after: Any
    recreation: Recreation
    problem: str | None = None

    @property
    def is_static(self) -> bool:
        """Whether the new value is known before anything is done."""
        return not has_unknown(self.after)


def property_changes(type_name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[PropertyChange]:
    """Return what differs between two resources of one type, as definitions whose Properties are resolved.

    A property that has parts with a verdict of their own is taken apart as far as these; others are compared whole.
    """
    spoken_of = [*paths(type_name, "createOnlyProperties"), *rule_paths(type_name)]
    parts = {path for path in spoken_of if len(path) > 1}
    changes = []
    for path, before, after in _differences(old.get("Properties", {}), new.get("Properties", {}), parts):
        found = rule(type_name, path)
        recreation, problem = _verdict(type_name, path, found, old, new)
        changes.append(
            PropertyChange(
                path, None if before is MISSING else before, None if after is MISSING else after, recreation, problem
            )
        )
    return changes


def replaces(changes: list[PropertyChange]) -> Literal["True", "False", "Conditional"]:
    """Return what a change set calls the Replacement: Conditional when only values known later could cause it."""
    always = [change for change in changes if change.recreation == "Always"]
    if any(change.is_static for change in always):
        return "True"
    return "Conditional" if always else "False"


def _verdict(
    type_name: str, path: tuple[str, ...], found: Rule | None, old: Mapping[str, Any], new: Mapping[str, Any]
) -> tuple[Recreation, str | None]:
    if found is not None:
        if found.verdict == "not_supported":
            where = "/".join(path)
            return (
                "Never",
                f"Updates of {where} are not supported for {type_name} ({found.source}); make a new resource",
            )
        if found.verdict == "conditional":
            assert found.when is not None, f"{type_name} {path}: a conditional rule without its condition"
            return ("Always" if found.when(old, new) else "Never"), None
        return ("Always" if found.verdict == "replace" else "Never"), None
    if _is_custom(type_name):
        return ("Always" if path == ("ServiceToken",) else "Never"), None
    # A conditional one without a rule: replacing loses nothing that an impossible update would keep.
    for key in ("createOnlyProperties", "conditionalCreateOnlyProperties"):
        if any(path[: len(listed)] == listed for listed in paths(type_name, key)):
            return "Always", None
    return "Never", None


def _is_custom(type_name: str) -> bool:
    return type_name.startswith("Custom::") or type_name == "AWS::CloudFormation::CustomResource"


def _differences(
    old: Mapping[str, Any], new: Mapping[str, Any], parts: set[tuple[str, ...]], prefix: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    for name in sorted(old.keys() | new.keys()):
        path = (*prefix, name)
        before, after = old.get(name, MISSING), new.get(name, MISSING)
        if before is not MISSING and after is not MISSING and before == after:
            continue
        inner_before, inner_after = ({} if value is MISSING else value for value in (before, after))
        is_taken_apart = any(len(part) > len(path) and part[: len(path)] == path for part in parts)
        if is_taken_apart and isinstance(inner_before, Mapping) and isinstance(inner_after, Mapping):
            yield from _differences(inner_before, inner_after, parts, path)
        else:
            yield path, before, after
