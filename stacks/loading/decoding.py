"""Decodes a deployment's mapping. Returns all key and type errors, and the deployment without the invalid keys.

Valid keys are still checked against each other. A rule that reads an invalid key stops at that key, because reading it
raises `UndecodedKey`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any

from pydantic import BaseModel, ValidationError

from stacks.config import DeploymentConfig
from stacks.config.capacity import CapacityConfig
from stacks.config.run import RunConfig
from stacks.config.setting import Section
from stacks.errors import Problem
from training.config import new_name

KeyPath = tuple[str, ...]


class _PartialDeployment(DeploymentConfig):
    """A deployment whose required keys may be missing. Placeholders for missing keys are removed after decoding."""

    name: str = ""
    capacity: CapacityConfig = CapacityConfig()
    training: RunConfig = RunConfig.model_construct()


def decode(data: Mapping[str, Any]) -> tuple[DeploymentConfig, list[Problem]]:
    """Return the deployment that a mapping describes, without invalid keys, and one problem for each invalid key."""
    try:
        return DeploymentConfig.model_validate(data), []
    except ValidationError as error:
        errors = error.errors(include_url=False)
    problems = [_problem(item, data) for item in errors]
    # For a key with several types, pydantic returns an error for each type. Keep those for the innermost value.
    innermost = [one for one in problems if not any(other.path.startswith(f"{one.path}.") for other in problems)]
    return _partial(copy.deepcopy(dict(data)), errors), innermost


def _partial(data: dict[str, Any], errors: Iterable[Any]) -> DeploymentConfig:
    undecoded: set[KeyPath] = set()
    while True:
        for item in errors:
            path = _given_path(data, item["loc"])
            if item["type"] != "extra_forbidden":
                undecoded.add(path or tuple(map(str, item["loc"][:1])))
            if path:
                _remove(data, path)
        try:
            config = _PartialDeployment.model_validate(data)
        except ValidationError as error:  # sections whose required keys were removed
            errors = error.errors(include_url=False)
        else:
            break
    for path in sorted(undecoded, key=len):
        _undecode(config, path)
    return config


def _given_path(data: Any, location: Iterable[Any]) -> KeyPath:
    """Return the part of an error's location that is a path to a key in the given mappings."""
    path = []
    for part in location:
        if not isinstance(data, dict) or part not in data:
            break
        path.append(part)
        data = data[part]
    return tuple(path)


def _remove(data: dict[str, Any], path: KeyPath) -> None:
    for part in path[:-1]:
        data = data[part]
    del data[path[-1]]


def _undecode(owner: Any, path: KeyPath) -> None:
    """Remove a key, or the innermost section class that contains it. Reading it then raises `UndecodedKey`."""
    for depth, part in enumerate(path):
        inner = owner.__dict__.get(part)
        if inner is None or depth == len(path) - 1 or not isinstance(inner, Section):
            owner.__dict__.pop(part, None)
            return
        owner = inner


def _path(location: tuple[Any, ...], data: Any) -> str:
    """Return an error's path in the file: its location without the names of types that pydantic inserts for unions."""
    parts = []
    for index, part in enumerate(location):
        if isinstance(data, Mapping) and (part in data or index == len(location) - 1):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int):
            data = data[part]
        else:
            continue
        parts.append(str(part))
    return ".".join(parts)


def _problem(item: Any, data: Mapping[str, Any]) -> Problem:
    path = _path(item["loc"], data)
    if item["type"] == "extra_forbidden":
        key, known = item["loc"][-1], _keys_at(DeploymentConfig, item["loc"][:-1])
        renamed = new_name(item["loc"][2:]) if item["loc"][:2] == ("training", "config") else None
        if renamed is not None:
            return Problem(path, key, f"renamed to {renamed}", "use the new key")
        return Problem(path, key, "unknown key", f"known keys: {', '.join(known)}")
    if item["type"] == "missing":
        return Problem(path, None, "is missing", "set a value")
    if item["type"] == "string_type" and isinstance(item["input"], int | float | date):
        read = f"{type(item['input']).__name__} {item['input']}"
        rule = f"must be text, but YAML reads the unquoted value as the {read}"
        return Problem(path, item["input"], rule, "write the value in quotes")
    rule = item["msg"].removeprefix("Value error, ")
    return Problem(path, item["input"], rule[:1].lower() + rule[1:], "see docs/configuration.md")


def _keys_at(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    for part in location:
        field = model.model_fields.get(str(part))
        if field is None or not isinstance(field.annotation, type) or not issubclass(field.annotation, BaseModel):
            break
        model = field.annotation
    return sorted(model.model_fields)
