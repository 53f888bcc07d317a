"""Builds the dependency graph of a template's resources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from localcloud.cloudformation.errors import TemplateError
from localcloud.cloudformation.templates.intrinsics import PLACEHOLDER

# Keys in which references create dependencies. DeletionPolicy and UpdateReplacePolicy can only reference parameters.
REFERRING = ("Properties", "Metadata", "UpdatePolicy", "CreationPolicy")

EVALUATED = "(evaluated)"
"""Placeholder for a Fn::GetAtt attribute that a function computes."""


def references(value: Any) -> Iterator[tuple[str, str | None]]:
    """Yield all references in a value, including Fn::Sub: (name, None) for Ref, (name, attribute) for Fn::GetAtt.

    The attribute is "" if a Fn::GetAtt does not have one.
    """
    if isinstance(value, list):
        for item in value:
            yield from references(item)
    if not isinstance(value, dict):
        return
    for name, argument in value.items():
        if name == "Ref" and isinstance(argument, str):
            yield argument, None
        elif name == "Fn::GetAtt" and isinstance(argument, (str, list)) and argument:
            logical_id, *rest = argument.split(".", 1) if isinstance(argument, str) else argument
            attribute = rest[0] if rest else ""
            yield str(logical_id), attribute if isinstance(attribute, str) else EVALUATED
            yield from references(rest)
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
    """Return each included resource's dependencies. The references must already have been validated.

    Raises:
        TemplateError: The dependencies are circular. The message lists the cycle in order.
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
    """Return the graph with its edges reversed, so that deletion processes dependents first."""
    reversed_graph: dict[str, set[str]] = {logical_id: set() for logical_id in graph}
    for logical_id, needed in graph.items():
        for one in needed & reversed_graph.keys():
            reversed_graph[one].add(logical_id)
    return reversed_graph
