"""Reads YAML strictly, and turns pydantic's complaints into problems with a remedy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from stacks.errors import ConfigError, Problem

MAXIMUM_BYTES = 1 << 20
M = TypeVar("M", bound=BaseModel)


class _Loader(yaml.SafeLoader):
    """YAML that notes doubled keys instead of keeping the last."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.doubled: list[Problem] = []


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, (dict, list)):
            raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key_node.start_mark)
        if key in found:
            where = f"line {key_node.start_mark.line + 1}"
            loader.doubled.append(Problem(where, key, "the key stands twice", "keep one of the two"))
        found[key] = loader.construct_object(value_node, deep=True)
    return found


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
# YAML 1.1, which PyYAML reads, takes 3e-4 for a text; everybody means the number.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_yaml(path: Path) -> tuple[dict[str, Any], list[Problem]]:
    """Return the mapping in a YAML file, and its doubled keys: `validate` tells them with all other problems.

    Raises:
        ConfigError: The file is absent, too large, no YAML, or no mapping.
    """

    def refuse(value: object, rule: str, remedy: str) -> ConfigError:
        return ConfigError(str(path), [Problem("the file", value, rule, remedy)])

    try:
        size = path.stat().st_size
        if size > MAXIMUM_BYTES:
            raise refuse(f"{size} bytes", f"at most {MAXIMUM_BYTES} bytes", "give a deployment file")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise refuse(str(path), f"cannot be read: {error.strerror}", "see config/ for examples") from error
    except UnicodeDecodeError as error:
        raise refuse(str(path), f"is not UTF-8 text: {error.reason}", "save it as UTF-8") from error
    loader = _Loader(text)
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            # A few lines of aliases can stand for more text than there is memory.
            raise refuse("an alias (*name)", "anchors and aliases are not read", "write the value out")
        loaded = loader.get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        problem = getattr(error, "problem", None) or str(error)
        raise refuse(where, f"is not YAML: {problem}", "mend the line") from error
    finally:
        loader.dispose()
    if not isinstance(loaded, dict):
        raise refuse(type(loaded).__name__, "must be a mapping of sections", "see config/ for examples")
    return loaded, loader.doubled


def validate(model: type[M], data: dict[str, Any], source: str, known: Sequence[Problem] = ()) -> M:
    """Return the model of a mapping.

    Raises:
        ConfigError: With the problems that are `known` already, and every one that pydantic finds.
    """
    try:
        valid = model.model_validate(data)
    except ValidationError as error:
        found = [_problem(item, model) for item in error.errors(include_url=False)]
        raise ConfigError(source, [*known, *found]) from error
    if known:
        raise ConfigError(source, known)
    return valid


def _problem(item: Any, model: type[BaseModel]) -> Problem:
    path = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        known = _keys_at(model, item["loc"][:-1])
        return Problem(path, item["loc"][-1], "unknown key", f"the keys here are {', '.join(known)}")
    if item["type"] == "missing":
        return Problem(path, None, "is missing", "give it a value")
    rule = item["msg"].removeprefix("Value error, ")
    return Problem(path, item["input"], rule[:1].lower() + rule[1:], "see docs/configuration.md")


def _keys_at(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    for part in location:
        field = model.model_fields.get(str(part))
        if field is None or not isinstance(field.annotation, type) or not issubclass(field.annotation, BaseModel):
            break
        model = field.annotation
    return sorted(model.model_fields)
