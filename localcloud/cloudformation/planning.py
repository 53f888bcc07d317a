"""What a template would do to a stack: the changes of a change set, found without making anything.

Values that only the deploy will know are `Unknown`: an attribute of a resource that is new, replaced or changed. Arns and ids
of a resource that is changed in place stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from graphlib import TopologicalSorter
from typing import Any

from localcloud.cloudformation.graph import dependencies
from localcloud.cloudformation.intrinsics import Resolver, Unknown
from localcloud.cloudformation.replacement import Verdict, needs_replacement, verdict
from localcloud.cloudformation.stack import Resource

STABLE_SUFFIXES = ("Arn", "Id", "ARN")
MakeResolver = Callable[[Callable[[str], Any], Callable[[str, str], Any]], Resolver]


def plan_changes(
    template: Mapping[str, Any], resources: Mapping[str, Resource], make_resolver: MakeResolver
) -> list[dict[str, Any]]:
    """Return the changes, in boto3's shape, that a template makes to the resources of a stack."""
    fresh: set[str] = set()
    changed: set[str] = set()

    def ref(logical_id: str) -> Any:
        return Unknown(logical_id) if logical_id in fresh else resources[logical_id].physical_id

    def get_att(logical_id: str, attribute: str) -> Any:
        stable = attribute.endswith(STABLE_SUFFIXES)
        if logical_id in fresh or (logical_id in changed and not stable):
            return Unknown(f"{logical_id}.{attribute}")
        return resources[logical_id].attributes.get(attribute, Unknown(f"{logical_id}.{attribute}"))

    resolver = make_resolver(ref, get_att)
    included = {name for name, item in template["Resources"].items() if resolver.includes(item)}
    changes: list[dict[str, Any]] = []
    for logical_id in TopologicalSorter(dependencies(template, included)).static_order():
        definition = template["Resources"][logical_id]
        before = resources.get(logical_id)
        if before is None:
            fresh.add(logical_id)
            changes.append(_change("Add", logical_id, definition["Type"]))
            continue
        after = resolver.resolve(definition.get("Properties", {}))
        if before.type_name != definition["Type"]:
            fresh.add(logical_id)
            changes.append(_change("Modify", logical_id, definition["Type"], before, "True", []))
            continue
        details = [
            _detail(name, verdict(before.type_name, name), after.get(name))
            for name in sorted(before.properties.keys() | after.keys())
            if before.properties.get(name) != after.get(name)
        ]
        if not details:
            continue
        replacement = _replacement(before, after, {detail["Target"]["Name"] for detail in details})
        (fresh if replacement == "True" else changed).add(logical_id)
        changes.append(_change("Modify", logical_id, before.type_name, before, replacement, details))
    removed = [name for name in resources if name not in included]
    changes += [_change("Remove", name, resources[name].type_name, resources[name]) for name in removed]
    return changes


def _replacement(before: Resource, after: Mapping[str, Any], names: set[str]) -> str:
    if needs_replacement(before.type_name, names, before.properties, after):
        dynamic = all(_has_unknown(after.get(n)) for n in names if verdict(before.type_name, n) == "Always")
        return "Conditional" if dynamic and any(verdict(before.type_name, n) == "Always" for n in names) else "True"
    return "False"


def _has_unknown(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_unknown, value.values()))
    return any(map(_has_unknown, value)) if isinstance(value, list) else isinstance(value, Unknown)


def _detail(name: str, recreation: Verdict, after: Any) -> dict[str, Any]:
    return {
        "Target": {"Attribute": "Properties", "Name": name, "RequiresRecreation": recreation},
        "Evaluation": "Dynamic" if _has_unknown(after) else "Static",
        "ChangeSource": "ResourceAttribute" if _has_unknown(after) else "DirectModification",
    }


def _change(
    action: str,
    logical_id: str,
    type_name: str,
    before: Resource | None = None,
    replacement: str | None = None,
    details: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    change: dict[str, Any] = {"Action": action, "LogicalResourceId": logical_id, "ResourceType": type_name}
    if before is not None:
        change["PhysicalResourceId"] = before.physical_id
    if replacement is not None:
        change |= {"Replacement": replacement, "Scope": ["Properties"], "Details": details}
    return {"Type": "Resource", "ResourceChange": change}
