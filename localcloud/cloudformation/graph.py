"""The dependency graph of a template's resources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from localcloud.cloudformation.errors import TemplateError
from localcloud.cloudformation.intrinsics import PLACEHOLDER

# References in these make a dependency; those in DeletionPolicy and UpdateReplacePolicy are to parameters only.
REFERRING = ("Properties", "Metadata", "UpdatePolicy", "CreationPolicy")


def references(value: Any) -> Iterator[tuple[str, str | None]]:
    """Yield what a value refers to by Ref (name, None) or Fn::GetAtt (logical id, attribute), also within Fn::Sub."""
    if isinstance(value, list):
        for item in value:
            yield from references(item)
    if not isinstance(value, dict):
        return
    for name, argument in value.items():
        if name == "Ref" and isinstance(argument, str):
            yield argument, None
        elif name == "Fn::GetAtt" and isinstance(argument, (str, list)) and argument:
            logical_id, attribute = argument.split(".", 1) if isinstance(argument, str) else (argument + [""])[:2]
            yield logical_id, attribute if isinstance(attribute, str) else ""
            yield from references(attribute)
        elif name == "Fn::Sub" and isinstance(argument, (str, list)) and argument:
            text, variables = (argument, {}) if isinstance(argument, str) else (argument + [{}])[:2]
            for match in PLACEHOLDER.finditer(text):
                if match.group(1).strip() not in variables:
                    logical_id, dot, attribute = match.group(1).strip().partition(".")
                    yield logical_id, attribute if dot else None
            yield from references(variables)
        else:
            yield from references(argument)


def dependencies(template: Mapping[str, Any], included: set[str]) -> dict[str, set[str]]:
    """Return what each included resource needs first; references are taken as checked.

    Raises:
        TemplateError: A circle, with its members in order.
    """
    graph: dict[str, set[str]] = {}
    for logical_id in sorted(included):
        resource = template["Resources"][logical_id]
        named = resource.get("DependsOn", [])
        explicit = {named} if isinstance(named, str) else set(named)
        implicit = {name for key in REFERRING for name, _ in references(resource.get(key))}
        graph[logical_id] = (explicit | implicit) & included
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise TemplateError(f"Circular dependency between resources: {' -> '.join(error.args[1])}") from error
    return graph


def reverse(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the graph by which resources are deleted: dependants before what they need."""
    turned: dict[str, set[str]] = {logical_id: set() for logical_id in graph}
    for logical_id, needed in graph.items():
        for one in needed & turned.keys():
            turned[one].add(logical_id)
    return turned
