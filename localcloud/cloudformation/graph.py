"""The dependency graph of a template's resources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from localcloud.cloudformation.errors import TemplateError
from localcloud.cloudformation.intrinsics import PLACEHOLDER


def references(value: Any) -> Iterator[str]:
    """Yield each logical id (or parameter name) that a value refers to by Ref, Fn::GetAtt or Fn::Sub."""
    if isinstance(value, list):
        for item in value:
            yield from references(item)
    if not isinstance(value, dict):
        return
    for name, argument in value.items():
        if name == "Ref" and isinstance(argument, str):
            yield argument
        elif name == "Fn::GetAtt":
            yield argument.split(".", 1)[0] if isinstance(argument, str) else argument[0]
        elif name == "Fn::Sub":
            text, variables = (argument, {}) if isinstance(argument, str) else argument
            for match in PLACEHOLDER.finditer(text):
                if match.group(1) not in variables:
                    yield match.group(1).strip().split(".", 1)[0]
            yield from references(variables)
        else:
            yield from references(argument)


def dependencies(template: Mapping[str, Any], included: set[str]) -> dict[str, set[str]]:
    """Return what each included resource needs first.

    Raises:
        TemplateError: A reference or DependsOn names nothing in the template.
    """
    known = set(template["Resources"]) | set(template.get("Parameters", {}))
    graph: dict[str, set[str]] = {}
    for logical_id in included:
        resource = template["Resources"][logical_id]
        named = resource.get("DependsOn", [])
        explicit = {named} if isinstance(named, str) else set(named)
        implicit = set(references(resource.get("Properties", {})))
        unknown = sorted(name for name in explicit | implicit if name not in known and not name.startswith("AWS::"))
        if unknown:
            raise TemplateError(f"Template format error: Unresolved resource dependencies {unknown} in {logical_id}")
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
