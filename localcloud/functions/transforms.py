"""What a target gets: the event, a part of it, a constant, or a template filled from it.

Source: https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-transform-target-input.html (read 2026-11).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from localcloud.functions.errors import InvalidTransform

_PATH_PIECE = re.compile(r"\.([A-Za-z0-9_\-]+)|\['([^']+)'\]|\[(\d+)\]")
_VARIABLE = re.compile(r"<([A-Za-z0-9_.\-]+)>")
MISSING = object()


def target_input(target: Mapping[str, Any], event: Mapping[str, Any], rule_arn: str, ingestion_time: str) -> str:
    """Return the text that a target receives (JSON, unless a template makes something else).

    Raises:
        InvalidTransform: a path or template that cannot be applied.
    """
    if "Input" in target:
        return str(target["Input"])
    if "InputPath" in target:
        value = resolve_path(target["InputPath"], event)
        if value is MISSING:
            raise InvalidTransform(f"InputPath {target['InputPath']}: the event has no such value")
        return json.dumps(value)
    if "InputTransformer" in target:
        return fill_template(target["InputTransformer"], event, rule_arn, ingestion_time)
    return json.dumps(event)


def resolve_path(path: str, event: Any) -> Any:
    """Return the value at a JSON path, MISSING where the event has none.

    `$`, `.name`, `['name']` and `[0]` are served.

    Raises:
        InvalidTransform: another form of path.
    """
    value = event
    for key in _parse_path(path):
        if isinstance(key, str):
            value = value[key] if isinstance(value, dict) and key in value else MISSING
        else:
            value = value[key] if isinstance(value, list) and key < len(value) else MISSING
    return value


def _parse_path(path: str) -> list[str | int]:
    if not path.startswith("$"):
        raise InvalidTransform(f"path {path!r} must start with $")
    keys: list[str | int] = []
    position = 1
    while position < len(path):
        piece = _PATH_PIECE.match(path, position)
        if piece is None:
            raise InvalidTransform(f"path {path!r}: {path[position:]!r} is none of .name, ['name'], [0]")
        keys.append(int(piece.group(3)) if piece.group(3) else piece.group(1) or piece.group(2))
        position = piece.end()
    return keys


def fill_template(transformer: Mapping[str, Any], event: Mapping[str, Any], rule_arn: str, ingestion_time: str) -> str:
    """Fill an InputTemplate.

    A variable inside a JSON string is put in as text, elsewhere as a JSON value. A variable that the event lacks is
    empty text, or null.

    Raises:
        InvalidTransform: a path of the map, a variable that is not in the map, or an object template that is no JSON
            when filled.
    """
    template = str(transformer["InputTemplate"])
    values: dict[str, Any] = {
        name: resolve_path(path, event) for name, path in transformer.get("InputPathsMap", {}).items()
    }
    values["aws.events.rule-arn"] = rule_arn
    values["aws.events.rule-name"] = rule_arn.rpartition("/")[2]
    values["aws.events.event.ingestion-time"] = ingestion_time
    values["aws.events.event.json"] = event
    values["aws.events.event"] = {key: value for key, value in event.items() if key != "detail"}
    quoted = _quoted_ranges(template)

    def replace(found: re.Match[str]) -> str:
        name = found.group(1)
        if name not in values:
            raise InvalidTransform(f"InputTemplate: <{name}> is not in InputPathsMap ({', '.join(sorted(values))})")
        value = values[name]
        inside = any(start < found.start() < end for start, end in quoted)
        if inside:
            text = "" if value is MISSING else value if isinstance(value, str) else json.dumps(value)
            return json.dumps(text)[1:-1]
        return "null" if value is MISSING else json.dumps(value)

    filled = _VARIABLE.sub(replace, template)
    if template.lstrip().startswith(("{", "[")):
        try:
            json.loads(filled)
        except ValueError as error:
            raise InvalidTransform(f"InputTemplate makes no valid JSON: {error}: {filled[:200]}") from error
    return filled


def _quoted_ranges(template: str) -> list[tuple[int, int]]:
    return [found.span() for found in re.finditer(r'"(?:[^"\\]|\\.)*"', template)]
