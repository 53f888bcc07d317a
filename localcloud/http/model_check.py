"""Compares requests and responses with botocore's models: required members, types, enums, patterns and lengths."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from botocore.model import Shape

PARSED_PATTERNS = 2048
TYPES: Mapping[str, tuple[type, ...]] = {
    "structure": (Mapping,), "list": (list, tuple), "map": (Mapping,), "string": (str,), "character": (str,),
    "boolean": (bool,), "integer": (int,), "long": (int,), "float": (float, int), "double": (float, int),
}  # fmt: skip
SHOWN_CHARACTERS = 80


def violations(shape: Shape | None, value: Any) -> list[str]:
    """Return the differences between a value and its shape, each with the member's path, the value and the rule."""
    return [] if shape is None else list(_check(shape, value, shape.name))


def _check(shape: Any, value: Any, path: str) -> Iterator[str]:
    kind = shape.type_name
    if kind in ("timestamp", "blob"):
        if kind == "timestamp" and not isinstance(value, (datetime, int, float, str)):
            yield _broken(path, value, "is not a timestamp")
        return
    is_typed = isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))
    if not is_typed:
        yield _broken(path, value, f"is not of type {kind}")
        return
    yield from _check_limits(shape, value, path)
    if kind == "structure":
        for name in shape.required_members:
            if value.get(name) is None:
                yield _broken(path, sorted(value), f"does not have the required member {name}")
        for name, member in shape.members.items():
            if value.get(name) is not None:
                yield from _check(member, value[name], f"{path}.{name}")
    elif kind == "list":
        for number, item in enumerate(value):
            yield from _check(shape.member, item, f"{path}[{number}]")
    elif kind == "map":
        for name, item in value.items():
            yield from _check(shape.key, name, f"{path} (key)")
            yield from _check(shape.value, item, f"{path}.{name}")


def _check_limits(shape: Any, value: Any, path: str) -> Iterator[str]:
    limits, kind = shape.metadata, shape.type_name
    size = value if kind in ("integer", "long", "float", "double") else len(value) if hasattr(value, "__len__") else 0
    if kind not in ("boolean", "structure"):
        if size < limits.get("min", size):
            yield _broken(path, value, f"is below the minimum {limits['min']}")
        if size > limits.get("max", size):
            yield _broken(path, value, f"is above the maximum {limits['max']}")
    if kind == "string":
        if limits.get("enum") and value not in limits["enum"]:
            yield _broken(path, value, f"is not one of {', '.join(limits['enum'][:8])}")
        pattern = limits.get("pattern")
        expression = _compiled(pattern) if pattern else None
        if expression is not None and not expression.search(value):
            yield _broken(path, value, f"does not match {pattern}")


@lru_cache(maxsize=PARSED_PATTERNS)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    r"""Return the compiled pattern, which must match the complete value, or None if Python cannot compile it (\p)."""
    try:
        return re.compile(rf"\A(?:{pattern})\Z", re.DOTALL)
    except re.error:
        return None


def _broken(path: str, value: Any, rule: str) -> str:
    return f"{path}: {str(value)[:SHOWN_CHARACTERS]!r} {rule}"
