"""Strictly decodes JSON into typed dataclasses, and reports all problems at once. Standard library only.

Decoding returns a value or raises DocumentError for any text. Nesting and integers are bounded, and numbers are finite.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from bootstrap.errors import DocumentError, Problem

_MAX_INTEGER = 2**63 - 1

SCHEMA_VERSION = 2
"""Version of both documents. Version 1 used other names for keys of `training`."""

MAX_DEPTH = 64
"""Maximum depth of nested lists and objects in a document. Deeper nesting would exceed the parser's recursion limit."""

T = TypeVar("T")


@dataclass(frozen=True)
class Matches:
    """The string must match `pattern`. `rule` describes the pattern."""

    pattern: str
    rule: str


@dataclass(frozen=True)
class AtLeast:
    """The number must be at least `minimum`."""

    minimum: float


@dataclass(frozen=True)
class Between:
    """The number must be at least `minimum` and at most `maximum`."""

    minimum: float
    maximum: float


def canonical_digest(value: object) -> str:
    """Return the SHA-256 of `value` as canonical JSON (sorted keys, no spaces, ASCII)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def to_plain(value: Any) -> Any:
    """Return dataclasses as JSON values, without fields that have their default values."""
    if dataclasses.is_dataclass(value):
        # Because defaults are omitted, a new optional field does not change the digest of documents that do not use it.
        items = ((each, getattr(value, each.name)) for each in dataclasses.fields(value))
        return {each.name: to_plain(item) for each, item in items if item != each.default}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def checked(value: T | None, problems: list[Problem], document: str) -> T:
    """Return the decoded document, or raise DocumentError if there are problems."""
    if problems or value is None:
        raise DocumentError(document, problems)
    return value


def parse_text(text: str, document: str) -> object:
    """Parse JSON text. Raises DocumentError if it is not JSON, is nested too deeply, or has a duplicate key."""
    duplicates: list[Problem] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, item in items:
            if key in seen:
                duplicates.append(Problem(key, "duplicate key", "a key must occur once", "remove one of the two"))
            seen[key] = item
        return seen

    try:
        value: object = json.loads(text, object_pairs_hook=pairs)
    except ValueError as error:
        problem = Problem("document", f"{text[:40]!r}...", f"must be JSON ({error})", "deploy again")
        raise DocumentError(document, [problem]) from error
    except RecursionError:
        raise DocumentError(document, [_TOO_DEEP]) from None
    if _is_deeper(value, MAX_DEPTH):
        raise DocumentError(document, [_TOO_DEEP])
    if duplicates:
        raise DocumentError(document, duplicates)
    return value


def decode_record(cls: type[T], content: bytes, source: str) -> T:
    """Decode an object that another process wrote. Unknown keys, which newer versions may add, are ignored.

    Raises:
        DocumentError: The object is not JSON of this type.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        problem = Problem("document", repr(content[:20]), f"must be UTF-8 text ({error.reason})", "remove the object")
        raise DocumentError(source, [problem]) from error
    problems: list[Problem] = []
    decoded = _decode_dataclass(cls, parse_text(text, source), "", problems, skips_unknown=True)
    return checked(typing.cast("T | None", decoded), problems, source)


def decode_document(cls: type[T], value: object, document: str) -> tuple[T | None, list[Problem]]:
    """Decode parsed JSON into a dataclass. Return it with an empty list, or None with all problems.

    Raises:
        DocumentError: The document has a different schema version.
    """
    if isinstance(value, Mapping):
        version = value.get("schema_version")
        if isinstance(version, int) and not isinstance(version, bool) and version != SCHEMA_VERSION:
            # Report only this problem, because the other version's keys would only add a list of unknown keys.
            problem = Problem(
                "schema_version",
                str(version),
                f"is not supported by this node program, which reads version {SCHEMA_VERSION}",
                "deploy again, so that the node bundle and the documents have the same Trainstack version",
            )
            raise DocumentError(document, [problem])
    problems: list[Problem] = []
    decoded = _decode_dataclass(cls, value, "", problems, skips_unknown=False)
    return (None if problems else typing.cast("T", decoded)), problems


_TOO_DEEP = Problem("document", "JSON", f"must have at most {MAX_DEPTH} nested lists and objects", "correct the text")


