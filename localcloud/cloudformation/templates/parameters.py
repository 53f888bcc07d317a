"""Resolves template parameters from given values, defaults and Parameter Store, and checks their constraints."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from localcloud.cloudformation.errors import TemplateError
from localcloud.cloudformation.templates.intrinsics import text_of

SSM_VALUE = re.compile(r"^AWS::SSM::Parameter::Value<(.+)>$")


def resolve_parameters(
    template: Mapping[str, Any],
    given: list[Mapping[str, Any]],
    previous: Mapping[str, str],
    read_ssm: Callable[[str], str],
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the raw value of each parameter and its Ref value (lists split, SSM values resolved).

    Args:
        given: Parameters in boto3's form, with ParameterKey and either ParameterValue or UsePreviousValue.
        previous: Raw parameter values of the existing stack.
        read_ssm: Returns a Parameter Store value by name; raises TemplateError if it does not exist.

    Raises:
        TemplateError: Parameters are invalid. The message lists all problems.
    """
    declared: Mapping[str, Mapping[str, Any]] = template.get("Parameters", {})
    problems = [
        f"Parameters: [{item['ParameterKey']}] do not exist in the template"
        for item in given
        if item["ParameterKey"] not in declared
    ]
    by_key = {item["ParameterKey"]: item for item in given}
    raw: dict[str, str] = {}
    for name, definition in declared.items():
        item = by_key.get(name)
        if item is not None and item.get("UsePreviousValue"):
            value = previous.get(name)
            if value is None:
                problems.append(
                    f"Invalid input for parameter key {name}. Cannot specify usePreviousValue as true for a parameter "
                    "key not in the previous template"
                )
                continue
        elif item is not None:
            value = item.get("ParameterValue")
        else:
            value = None
        if value is None and "Default" in definition:
            value = text_of(definition["Default"])
        if value is None:
            problems.append(f"Parameters: [{name}] must have values")
            continue
        problems += _violations(name, value, definition)
        raw[name] = value
    if problems:
        raise TemplateError("; ".join(problems))
    return raw, {name: _value(name, raw[name], declared[name]["Type"], read_ssm) for name in raw}


def _value(name: str, text: str, kind: str, read_ssm: Callable[[str], str]) -> Any:
    reference = SSM_VALUE.match(kind)
    if reference:
        try:
            text, kind = read_ssm(text), reference.group(1)
        except TemplateError as error:
            # Source: test_resolve_ssm_missing_parameter in
            # https://github.com/localstack/localstack/tree/8b9a79f/tests/aws/services/cloudformation.
            raise TemplateError(f"Parameter {name} should either have input value or default value") from error
    if kind == "CommaDelimitedList" or kind.startswith("List<"):
        return [part.strip() for part in text.split(",")] if text else []
    return text


def _numbers(value: str, kind: str) -> list[float] | None:
    """Return the numbers in a numeric parameter's value, an empty list for other types, or None if invalid."""
    parts = {"Number": [value], "List<Number>": value.split(",")}.get(kind, [])
    try:
        return [float(part) for part in parts]
    except ValueError:
        return None


def _violations(name: str, value: str, definition: Mapping[str, Any]) -> list[str]:
    where = f"Parameter '{name}'"
    found = []
    allowed = definition.get("AllowedValues")
    if allowed is not None and value not in [text_of(item) for item in allowed]:
        found.append(f"{where} must be one of AllowedValues")
    pattern = definition.get("AllowedPattern")
    if pattern is not None and re.fullmatch(pattern, value) is None:
        found.append(f"{where} must match pattern {pattern}")
    if len(value) < int(definition.get("MinLength", 0)):
        found.append(f"{where} must contain at least {definition['MinLength']} characters")
    if "MaxLength" in definition and len(value) > int(definition["MaxLength"]):
        found.append(f"{where} must contain at most {definition['MaxLength']} characters")
    numbers = _numbers(value, definition["Type"])
    if numbers is None:
        return [*found, f"{where} must be a number."]
    for number in numbers:
        if "MinValue" in definition and number < float(definition["MinValue"]):
            found.append(f"{where} must be a number not less than {definition['MinValue']}")
        if "MaxValue" in definition and number > float(definition["MaxValue"]):
            found.append(f"{where} must be a number not greater than {definition['MaxValue']}")
    if found and "ConstraintDescription" in definition:
        return [f"{where} failed to satisfy constraint: {definition['ConstraintDescription']}"]
    return found
