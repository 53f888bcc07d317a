"""Renders the event schema as docs/events.md."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from bootstrap.events.schema import EVENTS, SCHEMA_VERSION, Event

_HEAD = f"""\
# Events

Written by `python -m bootstrap events` from `bootstrap/events/schema.py`; do not edit.

A node writes each event as one line of JSON to `events.jsonl` and to the CloudWatch Logs group `/trainstack/<name>`
(stream: the instance id). Every key is always present. null means that the key does not apply. All events have these
keys:

| key | type | description |
|---|---|---|
| `schema_version` | integer | {SCHEMA_VERSION} |
| `event` | string | name of the event |
| `unix_seconds` | number | time of the event |
| `instance_id` | string | EC2 instance id; `unknown` before it is known |
"""
_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def render() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *(_section(event) for event in EVENTS)])


def _section(event: type[Event]) -> str:
    hints = typing.get_type_hints(event, include_extras=True)
    names = [each.name for each in dataclasses.fields(event)]
    lines = [f"## `{event.event_name()}`", "", event.__doc__ or "", ""]
    if names:
        lines += ["| key | type | description |", "|---|---|---|", *(_row(name, hints[name]) for name in names), ""]
    return "\n".join(lines)


def _row(name: str, hint: Any) -> str:
    description = ""
    if typing.get_origin(hint) is Annotated:
        hint, description = typing.get_args(hint)
    return f"| `{name}` | {_type(hint)} | {description} |"


def _type(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in arguments)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_type(each) for each in arguments)
    if origin is tuple:
        return f"list of {_type(arguments[0])}s"
    if origin is Mapping:
        return "object"
    return _NAMES[hint]