def _is_deeper(value: object, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        containers = [each for each in level if isinstance(each, (dict, list))]
        if not containers:
            return False
        level = [item for each in containers for item in (each.values() if isinstance(each, dict) else each)]
    return True


def _decode_dataclass(
    cls: type[Any], value: object, path: str, problems: list[Problem], *, skips_unknown: bool
) -> object:
    if not isinstance(value, Mapping):
        problems.append(_wrong_type(path or "document", value, "an object"))
        return None
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = {each.name: each for each in dataclasses.fields(cls)}
    for key in value:
        if key not in fields and not skips_unknown:
            unset = ", ".join(sorted(set(fields) - set(value))) or "none"
            remedy = f"remove it, or correct its name (keys not set: {unset})"
            problems.append(Problem(_join(path, str(key)), _shown(value[key]), "is not a known key", remedy))
    arguments: dict[str, Any] = {}
    for name, field in fields.items():
        if name in value:
            arguments[name] = _decode(
                hints[name], value[name], _join(path, name), problems, skips_unknown=skips_unknown
            )
        elif field.default is dataclasses.MISSING:
            problems.append(Problem(_join(path, name), "missing", "is required", "add it"))
        else:
            arguments[name] = field.default
    return cls(**arguments) if len(arguments) == len(fields) else None


def _decode(hint: Any, value: object, path: str, problems: list[Problem], *, skips_unknown: bool) -> object:
    rule: object = None
    if typing.get_origin(hint) is Annotated:
        hint, rule = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):  # X | None
        if value is None:
            return None
        return _decode(typing.get_args(hint)[0], value, path, problems, skips_unknown=skips_unknown)
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(typing.cast("type[Any]", hint), value, path, problems, skips_unknown=skips_unknown)
    if origin is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            problems.append(Problem(path, _shown(value), "must be one of " + ", ".join(choices), "choose one of them"))
    elif origin is tuple:
        if isinstance(value, (list, tuple)):
            element = typing.get_args(hint)[0]
            return tuple(
                _decode(element, item, f"{path}[{index}]", problems, skips_unknown=skips_unknown)
                for index, item in enumerate(value)
            )
        problems.append(_wrong_type(path, value, "a list"))
    elif hint is str:
        _check_string(value, path, rule, problems)
    elif hint is bool:
        if not isinstance(value, bool):
            problems.append(_wrong_type(path, value, "true or false"))
    elif hint in (int, float):
        _check_number(value, path, rule, problems, integer=hint is int)
    elif not isinstance(value, Mapping):
        problems.append(_wrong_type(path, value, "an object"))
    return value


def _check_string(value: object, path: str, rule: object, problems: list[Problem]) -> None:
    if not isinstance(value, str):
        problems.append(_wrong_type(path, value, "a string"))
    elif isinstance(rule, Matches):
        if re.fullmatch(rule.pattern, value, re.ASCII) is None:
            problems.append(Problem(path, _shown(value), rule.rule, "correct the value"))
    elif not value:
        problems.append(Problem(path, _shown(value), "must not be empty", "set a value"))


def _check_number(value: object, path: str, rule: object, problems: list[Problem], *, integer: bool) -> None:
    if isinstance(value, bool) or not isinstance(value, int if integer else (int, float)):
        problems.append(_wrong_type(path, value, "an integer" if integer else "a number"))
    elif isinstance(value, int) and abs(value) > _MAX_INTEGER:
        # math.isfinite converts to float, and raises OverflowError for larger integers.
        problems.append(Problem(path, _shown(value), f"must be at most {_MAX_INTEGER}", "lower it"))
    elif not math.isfinite(value):
        problems.append(Problem(path, _shown(value), "must be finite", "set a finite number"))
    elif isinstance(rule, AtLeast) and value < rule.minimum:
        problems.append(Problem(path, _shown(value), f"must be at least {rule.minimum:g}", "raise it"))
    elif isinstance(rule, Between) and not rule.minimum <= value <= rule.maximum:
        rule_text = f"must be from {rule.minimum:g} to {rule.maximum:g}"
        problems.append(Problem(path, _shown(value), rule_text, "correct the value"))


def _wrong_type(path: str, value: object, expected: str) -> Problem:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    found = names.get(type(value), "a number")
    return Problem(path, _shown(value), f"must be {expected}, found {found}", f"write {expected}")


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
