"""Reference paths and payload templates of the Amazon States Language.

Paths consist of field names and list indexes. Intrinsic functions and JSONPath expressions are rejected.
Source (2026-11): https://states-language.net/spec.html#paths and #payload-template
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

PATH = re.compile(r"\$\$?(\.[A-Za-z_][\w-]*|\[\d+\])*")
_PART = re.compile(r"\.([A-Za-z_][\w-]*)|\[(\d+)\]")


class PathError(ValueError):
    """A path is not supported by the embedded cloud."""


class PathNotFound(LookupError):
    """A path does not lead to a value."""


def check_path(path: Any) -> None:
    """Raise PathError if a path is not supported."""
    if not isinstance(path, str) or not PATH.fullmatch(path):
        raise PathError(f"path {path!r} is not supported by the embedded cloud: use field names and list indexes")


def check_template(template: Any) -> None:
    """Raise PathError if a payload template contains a path that is not supported, or an intrinsic function."""
    if isinstance(template, Mapping):
        for key, value in template.items():
            if key.endswith(".$"):
                check_path(value)
            else:
                check_template(value)
    elif isinstance(template, list):
        for value in template:
            check_template(value)


def follow(path: str, data: Any, context: Mapping[str, Any]) -> Any:
    """Return the value at a path in `data`, or, if the path begins with `$$`, in the context object.

    Raises:
        PathNotFound: There is no such value.
    """
    place: Any = context if path.startswith("$$") else data
    for name, index in _PART.findall(path):
        try:
            place = place[int(index)] if index else place[name]
        except (KeyError, IndexError, TypeError) as error:
            raise PathNotFound(f"The JSONPath '{path}' could not be found in the input") from error
    return place


def fill(template: Any, data: Any, context: Mapping[str, Any]) -> Any:
    """Return a payload template with its paths replaced by their values.

    Raises:
        PathNotFound: A path does not lead to a value.
    """
    if isinstance(template, Mapping):
        return {
            key.removesuffix(".$"): follow(value, data, context) if key.endswith(".$") else fill(value, data, context)
            for key, value in template.items()
        }
    if isinstance(template, list):
        return [fill(value, data, context) for value in template]
    return template


def place(path: str | None, data: Any, result: Any) -> Any:
    """Return a state's input with its result inserted at ResultPath; None discards the result."""
    if path is None:
        return data
    if path == "$":
        return result
    names = [name for name, _ in _PART.findall(path)]
    copy = dict(data) if isinstance(data, Mapping) else {}
    inner = copy
    for name in names[:-1]:
        inner[name] = dict(inner[name]) if isinstance(inner.get(name), Mapping) else {}
        inner = inner[name]
    inner[names[-1]] = result
    return copy
