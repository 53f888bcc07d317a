"""The grammar of `when`: one metric, one operator and one number."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

OPERATORS = {
    "<": "NumericLessThan",
    "<=": "NumericLessThanEquals",
    ">": "NumericGreaterThan",
    ">=": "NumericGreaterThanEquals",
}
"""Comparisons of a Choice state. Source (2026-11): https://states-language.net/spec.html#choice-state"""
_CONDITION = re.compile(r"\s*([a-z][a-z0-9_]{0,39})\s*(<=|>=|<|>)\s*([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)\s*")


class ConditionError(ValueError):
    """A condition does not match the grammar. The message is a rule."""


@dataclass(frozen=True)
class Condition:
    """A comparison of a metric with a number."""

    metric: str
    operator: str
    number: float

    @property
    def comparison(self) -> str:
        """Name of the comparison in a Choice state."""
        return OPERATORS[self.operator]


def parse_condition(text: str) -> Condition:
    """Parse a condition such as `bits_per_byte < 1.2`.

    Raises:
        ConditionError: The text does not match the grammar.
    """
    found = _CONDITION.fullmatch(text)
    rule = f"must be one metric, one of {' '.join(OPERATORS)}, and one number, such as bits_per_byte < 1.2"
    if found is None:
        raise ConditionError(rule)
    try:
        number = float(found[3])
    except ValueError as error:
        raise ConditionError(rule) from error
    if not math.isfinite(number):
        raise ConditionError("must compare with a finite number")
    return Condition(found[1], found[2], number)
