"""Evaluates the condition operators in IAM policies.

Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition_operators.html (2026-11).
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

VARIABLE = re.compile(r"\$\{([^}]+)\}")


def wildcard_match(pattern: str, value: str) -> bool:
    """Return True if `value` matches an IAM pattern, where only * and ? are special."""
    return re.fullmatch(fnmatch.translate(pattern.replace("[", "[[]")), value) is not None


def arn_match(pattern: str, value: str) -> bool:
    """Return True if an ARN matches a pattern part by part. In the first five parts, * does not match a colon."""
    pattern_parts, value_parts = pattern.split(":", 5), value.split(":", 5)
    if pattern == "*":
        return True
    return len(pattern_parts) == len(value_parts) and all(
        wildcard_match(p, v) for p, v in zip(pattern_parts, value_parts, strict=False)
    )


def substitute(text: str, context: Mapping[str, Sequence[str]]) -> str:
    """Replace policy variables with the request's values. Text with an unknown variable does not match anything."""

    def value(match: re.Match[str]) -> str:
        key, _, default = match.group(1).partition(",")
        if key in ("*", "?", "$"):
            return key
        found = context.get(key.strip().lower())
        if found:
            return found[0]
        return default.strip().strip("'") if default else "\0unknown"

    return VARIABLE.sub(value, text)


def _timestamp(text: str) -> float:
    if text.replace(".", "", 1).isdigit():
        return float(text)
    parsed = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def _ip(pattern: str, value: str) -> bool:
    return ipaddress.ip_address(value) in ipaddress.ip_network(pattern, strict=False)


Test = Callable[[str, str], bool]
"""Compares a policy value with a request value and returns True if they match."""

POSITIVE: dict[str, Test] = {
    "StringEquals": lambda p, v: p == v,
    "StringEqualsIgnoreCase": lambda p, v: p.lower() == v.lower(),
    "StringLike": wildcard_match,
    "NumericEquals": lambda p, v: float(p) == float(v),
    "NumericLessThan": lambda p, v: float(v) < float(p),
    "NumericLessThanEquals": lambda p, v: float(v) <= float(p),
    "NumericGreaterThan": lambda p, v: float(v) > float(p),
    "NumericGreaterThanEquals": lambda p, v: float(v) >= float(p),
    "DateEquals": lambda p, v: _timestamp(p) == _timestamp(v),
    "DateLessThan": lambda p, v: _timestamp(v) < _timestamp(p),
    "DateLessThanEquals": lambda p, v: _timestamp(v) <= _timestamp(p),
    "DateGreaterThan": lambda p, v: _timestamp(v) > _timestamp(p),
    "DateGreaterThanEquals": lambda p, v: _timestamp(v) >= _timestamp(p),
    "Bool": lambda p, v: p.lower() == v.lower(),
    "BinaryEquals": lambda p, v: p == v,
    "IpAddress": _ip,
    "ArnEquals": arn_match,
    "ArnLike": arn_match,
}
NEGATIVE = {
    "StringNotEquals": "StringEquals",
    "StringNotEqualsIgnoreCase": "StringEqualsIgnoreCase",
    "StringNotLike": "StringLike",
    "NumericNotEquals": "NumericEquals",
    "DateNotEquals": "DateEquals",
    "NotIpAddress": "IpAddress",
    "ArnNotEquals": "ArnEquals",
    "ArnNotLike": "ArnLike",
}


class UnknownOperator(ValueError):
    """A policy uses an unknown condition operator."""


def as_list(value: Any) -> list[str]:
    """Return a policy element as a list of strings, with booleans in lower case."""
    values = value if isinstance(value, list) else [value]
    return [str(v).lower() if isinstance(v, bool) else str(v) for v in values]


def conditions_hold(conditions: Mapping[str, Mapping[str, Any]], context: Mapping[str, Sequence[str]]) -> bool:
    """Return True if the request context (lower-case keys) satisfies every operator and key in a Condition."""
    return all(
        _operator_holds(operator, key.lower(), as_list(expected), context)
        for operator, keys in conditions.items()
        for key, expected in keys.items()
    )


def _operator_holds(operator: str, key: str, expected: list[str], context: Mapping[str, Sequence[str]]) -> bool:
    quantifier, _, name = operator.rpartition(":")
    if_exists = name.endswith("IfExists")
    name = name.removesuffix("IfExists")
    present = context.get(key)
    if name == "Null":
        return (expected[0].lower() == "true") == (not present)
    negated = name in NEGATIVE
    positive = NEGATIVE.get(name, name)
    if positive not in POSITIVE:
        raise UnknownOperator(f"{operator}: unknown condition operator")
    if not present:
        return if_exists or quantifier == "ForAllValues" or (negated and not quantifier)
    test = POSITIVE[positive]
    wanted = [substitute(text, context) for text in expected]

    def matches(value: str) -> bool:
        found = any(test(pattern, value) for pattern in wanted)
        return not found if negated else found

    return any(map(matches, present)) if quantifier == "ForAnyValue" else all(map(matches, present))
