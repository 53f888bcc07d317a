"""Writes docs/configuration.md from the models: every key of a deployment file, and what an edit of it does."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from stacks.config import DeploymentConfig
from training.config import TrainingConfig

TRAINER_EDIT = "restarts the trainer"
TRAINER_SETTINGS = f"{TrainingConfig.__module__.partition('.')[0]}."
HEAD = """# Configuration

Every key of a deployment file (`config/*.yaml`). `python -m stacks check FILE` validates one and names all problems at
once. This page is written by `python -m stacks docs`; a test holds it to the models.

What an edit does on the next `cdk deploy`:

| an edit | means |
|---|---|
| in place | the resource is changed; nodes and trainer go on |
| restarts the trainer | the run document changes: trainers save and start again on the same nodes |
| replaces nodes | a new launch template version: nodes save, leave, and new ones come |
| new nodes | `auto_scaling_group`: nodes to come follow it, those that run stay, but for types that are taken out; \
`ec2_fleet` and `spot_fleet`: replaces nodes |
| replaces the network | resources with addresses are made anew; deploy at zero nodes |
| touches data | buckets and keys: read the diff twice |
| changes the delivery | pipeline, or roles of the workflows; nothing that trains |
| nothing | - |
"""


def configuration_page() -> str:
    """Return the text of docs/configuration.md."""
    parts = [HEAD]
    for path, model, holder in _sections(DeploymentConfig, ""):
        parts.append(_section(path, model, holder))
    return "\n".join(parts)


def fields(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, FieldInfo, str]]:
    """Yield each key below a model: its dotted path, its field, and what an edit of it does."""
    for place, section, _ in _sections(model, path):
        for name, field in section.model_fields.items():
            if _model_of(field) is None:
                yield f"{place}.{name}".lstrip("."), field, _edit(section, field)


def _sections(
    model: type[BaseModel], path: str, holder: FieldInfo | None = None
) -> Iterator[tuple[str, type[BaseModel], FieldInfo | None]]:
    """Yield each section with the field that holds it; None for the file itself."""
    yield path, model, holder
    for name, field in model.model_fields.items():
        inner = _model_of(field)
        if inner is not None:
            yield from _sections(inner, f"{path}.{name}".lstrip("."), field)


def _model_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the section that a field holds, itself or `null`, or a list of."""
    for kind in (field.annotation, *typing.get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _edit(section: type[BaseModel], field: FieldInfo) -> str:
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "edit" in extra:
        return str(extra["edit"])
    assert section.__module__.startswith(TRAINER_SETTINGS), f"{section.__name__}: a key does not say what an edit does"
    return TRAINER_EDIT


def json_schema() -> str:
    """Return the text of docs/deployment.schema.json: JSON Schema 2020-12, as editors read it for completion."""
    schema = DeploymentConfig.model_json_schema()
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Trainstack deployment"} | schema
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def _section(path: str, model: type[BaseModel], holder: FieldInfo | None) -> str:
    rows = [
        f"| `{name}` | {_kind(field.annotation)} | {_default(field)} | {_cell(field.description or '')} "
        f"| {_edit(model, field)} |"
        for name, field in model.model_fields.items()
        if _model_of(field) is None
    ]
    summary = " ".join((model.__doc__ or "").split("\n\n")[0].split())
    lines = [f"## {path or 'Top level'}", "", summary, ""]
    if holder is not None and holder.default is None:
        lines += [f"May be left out. {_cell(holder.description or '')} Adding or removing it: {_extra(holder)}.", ""]
    elif holder is not None and holder.is_required() and holder.annotation is not model:
        lines += [f"A list of these. {_cell(holder.description or '')}", ""]
    return "\n".join([*lines, "| key | type | default | meaning | an edit |", "|---|---|---|---|---|", *rows, ""])


def _extra(holder: FieldInfo) -> str:
    assert isinstance(holder.json_schema_extra, dict), "an optional section does not say what an edit does"
    return str(holder.json_schema_extra["edit"])


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return "" if value is PydanticUndefined else f"`{_yaml(value)}`"


def _yaml(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_yaml(item) for item in value) + "]"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


def _kind(annotation: Any) -> str:
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is typing.Annotated:
        return _kind(arguments[0])
    if origin is typing.Literal:
        return " / ".join(f"`{item}`" for item in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("null" if item is type(None) else _kind(item) for item in arguments)
    if origin in (list, tuple):
        return f"list of {_kind(arguments[0])}"
    if origin is dict:
        return "mapping"
    return {int: "whole number", float: "number", str: "text", bool: "true or false"}.get(annotation, str(annotation))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
