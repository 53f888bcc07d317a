"""Validates event patterns and matches events against them.

Numbers are compared by value, and dotted keys are equivalent to nested keys, as in AWS's recorded responses.
Sources (2026-11): https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-create-pattern-operators.html,
https://github.com/localstack/localstack/blob/8b9a79f/tests/aws/services/events/test_events_patterns.snapshot.json
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

OPERATORS = ("prefix", "wildcard")


class InvalidPattern(ValueError):
    """The event pattern is invalid. The message contains the path, the value and the violated rule."""


def parse_pattern(text: str) -> dict[str, Any]:
    """Parse and validate a JSON pattern.

    Raises:
        InvalidPattern: The pattern is invalid.
    """
    try:
        pattern = json.loads(text)
    except ValueError as error:
        raise InvalidPattern(f"Event pattern is not valid. Reason: not JSON: {error}") from error
    if not isinstance(pattern, dict) or not pattern:
        raise InvalidPattern("Event pattern is not valid. Reason: must be a non-empty JSON object")
    _check_object(pattern, "")
    return pattern


def matches(pattern: Mapping[str, Any], event: Mapping[str, Any]) -> bool:
    """Return True if an event matches a pattern returned by `parse_pattern`."""
    return _matches_object(pattern, [event])


def _check_object(pattern: Mapping[str, Any], path: str) -> None:
    for key, value in pattern.items():
        where = f"{path}.{key}" if path else key
        if isinstance(value, dict):
            if not value:
                _refuse(where, value, "an empty object is not allowed")
            _check_object(value, where)
        elif isinstance(value, list):
            if not value:
                _refuse(where, value, "an empty array is not allowed")
            for matcher in value:
                _check_matcher(matcher, where)
        else:
            _refuse(where, value, "must be an object or an array")


def _check_matcher(matcher: object, where: str) -> None:
    if isinstance(matcher, list):
        _refuse(where, matcher, "an array inside an array is not allowed")
    if not isinstance(matcher, dict):
        return
    if len(matcher) != 1:
        _refuse(where, matcher, "a match expression must have exactly one operator")
    ((operator, operand),) = matcher.items()
    if operator not in OPERATORS:
        _refuse(where, matcher, f"match type {operator} is not emulated; use {', '.join(OPERATORS)}")
    if not isinstance(operand, str):
        _refuse(where, matcher, f"{operator} match pattern must be a string")
    if operator == "wildcard":
        _check_wildcard(operand, where)


def _check_wildcard(operand: str, where: str) -> None:
    if "**" in re.sub(r"\\.", "", operand):
        _refuse(where, operand, "consecutive wildcard characters are not allowed")
    if re.search(r"\\(?![*\\])", re.sub(r"\\[*\\]", "", operand)):
        _refuse(where, operand, "a backslash must be followed by * or another backslash")


def _refuse(where: str, value: object, rule: str) -> NoReturn:
    raise InvalidPattern(f"Event pattern is not valid. Reason: {where}: {json.dumps(value)}: {rule}")


def _matches_object(pattern: Mapping[str, Any], nodes: Sequence[Any]) -> bool:
    """Match a pattern object against candidate objects. All of its keys must match within the same candidate."""
    return any(all(_matches_key(key, value, node) for key, value in pattern.items()) for node in nodes)


def _matches_key(key: str, value: Any, node: Mapping[str, Any]) -> bool:
    candidates = list(_values(key, node))
    if isinstance(value, dict):
        return _matches_object(value, [candidate for candidate in candidates if isinstance(candidate, dict)])
    leaves = [candidate for candidate in candidates if not isinstance(candidate, dict)]
    return any(_matches_value(matcher, leaf) for matcher in value for leaf in leaves)


def _values(key: str, node: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the values at a key. A dot in the key, or in a key of the event, separates nested keys."""
    for name, value in node.items():
        if name == key:
            yield from _flatten(value)
        elif key.startswith(f"{name}."):
            for nested in _flatten(value):
                if isinstance(nested, dict):
                    yield from _values(key.removeprefix(f"{name}."), nested)
        elif name.startswith(f"{key}."):
            yield {name.removeprefix(f"{key}."): value}


def _flatten(value: Any) -> list[Any]:
    if not isinstance(value, list):
        return [value]
    return [item for element in value for item in _flatten(element)]


def _matches_value(matcher: Any, value: Any) -> bool:
    if not isinstance(matcher, dict):
        return _equal(matcher, value)
    ((operator, operand),) = matcher.items()
    if not isinstance(value, str):
        return False
    if operator == "prefix":
        return value.startswith(operand)
    return re.fullmatch(_wildcard_expression(operand), value, re.DOTALL) is not None


def _wildcard_expression(wildcard: str) -> str:
    pieces = re.findall(r"\\[*\\]|\*|[^*\\]+", wildcard)
    return "".join(".*" if piece == "*" else re.escape(re.sub(r"^\\(.)$", r"\1", piece)) for piece in pieces)


def _equal(wanted: Any, value: Any) -> bool:
    if _is_number(wanted) and _is_number(value):
        return bool(wanted == value)
    return bool(type(wanted) is type(value) and wanted == value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
