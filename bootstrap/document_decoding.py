"""Strict decoding of JSON into typed dataclasses, with every problem named at once; used by `documents`.

Standard library only, for the same reason as there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from bootstrap.errors import DocumentError, Problem

SCHEMA_VERSION = 1

T = TypeVar("T")


@dataclass(frozen=True)
class Matches:
    """A text must match the pattern; `rule` says so in words."""

    pattern: str
    rule: str


@dataclass(frozen=True)
class AtLeast:
    """A number must be no less."""

    minimum: float


def canonical_digest(value: object) -> str:
    """Return the SHA-256 over `value` as canonical JSON (sorted keys, no spaces, ASCII)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def plain(value: Any) -> Any:
    """Return dataclasses as JSON values, without the fields that have their defaults."""
    if dataclasses.is_dataclass(value):
        # What may be left out is, so that a document without it has the digest that it always had.
        items = ((each, getattr(value, each.name)) for each in dataclasses.fields(value))
        return {each.name: plain(item) for each, item in items if item != each.default}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def sound(value: T | None, problems: list[Problem], document: str) -> T:
    """Return what was decoded; raises DocumentError when there are problems."""
    if problems or value is None:
        raise DocumentError(document, problems)
    return value


def parse_text(text: str, document: str) -> object:
    """Return JSON text as values; raises DocumentError when it is none, or a key stands twice."""
    doubled: list[Problem] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, item in items:
            if key in seen:
                doubled.append(Problem(key, "given twice", "a key stands once", "remove one of the two"))
            seen[key] = item
        return seen

    try:
        value: object = json.loads(text, object_pairs_hook=pairs)
    except ValueError as error:
        problem = Problem(
            "document", f"{text[:40]!r}...", f"must be JSON ({error})", "write the document again by a deploy"
        )
        raise DocumentError(document, [problem]) from error
    if doubled:
        raise DocumentError(document, doubled)
    return value


def decode_document(cls: type[T], value: object, document: str) -> tuple[T | None, list[Problem]]:
    """Return parsed JSON as a dataclass, and every problem of it; None where there are some.

    Raises:
        DocumentError: It is of a newer version.
    """
    problems: list[Problem] = []
    if isinstance(value, Mapping):
        version = value.get("schema_version")
        if isinstance(version, int) and not isinstance(version, bool) and version > SCHEMA_VERSION:
            # What else a newer document holds is not ours to judge: one clear answer, not a list of unknown keys.
            problem = Problem(
                "schema_version",
                str(version),
                f"is newer than what this program reads ({SCHEMA_VERSION})",
                "deploy the node bundle of the same Trainstack version as the document",
            )
            raise DocumentError(document, [problem])
    decoded = _decode_dataclass(cls, value, "", problems)
    return (None if problems else typing.cast("T", decoded)), problems


def _decode_dataclass(cls: type[Any], value: object, path: str, problems: list[Problem]) -> object:
    if not isinstance(value, Mapping):
        problems.append(_wrong_type(path or "document", value, "an object"))
        return None
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = {each.name: each for each in dataclasses.fields(cls)}
    for key in value:
        if key not in fields:
            known = ", ".join(sorted(set(fields) - set(value))) or "none is missing"
            remedy = f"remove it, or correct its name (keys not given: {known})"
            problems.append(Problem(_join(path, str(key)), _shown(value[key]), "is not a known key", remedy))
    arguments: dict[str, Any] = {}
    for name, field in fields.items():
        if name in value:
            arguments[name] = _decode(hints[name], value[name], _join(path, name), problems)
        elif field.default is dataclasses.MISSING:
            problems.append(Problem(_join(path, name), "missing", "must be given", "add it"))
        else:
            arguments[name] = field.default
    return cls(**arguments) if len(arguments) == len(fields) else None


def _decode(hint: Any, value: object, path: str, problems: list[Problem]) -> object:
    rule: object = None
    if typing.get_origin(hint) is Annotated:
        hint, rule = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Union:  # Optional[X]
        return None if value is None else _decode(typing.get_args(hint)[0], value, path, problems)
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(typing.cast("type[Any]", hint), value, path, problems)
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            problems.append(Problem(path, _shown(value), "must be one of " + ", ".join(choices), "choose one of them"))
    elif typing.get_origin(hint) is tuple:
        if isinstance(value, (list, tuple)):
            element = typing.get_args(hint)[0]
            return tuple(_decode(element, item, f"{path}[{index}]", problems) for index, item in enumerate(value))
        problems.append(_wrong_type(path, value, "a list"))
    elif hint is str:
        _check_text(value, path, rule, problems)
    elif hint is bool:
        if not isinstance(value, bool):
            problems.append(_wrong_type(path, value, "true or false"))
    elif hint in (int, float):
        _check_number(value, path, rule, problems, whole=hint is int)
    elif not isinstance(value, Mapping):
        problems.append(_wrong_type(path, value, "an object"))
    return value


def _check_text(value: object, path: str, rule: object, problems: list[Problem]) -> None:
    if not isinstance(value, str):
        problems.append(_wrong_type(path, value, "a text"))
    elif isinstance(rule, Matches) and re.fullmatch(rule.pattern, value, re.ASCII) is None:
        problems.append(Problem(path, _shown(value), rule.rule, "correct the value"))
    elif not value:
        problems.append(Problem(path, _shown(value), "must be a text that is not empty", "give a value"))


def _check_number(value: object, path: str, rule: object, problems: list[Problem], *, whole: bool) -> None:
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        problems.append(_wrong_type(path, value, "a whole number" if whole else "a number"))
    elif not math.isfinite(value):
        problems.append(Problem(path, _shown(value), "must be finite", "give a number"))
    elif isinstance(rule, AtLeast) and value < rule.minimum:
        problems.append(Problem(path, _shown(value), f"must be at least {rule.minimum:g}", "raise it"))


def _wrong_type(path: str, value: object, wanted: str) -> Problem:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    found = names.get(type(value), "a number")
    return Problem(path, _shown(value), f"must be {wanted}, and is {found}", f"write {wanted}")


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
