"""Generates docs/configuration.md, which lists every key in a deployment file and what editing it changes."""

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

This page lists every key in a deployment file (`config/*.yaml`). `python -m stacks check FILE` validates a file and
prints all problems at once. `python -m stacks docs` generates this page, and a test compares it with the models.

The column `edit` shows what the next `cdk deploy` does after you edit the key:

| edit | effect |
|---|---|
| in place | AWS changes the resource; nodes and trainers continue |
| restarts the trainer | changes the run document: trainers save and restart on the same nodes |
| requires a new run | trainers reject the run's checkpoints and the run fails, unless you also change `training.run` |
| replaces nodes | creates a launch template version: nodes save and terminate, and new nodes launch |
| new nodes | `auto_scaling_group`: applies to new nodes, and replaces nodes whose type was removed; \
`ec2_fleet` and `spot_fleet`: replaces nodes |
| replaces the network | replaces resources that have addresses; deploy the change while there are no nodes |
| creates a second deployment | the old deployment keeps its nodes, costs and data until you destroy it with the old \
value |
| touches data | changes storage or encryption keys; review the diff carefully |
| changes the delivery | changes the pipeline or the workflows' roles; does not affect training |
| applies to new jobs | `engine: slurm` and `pcs` only: applies to jobs that the next `trainstack up` submits |
| replaces the cluster | AWS replaces the cluster; the jobs end, and the next `trainstack up` continues the run |
| applies to new pods | `engine: kubernetes` only: the next `trainstack up` replaces the pods, which save first |
| repeats steps | the next execution of the pipeline repeats the steps whose inputs change, and those after them |
| requires a new image | takes effect in new jobs and pods after `trainstack image lock` and `trainstack image build` |
| nothing | - |
"""


def configuration_page() -> str:
    """Return the text of docs/configuration.md."""
    parts = [HEAD]
    for path, model, holder in _sections(DeploymentConfig, ""):
        parts.append(_section(path, model, holder))
    return "\n".join(parts)


def fields(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, FieldInfo, str]]:
    """Yield each key in a model: its dotted path, its field, and what editing it changes."""
    for place, section, _ in _sections(model, path):
        for name, field in section.model_fields.items():
            if _model_of(field) is None:
                yield f"{place}.{name}".lstrip("."), field, _edit(section, field)


def _sections(
    model: type[BaseModel], path: str, holder: FieldInfo | None = None
) -> Iterator[tuple[str, type[BaseModel], FieldInfo | None]]:
    """Yield each section and the field that contains it, or None for the top level."""
    yield path, model, holder
    for name, field in model.model_fields.items():
        inner = _model_of(field)
        if inner is not None:
            yield from _sections(inner, f"{path}.{name}".lstrip("."), field)


def _model_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the section type of a plain, optional or list field."""
    for kind in (field.annotation, *typing.get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _edit(section: type[BaseModel], field: FieldInfo) -> str:
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "edit" in extra:
        return str(extra["edit"])
    assert section.__module__.startswith(TRAINER_SETTINGS), f"{section.__name__}: a key has no edit effect"
    return TRAINER_EDIT


def json_schema() -> str:
    """Return the text of docs/deployment.schema.json: a JSON Schema 2020-12 document for editor completion."""
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
        lines += [f"Optional. {_cell(holder.description or '')} {_section_effect(holder)}", ""]
    elif holder is not None and holder.is_required() and holder.annotation is not model:
        lines += [f"A list of mappings with these keys. {_cell(holder.description or '')}", ""]
    return "\n".join([*lines, "| key | type | default | meaning | edit |", "|---|---|---|---|---|", *rows, ""])


def _section_effect(holder: FieldInfo) -> str:
    assert isinstance(holder.json_schema_extra, dict), "an optional section has no edit effect"
    edit = str(holder.json_schema_extra["edit"])
    if edit.startswith("applies to"):
        return f"If you add or remove this section, the change {edit}."
    return f"Adding or removing this section {edit}."


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
    return {int: "integer", float: "number", str: "text", bool: "true or false"}.get(annotation, str(annotation))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
