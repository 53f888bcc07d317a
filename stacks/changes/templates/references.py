"""References between resources, both within a stack and across stacks through exports."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from stacks.changes.templates.template_set import PropertyPath, TemplateSet

_IN_TEXT = re.compile(r"\$\{(?!!)([^}]+)\}")


@dataclass(frozen=True)
class Reference:
    """The target of a reference: a resource or parameter and its attribute ("" for Ref)."""

    stack: str
    logical_id: str
    attribute: str = ""

    def __str__(self) -> str:
        """Return the reference as NAME or NAME.ATTRIBUTE."""
        return f"{self.logical_id}.{self.attribute}" if self.attribute else self.logical_id


class Exports:
    """The values that a deployment's stacks export, keyed by export name."""

    def __init__(self, templates: TemplateSet) -> None:
        self._templates = templates
        self._values: dict[str, tuple[str, Any]] = {}
        for stack in templates.values():
            for output in stack.template.get("Outputs", {}).values():
                export = output.get("Export") if isinstance(output, Mapping) else None
                name = export.get("Name") if isinstance(export, Mapping) else None
                if isinstance(name, str):
                    self._values[name] = (stack.id, output.get("Value"))

    @cached_property
    def _importers(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for stack in self._templates.values():
            for name in _imported(stack.resources):
                found.setdefault(name, set()).add(stack.id)
        return found

    def value(self, name: str) -> tuple[str, Any] | None:
        """Return the stack and value of an export, or None if the export does not exist."""
        return self._values.get(name)

    def of_stack(self, stack_id: str) -> dict[str, Any]:
        """Return a stack's exports, keyed by name."""
        return {name: value for name, (owner, value) in self._values.items() if owner == stack_id}

    @property
    def names(self) -> Set[str]:
        """The names of all exports."""
        return self._values.keys()

    def imported_by(self, stack_id: str) -> set[str]:
        """Return the names of the exports that a stack imports."""
        return {name for name, users in self._importers.items() if stack_id in users}

    def importers(self, name: str) -> list[str]:
        """Return the stacks that import an export."""
        return sorted(self._importers.get(name, ()))


def is_intrinsic(value: Any) -> bool:
    """Return True if a value is an intrinsic function of CloudFormation, such as {"Ref": ...}."""
    return isinstance(value, Mapping) and len(value) == 1 and _is_function(next(iter(value)))


def _is_function(name: Any) -> bool:
    return name == "Ref" or str(name).startswith("Fn::")


def references(
    value: Any, stack_id: str, exports: Exports, path: PropertyPath = ()
) -> Iterator[tuple[PropertyPath, Reference]]:
    """Yield each reference inside a value with its property path. Paths do not include list positions."""
    if isinstance(value, list):
        for item in value:
            yield from references(item, stack_id, exports, path)
        return
    if not isinstance(value, Mapping):
        return
    if not is_intrinsic(value):
        for name, item in value.items():
            yield from references(item, stack_id, exports, (*path, name))
        return
    ((function, argument),) = value.items()
    if function == "Ref" and isinstance(argument, str):
        yield path, Reference(stack_id, argument)
    elif function == "Fn::GetAtt" and isinstance(argument, (str, list)):
        name, _, attribute = (argument if isinstance(argument, str) else ".".join(map(str, argument))).partition(".")
        yield path, Reference(stack_id, name, attribute)
    elif function == "Fn::ImportValue" and isinstance(argument, str):
        found = exports.value(argument)
        if found is not None:
            yield from references(found[1], found[0], exports, path)
    else:
        yield from ((path, one) for one in _of_function(function, argument, stack_id, exports))


def _of_function(function: str, argument: Any, stack_id: str, exports: Exports) -> Iterator[Reference]:
    if function != "Fn::Sub":
        yield from (one for _, one in references(argument, stack_id, exports))
        return
    text, values = argument if isinstance(argument, list) and len(argument) == 2 else (argument, {})
    for name in _IN_TEXT.findall(text) if isinstance(text, str) and isinstance(values, Mapping) else ():
        if name in values:
            yield from (one for _, one in references(values[name], stack_id, exports))
        else:
            owner, _, attribute = name.partition(".")
            yield Reference(stack_id, owner, attribute)


def _imported(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _imported(item)
    elif isinstance(value, dict):  # Mapping is slower, and templates contain many values
        name = value.get("Fn::ImportValue")
        if isinstance(name, str):
            yield name
        for item in value.values():
            yield from _imported(item)
