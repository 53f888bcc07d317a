"""References between resources, within a stack and by exports from one stack to another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from stacks.changes.assembly import Assembly
from stacks.changes.schemas import PropertyPath

_IN_TEXT = re.compile(r"\$\{(?!!)([^}]+)\}")


@dataclass(frozen=True)
class Reference:
    """What a value is taken from: a resource or parameter, its attribute ("" for Ref)."""

    stack: str
    logical_id: str
    attribute: str = ""

    def __str__(self) -> str:
        """Return it as people write it."""
        return f"{self.logical_id}.{self.attribute}" if self.attribute else self.logical_id


class Exports:
    """The values that the stacks of an assembly hand to each other, by export name."""

    def __init__(self, assembly: Assembly) -> None:
        self._values: dict[str, tuple[str, Any]] = {}
        self._importers: dict[str, set[str]] = {}
        for stack in assembly.values():
            for output in stack.template.get("Outputs", {}).values():
                name = output.get("Export", {}).get("Name")
                if isinstance(name, str):
                    self._values[name] = (stack.id, output["Value"])
            for name in _imported(stack.resources):
                self._importers.setdefault(name, set()).add(stack.id)

    def value(self, name: str) -> tuple[str, Any] | None:
        """Return the stack and the value of an export, None when nobody exports it."""
        return self._values.get(name)

    def of_stack(self, stack_id: str) -> dict[str, Any]:
        """Return what a stack exports, by name."""
        return {name: value for name, (owner, value) in self._values.items() if owner == stack_id}

    @property
    def names(self) -> Set[str]:
        """The names of all exports."""
        return self._values.keys()

    def imported_by(self, stack_id: str) -> set[str]:
        """Return the names that a stack imports."""
        return {name for name, users in self._importers.items() if stack_id in users}

    def importers(self, name: str) -> list[str]:
        """Return the stacks that import a value."""
        return sorted(self._importers.get(name, ()))


def is_intrinsic(value: Any) -> bool:
    """Tell whether a value is a function of CloudFormation, such as {"Ref": ...}."""
    return isinstance(value, Mapping) and len(value) == 1 and _is_function(next(iter(value)))


def _is_function(name: Any) -> bool:
    return name == "Ref" or str(name).startswith("Fn::")


def references(
    value: Any, stack_id: str, exports: Exports, path: PropertyPath = ()
) -> Iterator[tuple[PropertyPath, Reference]]:
    """Yield each reference inside a value with the path of the property that holds it; lists add no name to a path."""
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
    if function == "Ref":
        yield path, Reference(stack_id, argument)
    elif function == "Fn::GetAtt":
        name, attribute = argument.split(".", 1) if isinstance(argument, str) else argument
        yield path, Reference(stack_id, name, str(attribute))
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
    text, values = argument if isinstance(argument, list) else (argument, {})
    for name in _IN_TEXT.findall(text):
        if name in values:
            yield from (one for _, one in references(values[name], stack_id, exports))
        else:
            owner, _, attribute = name.partition(".")
            yield Reference(stack_id, owner, attribute)


def _imported(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _imported(item)
    elif isinstance(value, Mapping):
        name = value.get("Fn::ImportValue")
        if isinstance(name, str):
            yield name
        for item in value.values():
            yield from _imported(item)
