"""Parses CloudWatch Logs filter patterns, and matches log events against them.

JSON patterns and patterns of terms are supported; space-delimited patterns and regular expressions are rejected.
Source: https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/FilterAndPatternSyntax.html (2026-11).
"""

from __future__ import annotations

import fnmatch
import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

TOKEN = re.compile(
    r"""\s*(?:(?P<selector>\$(?:\.[\w*-]+|\[(?:\d+|\*)\])+)|(?P<string>"(?:[^"\\]|\\.)*")"""
    r"""|(?P<operator>&&|\|\||!=|<=|>=|[=<>(){}])|(?P<word>[^\s(){}=<>!&|"]+))"""
)
STEP = re.compile(r"\.([\w*-]+)|\[(\d+|\*)\]")
TERM = re.compile(r'\s*([?-]?)(?:"((?:[^"\\]|\\.)*)"|(\w+))(?=\s|$)')
COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
KEYWORDS: Mapping[str, Callable[[list[Any]], bool]] = {
    "IS TRUE": lambda found: any(value is True for value in found),
    "IS FALSE": lambda found: any(value is False for value in found),
    "IS NULL": lambda found: any(value is None for value in found),
    "NOT EXISTS": lambda found: not found,
}

Event = tuple[str, Any]
"""A log event's message, and its JSON object or None."""
Test = Callable[[Event], bool]


class InvalidPattern(ValueError):
    """The pattern is malformed or not supported. The message contains the rule."""


def parse_pattern(text: str) -> Test:
    """Return a function that returns True for matching events.

    Raises:
        InvalidPattern: The pattern is malformed or not supported.
    """
    stripped = text.strip()
    if stripped.startswith("{"):
        return _JsonParser(stripped).parse()
    if stripped.startswith("[") or "%" in stripped:
        raise InvalidPattern("space-delimited patterns and regular expressions are not supported by the embedded cloud")
    return _terms(stripped)


def event_of(message: str) -> Event:
    """Return an event to match."""
    try:
        found = json.loads(message) if message.lstrip().startswith("{") else None
    except ValueError:
        found = None
    return message, found


def select(selector: str, found: Any) -> list[Any]:
    """Return the values at a property selector, such as $.a.b[0], in a JSON object."""
    values = [found]
    for match in STEP.finditer(selector):
        name, index = match.groups()
        if index is not None:
            lists = [value for value in values if isinstance(value, list)]
            values = [item for each in lists for item in (each if index == "*" else each[int(index) : int(index) + 1])]
        else:
            objects = [value for value in values if isinstance(value, dict)]
            values = [item for each in objects for key, item in each.items() if name in (key, "*")]
    return values


def is_selector(text: str) -> bool:
    """Return True if the text is a property selector."""
    match = TOKEN.fullmatch(text)
    return match is not None and match.lastgroup == "selector"


def _terms(text: str) -> Test:
    """Parse terms. An event must contain all plain terms, no term with "-", and at least one of those with "?"."""
    groups: dict[str, list[str]] = {"": [], "-": [], "?": []}
    position = 0
    while position < len(text):
        match = TERM.match(text, position)
        if match is None:
            raise InvalidPattern(f"invalid character(s) in term {text[position:].split()[0]!r}; quote the term")
        sign, quoted, word = match.groups()
        groups[sign].append(word or re.sub(r"\\(.)", r"\1", quoted or ""))
        position = match.end()
    required, excluded, alternatives = groups[""], groups["-"], groups["?"]

    def test(event: Event) -> bool:
        message = event[0]
        if any(term in message for term in excluded) or not all(term in message for term in required):
            return False
        return not alternatives or any(term in message for term in alternatives)

    return test


class _JsonParser:
    """A recursive-descent parser of `{ condition }`; && binds more tightly than ||."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        position = 0
        while position < len(text.rstrip()):
            match = TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                raise InvalidPattern(f"unexpected {text[position:]!r}")
            self._tokens.append((match.lastgroup, match.group(match.lastgroup)))
            position = match.end()
        self._next = 0

    def parse(self) -> Test:
        self._expect("{")
        test = self._any()
        self._expect("}")
        if self._next < len(self._tokens):
            raise InvalidPattern(f"unexpected {self._tokens[self._next][1]!r} after the closing brace")
        return lambda event: isinstance(event[1], dict) and test(event)

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._next] if self._next < len(self._tokens) else ("end", "the end of the pattern")

    def _take(self) -> tuple[str, str]:
        token = self._peek()
        self._next += 1
        return token

    def _expect(self, wanted: str) -> None:
        found = self._take()[1]
        if found != wanted:
            raise InvalidPattern(f"expected {wanted!r}, but found {found!r}")

    def _any(self) -> Test:
        tests = [self._all()]
        while self._peek() == ("operator", "||"):
            self._take()
            tests.append(self._all())
        return lambda event: any(test(event) for test in tests)

    def _all(self) -> Test:
        tests = [self._one()]
        while self._peek() == ("operator", "&&"):
            self._take()
            tests.append(self._one())
        return lambda event: all(test(event) for test in tests)

    def _one(self) -> Test:
        kind, text = self._take()
        if (kind, text) == ("operator", "("):
            test = self._any()
            self._expect(")")
            return test
        if kind != "selector":
            raise InvalidPattern(f"expected a property selector that begins with $, but found {text!r}")
        sign = self._take()[1]
        if sign in ("IS", "NOT"):
            keyword = f"{sign} {self._take()[1]}"
            if keyword not in KEYWORDS:
                raise InvalidPattern(f"unknown operator {keyword!r}")
            return lambda event: KEYWORDS[keyword](select(text, event[1]))
        if sign not in COMPARISONS:
            raise InvalidPattern(f"expected an operator after {text}, but found {sign!r}")
        kind, value = self._take()
        if kind not in ("string", "word"):
            raise InvalidPattern(f"expected a value after {sign!r}, but found {value!r}")
        fits = _comparison(sign, kind, value)
        return lambda event: any(fits(found) for found in select(text, event[1]))


def _comparison(sign: str, kind: str, value: str) -> Callable[[Any], bool]:
    """Return the test for one value. Objects, arrays, Boolean values and null never match."""
    number = _number(value) if kind == "word" else None
    if number is not None:
        compare = COMPARISONS[sign]
        return lambda found: _is_number(found) and compare(found, number)
    if sign not in ("=", "!="):
        raise InvalidPattern(f"{sign} requires a number, but found {value}")
    text = json.loads(value) if kind == "string" else value
    expression = re.compile(fnmatch.translate(re.sub(r"([?\[])", r"[\1]", text)))

    def fits(found: Any) -> bool:
        if not isinstance(found, str) and not _is_number(found):
            return False
        equal = expression.match(found if isinstance(found, str) else json.dumps(found)) is not None
        return equal == (sign == "=")

    return fits


def _number(text: str) -> float | None:
    try:
        return float(text) if re.match(r"[+-]?[\d.]", text) else None
    except ValueError:
        return None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
