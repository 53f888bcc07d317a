"""Converts template values to the input shapes of AWS API operations.

Templates and APIs use nearly the same names, although their case may differ (`LogGroupName`, `logGroupName`). Templates
may write numbers and booleans as strings ("2", "true"), and they write policies as objects where APIs expect strings.
Each type's provider handles all other names that differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import BotoCoreError

from localcloud.cloudformation.provider import ResourceFailure


def invoke(client: Any, operation: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Call `operation` (boto3's method name) with `values` converted to its input shape.

    Raises:
        ResourceFailure: Values do not match the input shape; the message lists all of them.
        ClientError: The service returned an error.
    """
    arguments = to_input(client, operation, values)
    try:
        response: dict[str, Any] = getattr(client, operation)(**arguments)
    except BotoCoreError as error:
        raise ResourceFailure(f"{operation}: {error}") from error
    return response


def to_input(client: Any, operation: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` as input for `operation`, with the API's member names and scalar types.

    Raises:
        ResourceFailure: Settings are unknown to the operation or have the wrong type; the message lists all of them.
    """
    api_name = client.meta.method_to_api_mapping[operation]
    shape = client.meta.service_model.operation_model(api_name).input_shape
    problems: list[str] = []
    result: dict[str, Any] = _structure(values, shape, "", problems) if shape is not None else {}
    if problems:
        raise ResourceFailure(f"{api_name}: invalid input: {'; '.join(problems)}")
    return result


def _fit(value: Any, shape: Any, path: str, problems: list[str]) -> Any:
    kind = shape.type_name
    if kind == "structure" and isinstance(value, Mapping):
        return value if shape.is_document_type else _structure(value, shape, f"{path}.", problems)
    if kind == "list" and isinstance(value, list | tuple):
        return [_fit(item, shape.member, f"{path}[{index}]", problems) for index, item in enumerate(value)]
    if kind == "map" and isinstance(value, Mapping):
        return {key: _fit(item, shape.value, f"{path}.{key}", problems) for key, item in value.items()}
    if kind in {"structure", "list", "map"}:
        problems.append(f"{path}: expected {kind}, found {value!r}")
        return None
    return _scalar(value, kind, path, problems)


def _structure(values: Mapping[str, Any], shape: Any, prefix: str, problems: list[str]) -> dict[str, Any]:
    names = {name.lower(): name for name in shape.members}
    result = {}
    for key, value in values.items():
        name = key if key in shape.members else names.get(key.lower())
        if name is None:
            problems.append(f"{prefix}{key}: unknown setting")
        elif value is not None:
            result[name] = _fit(value, shape.members[name], f"{prefix}{key}", problems)
    return result


def _scalar(value: Any, kind: str, path: str, problems: list[str]) -> Any:
    if kind == "string":
        return text(value)
    try:
        if kind in {"integer", "long"}:
            if isinstance(value, float) and not value.is_integer():
                raise ValueError
            return int(value)
        if kind in {"float", "double"}:
            return float(value)
        if kind == "boolean":
            return parse_bool(value)
    except (TypeError, ValueError):
        problems.append(f"{path}: expected {kind}, found {value!r}")
        return None
    return value


def text(value: Any) -> str:
    """Return `value` as a string parameter: objects as JSON, booleans in lower case."""
    if isinstance(value, Mapping | list):
        return json.dumps(value)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def parse_bool(value: Any) -> bool:
    """Return a template's boolean, which may be written as "true" or "false".

    Raises:
        ValueError: The value is not a boolean.
    """
    spelled = str(value).lower()
    if spelled not in {"true", "false"}:
        raise ValueError(value)
    return spelled == "true"


def get_path(response: Any, path: str) -> Any:
    """Return the value at the dotted `path` in `response`, or None. Numbers in the path are list indexes."""
    for step in path.split("."):
        if isinstance(response, list):
            response = response[int(step)] if int(step) < len(response) else None
        elif isinstance(response, Mapping):
            response = response.get(step)
        else:
            return None
    return response
