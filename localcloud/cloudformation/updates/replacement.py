"""Determines whether a changed property causes an update in place, a replacement or an unsupported update.

The effect is derived from createOnlyProperties in the registry schemas. `replacement_rules` fills the gaps in these
schemas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from localcloud.cloudformation.resource_types import is_custom, paths
from localcloud.cloudformation.templates.intrinsics import has_unknown
from localcloud.cloudformation.updates.replacement_rules import Rule, rule, rule_paths

Recreation = Literal["Never", "Always", "Conditionally"]
MISSING = object()


@dataclass(frozen=True)
class PropertyChange:
    """A changed property: its path, old and new values, and effect on the resource."""

    path: tuple[str, ...]
    before: Any
    after: Any
    recreation: Recreation
    problem: str | None = None

    @property
    def is_static(self) -> bool:
        """Whether the new value is known before the deployment."""
        return not has_unknown(self.after)


def property_changes(type_name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[PropertyChange]:
    """Return the properties that differ between two evaluated definitions of the same type.

    A property whose parts have different effects is compared part by part. Other properties are compared in full.
    """
    listed = [*paths(type_name, "createOnlyProperties"), *rule_paths(type_name)]
    parts = {path for path in listed if len(path) > 1}
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
    """Return a change's Replacement field: Conditional if it depends on values known only after the deployment."""
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
                f"Updates of {where} are not supported for {type_name} ({found.source}); create a new resource",
            )
        if found.verdict == "conditional":
            assert found.when is not None, f"{type_name} {path}: conditional rule without a condition"
            return ("Always" if found.when(old, new) else "Never"), None
        return ("Always" if found.verdict == "replace" else "Never"), None
    if is_custom(type_name):
        return ("Always" if path == ("ServiceToken",) else "Never"), None
    # A conditional property without a rule causes a replacement, since an update in place may be impossible.
    for key in ("createOnlyProperties", "conditionalCreateOnlyProperties"):
        if any(path[: len(listed)] == listed for listed in paths(type_name, key)):
            return "Always", None
    return "Never", None


def _differences(
    old: Mapping[str, Any], new: Mapping[str, Any], parts: set[tuple[str, ...]], prefix: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    for name in sorted(old.keys() | new.keys()):
        path = (*prefix, name)
        before, after = old.get(name, MISSING), new.get(name, MISSING)
        if before is not MISSING and after is not MISSING and before == after:
            continue
        inner_before, inner_after = ({} if value is MISSING else value for value in (before, after))
        has_parts = any(len(part) > len(path) and part[: len(path)] == path for part in parts)
        if has_parts and isinstance(inner_before, Mapping) and isinstance(inner_after, Mapping):
            yield from _differences(inner_before, inner_after, parts, path)
        else:
            yield path, before, after
