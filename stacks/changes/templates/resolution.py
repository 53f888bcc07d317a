"""Evaluates parameters, conditions, mappings and text functions. Both sides of a comparison then contain values.

A function that cannot be evaluated stays in the template, and the comparison treats it as an unknown value. Source
(2026-11): https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/intrinsic-function-reference.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from stacks.changes.templates.references import is_intrinsic
from stacks.changes.templates.template_set import StackTemplate, TemplateSet

UNREADABLE = "unreadable resource"
"""The type of an entry in Resources that is not a resource, such as a loop from the language extensions."""
UNREADABLE_PROPERTIES = "unreadable properties"
"""The property name for the properties of a resource if they are not a mapping."""
_VARIABLE = re.compile(r"\$\{(!?)([^}]*)\}")
_DROPPED = object()
"""The value of a property that AWS::NoValue removes."""


def resolved(templates: TemplateSet) -> dict[str, StackTemplate]:
    """Return the stacks with evaluated resources and outputs. Resources with a false condition are omitted."""
    return {name: replace(stack, template=_Stack(stack).template()) for name, stack in templates.items()}


def with_previous_values(before: TemplateSet, after: TemplateSet) -> dict[str, StackTemplate]:
    """Return the new stacks with the parameter values that a deploy keeps: those that differ from the old default.

    `cdk deploy` also keeps a value that equals the old default. A pipeline does not, so the new default applies.
    Source (2026-11): https://docs.aws.amazon.com/cdk/v2/guide/ref-cli-cmd-deploy.html (--previous-parameters)
    """
    kept = {}
    for name, stack in after.items():
        old = before.get(name)
        declared = {} if old is None else old.template.get("Parameters", {})
        values = {
            key: value
            for key, value in ({} if old is None else old.parameters).items()
            if key in stack.template.get("Parameters", {}) and value != str(declared.get(key, {}).get("Default"))
        }
        kept[name] = replace(stack, parameters=values)
    return kept


class _Stack:
    """One stack with evaluated functions."""

    def __init__(self, stack: StackTemplate) -> None:
        self._template = stack.template
        self._given = stack.parameters
        self._parameters: Mapping[str, Any] = self._section("Parameters")
        self._mappings: Mapping[str, Any] = self._section("Mappings")
        self._conditions: Mapping[str, Any] = self._section("Conditions")
        self._evaluating: set[str] = set()

    def _section(self, name: str) -> Mapping[str, Any]:
        section = self._template.get(name, {})
        return section if isinstance(section, Mapping) else {}

    def template(self) -> dict[str, Any]:
        return {
            **self._template,
            "Resources": dict(self._resources()),
            "Outputs": dict(self._present(self._section("Outputs"))),
        }

    def _resources(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for logical_id, definition in self._present(self._section("Resources")):
            if not isinstance(definition, Mapping) or not isinstance(definition.get("Type"), str):
                yield logical_id, {"Type": UNREADABLE, "Properties": {UNREADABLE_PROPERTIES: definition}}
                continue
            properties = definition.get("Properties")
            if properties is not None and (not isinstance(properties, Mapping) or is_intrinsic(properties)):
                definition = {**definition, "Properties": {UNREADABLE_PROPERTIES: properties}}
            yield logical_id, dict(definition)

    def _present(self, section: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield the evaluated entries of a section, except those with a false condition."""
        for name, definition in section.items():
            condition = definition.get("Condition") if isinstance(definition, Mapping) else None
            value = self._condition(condition) if isinstance(condition, str) else None
            if value is False:
                continue
            evaluated = self.value(definition)
            if value is True:
                del evaluated["Condition"]
            yield name, evaluated

    def value(self, value: Any) -> Any:
        """Return a value with its functions evaluated."""
        if isinstance(value, list):
            items = [self.value(item) for item in value]
            return [item for item in items if item is not _DROPPED]
        if not isinstance(value, Mapping):
            return value
        if not is_intrinsic(value):
            entries = {name: self.value(item) for name, item in value.items()}
            return {name: item for name, item in entries.items() if item is not _DROPPED}
        ((function, argument),) = value.items()
        if function == "Fn::If":
            return self._if(argument)
        argument = argument if function in ("Ref", "Fn::GetAtt") else self.value(argument)
        evaluate = {
            "Ref": self._ref,
            "Fn::FindInMap": self._find,
            "Fn::Join": _join,
            "Fn::Sub": self._sub,
            "Fn::Select": _select,
            "Fn::Split": _split,
        }.get(function)
        found = None if evaluate is None else evaluate(argument)
        return {function: argument} if found is None else found

    def _ref(self, name: Any) -> Any:
        if name == "AWS::NoValue":
            return _DROPPED
        return self._parameter(name) if isinstance(name, str) else None

    def _parameter(self, name: str) -> Any:
        """Return a parameter's value, or None if it has none."""
        declared = self._parameters.get(name)
        if not isinstance(declared, Mapping):
            return None
        value, kind = self._given.get(name, declared.get("Default")), str(declared.get("Type", "String"))
        if value is None:
            return None
        if kind.startswith("AWS::SSM::Parameter::Value<"):
            return f"{{{{resolve:ssm:{value}}}}}"
        if kind == "CommaDelimitedList" or kind.startswith("List<"):
            return [part.strip() for part in str(value).split(",")]
        return value

    def _if(self, argument: Any) -> Any:
        if not isinstance(argument, list) or len(argument) != 3:
            return {"Fn::If": argument}
        condition = self._condition(argument[0]) if isinstance(argument[0], str) else None
        if condition is None:
            branches = [{"Ref": "AWS::NoValue"} if one is _DROPPED else one for one in map(self.value, argument[1:])]
            return {"Fn::If": [argument[0], *branches]}
        return self.value(argument[1 if condition else 2])

    def _condition(self, name: str) -> bool | None:
        """Return the value of a named condition, or None if it is unknown."""
        if name not in self._conditions or name in self._evaluating:
            return None
        self._evaluating.add(name)
        found = self._truth(self._conditions[name])
        self._evaluating.discard(name)
        return found

    def _truth(self, expression: Any) -> bool | None:
        if not isinstance(expression, Mapping) or len(expression) != 1:
            return None
        ((function, argument),) = expression.items()
        if function == "Condition":
            return self._condition(argument) if isinstance(argument, str) else None
        if not isinstance(argument, list) or not argument:
            return None
        if function == "Fn::Equals" and len(argument) == 2:
            one, other = (self.value(item) for item in argument)
            is_plain = all(isinstance(item, (str, int, float, bool)) and not _is_dynamic(item) for item in (one, other))
            return str(one) == str(other) if is_plain else None
        parts = [self._truth(item) for item in argument]
        if function == "Fn::Not" and len(parts) == 1:
            return None if parts[0] is None else not parts[0]
        if function == "Fn::And":
            return False if False in parts else None if None in parts else True
        if function == "Fn::Or":
            return True if True in parts else None if None in parts else False
        return None

    def _find(self, argument: Any) -> Any:
        if not isinstance(argument, list) or len(argument) not in (3, 4):
            return None
        found: Any = self._mappings
        for key in argument[:3]:
            if not isinstance(key, str) or not isinstance(found, Mapping):
                return None
            found = found.get(key)
        return self.value(found) if found is not None else None

    def _sub(self, argument: Any) -> Any:
        text, values = argument if isinstance(argument, list) and len(argument) == 2 else (argument, {})
        if not isinstance(text, str) or not isinstance(values, Mapping):
            return None
        left: dict[str, Any] = {}

        def replaced(match: re.Match[str]) -> str:
            is_literal, name = match.groups()
            value = values[name] if name in values else self._parameter(name)
            if not is_literal and isinstance(value, (str, int, float)) and not isinstance(value, bool):
                return str(value)
            if not is_literal and name in values:
                left[name] = value
            return match.group()

        done = _VARIABLE.sub(replaced, text)
        if not any(not is_literal for is_literal, _ in _VARIABLE.findall(done)):
            return _VARIABLE.sub(lambda match: f"${{{match.group(2)}}}", done)
        return {"Fn::Sub": [done, left] if left else done}


def _is_dynamic(value: Any) -> bool:
    return isinstance(value, str) and "{{resolve:" in value


def _join(argument: Any) -> Any:
    if not isinstance(argument, list) or len(argument) != 2 or not isinstance(argument[1], list):
        return None
    separator, parts = argument
    is_plain = isinstance(separator, str) and all(isinstance(part, (str, int, float)) for part in parts)
    return separator.join(map(str, parts)) if is_plain else None


def _select(argument: Any) -> Any:
    if not isinstance(argument, list) or len(argument) != 2 or not isinstance(argument[1], list):
        return None
    index, values = argument
    is_index = str(index).isdigit() and int(index) < len(values)
    return values[int(index)] if is_index and not any(is_intrinsic(one) for one in values) else None


def _split(argument: Any) -> Any:
    is_plain = isinstance(argument, list) and len(argument) == 2 and all(isinstance(one, str) for one in argument)
    return argument[1].split(argument[0]) if is_plain and argument[0] else None
