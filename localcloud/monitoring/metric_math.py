"""Evaluates metric math expressions over the periods of an alarm.

Arithmetic, comparisons, AND, OR, IF and FILL are supported; other functions are rejected.
Source: https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/using-metric-math.html (2026-11).
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from localcloud.monitoring.metric_data import Points

Value = float | Points
BINARY: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
WORDS = ((r"\bAND\b|&&", " and "), (r"\bOR\b|\|\|", " or "), (r"\^", "**"))


class InvalidExpression(ValueError):
    """The expression is malformed or not supported. The message contains the expression and the rule."""


class Expression:
    """A parsed expression.

    Raises:
        InvalidExpression: The expression is malformed or not supported, or refers to a metric that is not in `names`.
    """

    def __init__(self, text: str, names: set[str]) -> None:
        self._text = text
        for pattern, replacement in WORDS:
            text = re.sub(pattern, replacement, text)
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except SyntaxError as error:
            raise InvalidExpression(f"Error in expression: {self._text}: {error.msg}") from error
        # A trial evaluation of one period detects everything that is not supported.
        self.values({name: {0: 1.0} for name in names}, 1)

    def values(self, metrics: Mapping[str, Points], periods: int) -> Points:
        """Return the expression's value for each period that has one."""
        found = self._value(self._tree, metrics, periods)
        return found if isinstance(found, dict) else dict.fromkeys(range(periods), found)

    def _value(self, node: ast.AST, metrics: Mapping[str, Points], periods: int) -> Value:
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return float(node.value)
        if isinstance(node, ast.Name) and node.id in metrics:
            return metrics[node.id]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return _each(operator.mul, -1.0, self._value(node.operand, metrics, periods))
        if isinstance(node, ast.BinOp) and type(node.op) in BINARY:
            left, right = (self._value(one, metrics, periods) for one in (node.left, node.right))
            return _each(BINARY[type(node.op)], left, right)
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in BINARY:
            left, right = (self._value(one, metrics, periods) for one in (node.left, node.comparators[0]))
            return _each(BINARY[type(node.ops[0])], left, right)
        if isinstance(node, ast.BoolOp):
            combine = all if isinstance(node.op, ast.And) else any
            return _each(lambda *each: combine(each), *(self._value(one, metrics, periods) for one in node.values))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self._call(node.func.id, node.args, metrics, periods)
        raise self._refusal(node)

    def _call(self, name: str, arguments: list[ast.expr], metrics: Mapping[str, Points], periods: int) -> Value:
        if name == "IF" and len(arguments) == 3:
            chosen = (self._value(one, metrics, periods) for one in arguments)
            return _each(lambda condition, yes, no: yes if condition else no, *chosen)
        if name == "FILL" and len(arguments) == 2:
            found = self._value(arguments[0], metrics, periods)
            repeated = isinstance(arguments[1], ast.Name) and arguments[1].id == "REPEAT"
            value = None if repeated else self._value(arguments[1], metrics, periods)
            if isinstance(found, dict) and not isinstance(value, dict):
                return _fill(found, value, periods)
        raise InvalidExpression(f"Error in expression: {self._text}: {name} with these arguments is not emulated")

    def _refusal(self, node: ast.AST) -> InvalidExpression:
        part = ast.unparse(node)
        return InvalidExpression(f"Error in expression: {self._text}: {part} is unknown, or not emulated")


def _each(combine: Callable[..., Any], *values: Value) -> Value:
    """Combine the values of each period; a period missing from any series is missing from the result."""
    series = [value for value in values if isinstance(value, dict)]
    if not series:
        return float(combine(*values))
    periods = set.intersection(*(set(one) for one in series))
    return {
        period: float(combine(*(value[period] if isinstance(value, dict) else value for value in values)))
        for period in periods
    }


def _fill(found: Points, value: float | None, periods: int) -> Points:
    """Fill the missing periods with a value, or with the last value before them."""
    filled: Points = {}
    last: float | None = None
    for period in reversed(range(periods)):
        last = found.get(period, last)
        chosen = found.get(period, last if value is None else value)
        if chosen is not None:
            filled[period] = chosen
    return filled
