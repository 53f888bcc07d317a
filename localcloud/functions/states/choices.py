"""Evaluates the rules of a Choice state. Source (2026-11): https://states-language.net/spec.html#choice-state"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from localcloud.functions.states.paths import PathNotFound, follow

_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "LessThanEquals": operator.le,
    "LessThan": operator.lt,
    "GreaterThanEquals": operator.ge,
    "GreaterThan": operator.gt,
    "Equals": operator.eq,
}


def choose(state: Mapping[str, Any], data: Any, context: Mapping[str, Any]) -> str | None:
    """Return the next state, or None if no rule matches and there is no default.

    Raises:
        PathNotFound: The variable of a comparison does not exist.
    """
    for rule in state["Choices"]:
        if _matches(rule, data, context):
            return str(rule["Next"])
    default = state.get("Default")
    return None if default is None else str(default)


def _matches(rule: Mapping[str, Any], data: Any, context: Mapping[str, Any]) -> bool:
    name = next(key for key in rule if key not in ("Variable", "Next", "Comment"))
    wanted = rule[name]
    try:
        value = follow(rule["Variable"], data, context)
    except PathNotFound:
        if name == "IsPresent":
            return wanted is False
        raise
    if name == "IsPresent":
        return wanted is True
    kind = next(each for each in ("Numeric", "Boolean", "String") if name.startswith(each))
    is_boolean = isinstance(value, bool)
    fits = {"Numeric": isinstance(value, (int, float)) and not is_boolean, "Boolean": is_boolean}
    return fits.get(kind, isinstance(value, str)) and _COMPARED[name.removeprefix(kind)](value, wanted)
