"""Event patterns: what EventBridge accepts, and whether an event matches.

Source: https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-create-pattern-operators.html (read 2026-11).
Numbers in exact matches compare by their JSON text, as documented there: 300 and 300.0 differ.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from localcloud.functions.errors import InvalidPattern

NUMERIC_LIMIT = 5e9
_COMPARISONS = {
    "=": lambda value, bound: value == bound,
    "<": lambda value, bound: value < bound,
    "<=": lambda value, bound: value <= bound,
    ">": lambda value, bound: value > bound,
    ">=": lambda value, bound: value >= bound,
}


def parse_pattern(text: str) -> dict[str, Any]:
    """Return the pattern in JSON `text`.

    Raises:
        InvalidPattern: with the path, the value and the rule.
    """
    try:
        pattern = json.loads(text)
    except ValueError as error:
        raise InvalidPattern(f"Event pattern is not valid. Reason: not JSON: {error}") from error
    if not isinstance(pattern, dict) or not pattern:
        raise InvalidPattern("Event pattern is not valid. Reason: it must be a JSON object that is not empty")
    _check_object(pattern, "")
    return pattern


def matches(pattern: Mapping[str, Any], event: Mapping[str, Any]) -> bool:
    """Say whether an event matches a pattern that `parse_pattern` has accepted."""
    return _matches_object(pattern, [event])


def _check_object(pattern: Mapping[str, Any], path: str) -> None:
    for key, value in pattern.items():
        where = f"{path}.{key}" if path else key
        if key == "$or" and isinstance(value, list):
            if len(value) < 2 or not all(isinstance(branch, dict) and branch for branch in value):
                _refuse(where, value, "$or takes two objects or more")
            for branch in value:
                _check_object(branch, path)
        elif isinstance(value, dict):
            if not value:
                _refuse(where, value, "an empty object is not allowed")
            _check_object(value, where)
        elif isinstance(value, list):
            if not value:
                _refuse(where, value, "an empty array is not allowed")
            for matcher in value:
                _check_matcher(matcher, where)
        else:
            _refuse(where, value, "it must be an object or an array")


def _check_matcher(matcher: object, where: str) -> None:
    if isinstance(matcher, list):
        _refuse(where, matcher, "an array inside an array is not allowed")
    if not isinstance(matcher, dict):
        return
    if len(matcher) != 1:
        _refuse(where, matcher, "a match expression has exactly one operator")
    ((operator, operand),) = matcher.items()
    if operator in ("prefix", "suffix"):
        if not isinstance(_folded(operand)[0], str):
            _refuse(where, matcher, f'{operator} takes a string, or {{"equals-ignore-case": string}}')
    elif operator == "equals-ignore-case":
        if not isinstance(operand, str):
            _refuse(where, matcher, "equals-ignore-case takes a string")
    elif operator == "wildcard":
        _check_wildcard(operand, where)
    elif operator == "exists":
        if not isinstance(operand, bool):
            _refuse(where, matcher, "exists takes true or false")
    elif operator == "numeric":
        _check_numeric(operand, where)
    elif operator == "cidr":
        _check_cidr(operand, where)
    elif operator == "anything-but":
        _check_anything_but(operand, where)
    else:
        _refuse(where, matcher, f"unrecognized match type {operator}")


def _check_numeric(operand: Any, where: str) -> None:
    if not isinstance(operand, list) or len(operand) not in (2, 4):
        _refuse(where, operand, "numeric takes one or two pairs of comparison and number")
    for operator, bound in zip(operand[::2], operand[1::2], strict=True):
        if operator not in _COMPARISONS:
            _refuse(where, operand, f"unrecognized numeric range operator {operator}")
        if not _is_number(bound) or abs(bound) > NUMERIC_LIMIT:
            _refuse(where, operand, "the bound must be a number between -5.0e9 and 5.0e9")
    if len(operand) == 4 and not (operand[0][0] == ">" and operand[2][0] == "<" and operand[1] < operand[3]):
        _refuse(where, operand, "a range is a lower bound (> or >=), then a greater upper bound (< or <=)")


def _check_cidr(operand: Any, where: str) -> None:
    try:
        ipaddress.ip_network(str(operand), strict=False)
    except ValueError as error:
        _refuse(where, operand, f"cidr takes an address block: {error}")


def _check_wildcard(operand: Any, where: str) -> None:
    if not isinstance(operand, str):
        _refuse(where, operand, "wildcard takes a string")
    if "**" in re.sub(r"\\.", "", operand):
        _refuse(where, operand, "consecutive wildcard characters are not allowed")
    if re.search(r"\\(?![*\\])", re.sub(r"\\[*\\]", "", operand)):
        _refuse(where, operand, "a backslash escapes * or another backslash only")


def _check_anything_but(operand: Any, where: str) -> None:
    if isinstance(operand, dict):
        if len(operand) != 1 or next(iter(operand)) not in ("prefix", "suffix", "equals-ignore-case", "wildcard"):
            _refuse(where, operand, "anything-but takes prefix, suffix, equals-ignore-case or wildcard")
        ((operator, values),) = operand.items()
        values = values if isinstance(values, list) else [values]
        if not values:
            _refuse(where, operand, "an empty array is not allowed")
        for value in values:
            _check_matcher({operator: value}, where)
        return
    values = operand if isinstance(operand, list) else [operand]
    kinds = {"string" if isinstance(v, str) else "number" if _is_number(v) else "other" for v in values}
    if not values or len(kinds) != 1 or "other" in kinds:
        _refuse(where, operand, "anything-but takes strings only or numbers only")


def _refuse(where: str, value: object, rule: str) -> NoReturn:
    raise InvalidPattern(f"Event pattern is not valid. Reason: {where}: {json.dumps(value)}: {rule}")


def _matches_object(pattern: Mapping[str, Any], nodes: Sequence[Any]) -> bool:
    """Match one pattern object against candidate objects; all its keys must match within one of them."""
    return any(all(_matches_key(key, value, node) for key, value in pattern.items()) for node in nodes)


def _matches_key(key: str, value: Any, node: Mapping[str, Any]) -> bool:
    if key == "$or" and isinstance(value, list):
        return any(_matches_object(branch, [node]) for branch in value)
    candidates = _flatten(node[key]) if key in node else []
    if isinstance(value, dict):
        objects = [candidate for candidate in candidates if isinstance(candidate, dict)]
        # Absent parents still satisfy a pattern that asks for absence: match it against an empty object.
        return _matches_object(value, objects or [{}])
    leaves = [candidate for candidate in candidates if not isinstance(candidate, dict)]
    return any(_matches_leaf(matcher, leaves) for matcher in value)


def _flatten(value: Any) -> list[Any]:
    if not isinstance(value, list):
        return [value]
    return [item for element in value for item in _flatten(element)]


def _matches_leaf(matcher: Any, leaves: Sequence[Any]) -> bool:
    if isinstance(matcher, dict) and "exists" in matcher:
        return bool(leaves) is matcher["exists"]
    return any(_matches_value(matcher, leaf) for leaf in leaves)


def _matches_value(matcher: Any, value: Any) -> bool:
    if not isinstance(matcher, dict):
        return _equal(matcher, value)
    ((operator, operand),) = matcher.items()
    if operator == "numeric":
        pairs = zip(operand[::2], operand[1::2], strict=True)
        return _is_number(value) and all(_COMPARISONS[comparison](value, bound) for comparison, bound in pairs)
    if operator == "anything-but":
        return _is_none_of(operand, value)
    return isinstance(value, str) and _matches_text(operator, operand, value)


def _is_none_of(operand: Any, value: Any) -> bool:
    if isinstance(operand, dict):
        ((operator, values),) = operand.items()
        values = values if isinstance(values, list) else [values]
        return not (isinstance(value, str) and any(_matches_text(operator, excluded, value) for excluded in values))
    return not any(_equal(excluded, value) for excluded in (operand if isinstance(operand, list) else [operand]))


def _matches_text(operator: str, operand: Any, value: str) -> bool:
    if operator == "equals-ignore-case":
        return value.casefold() == str(operand).casefold()
    if operator == "wildcard":
        return re.fullmatch(_wildcard_expression(operand), value, re.DOTALL) is not None
    if operator == "cidr":
        return _in_block(operand, value)
    wanted, ignores_case = _folded(operand)
    if ignores_case:
        value, wanted = value.casefold(), wanted.casefold()
    return value.startswith(wanted) if operator == "prefix" else value.endswith(wanted)


def _folded(operand: Any) -> tuple[Any, bool]:
    if isinstance(operand, dict) and list(operand) == ["equals-ignore-case"]:
        return operand["equals-ignore-case"], True
    return operand, False


def _wildcard_expression(wildcard: str) -> str:
    pieces = re.findall(r"\\[*\\]|\*|[^*\\]+", wildcard)
    return "".join(".*" if piece == "*" else re.escape(re.sub(r"^\\(.)$", r"\1", piece)) for piece in pieces)


def _in_block(block: str, value: str) -> bool:
    try:
        return ipaddress.ip_address(value) in ipaddress.ip_network(block, strict=False)
    except ValueError:
        return False


def _equal(wanted: Any, value: Any) -> bool:
    if _is_number(wanted) and _is_number(value):
        return json.dumps(wanted) == json.dumps(value)
    return bool(type(wanted) is type(value) and wanted == value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
