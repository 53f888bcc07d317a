"""Fits template values to the input shapes of AWS API calls.

Templates and APIs name nearly everything alike, but a template spells numbers and booleans as it likes ("2", "true"),
gives policies as objects where the API wants a string, and differs in case (`LogGroupName`, `logGroupName`). Not here:
names that truly differ; the provider of the type renames those.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import BotoCoreError

from ..provider import ResourceFailure

_ARTICLES = {"integer": "an"}


def invoke(client: Any, operation: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Call `operation` (boto3's method name) with `values` fitted to its input.

    Raises:
        ResourceFailure: a value does not fit the call; the message names all that do not.
        ClientError: the service refused.
    """
    arguments = fitted(client, operation, values)
    try:
        response: dict[str, Any] = getattr(client, operation)(**arguments)
    except BotoCoreError as error:
        raise ResourceFailure(f"{operation}: {error}") from error
    return response


def fitted(client: Any, operation: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` as the input of `operation`: member names in the API's case, scalars of the API's types.

    Raises:
        ResourceFailure: some setting is unknown to the call or has the wrong type; the message names all of them.
    """
    api_name = client.meta.method_to_api_mapping[operation]
    shape = client.meta.service_model.operation_model(api_name).input_shape
    problems: list[str] = []
    result: dict[str, Any] = _structure(values, shape, "", problems) if shape is not None else {}
    if problems:
        raise ResourceFailure(f"{api_name} does not take: {'; '.join(problems)}")
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
        problems.append(f"{path}: {value!r} where {_ARTICLES.get(kind, 'a')} {kind} is wanted")
        return None
    return _scalar(value, kind, path, problems)


def _structure(values: Mapping[str, Any], shape: Any, prefix: str, problems: list[str]) -> dict[str, Any]:
    names = {name.lower(): name for name in shape.members}
    result = {}
    for key, value in values.items():
        name = key if key in shape.members else names.get(key.lower())
        if name is None:
            problems.append(f"{prefix}{key}: no such setting")
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
            return truth(value)
    except (TypeError, ValueError):
        problems.append(f"{path}: {value!r} where {_ARTICLES.get(kind, 'a')} {kind} is wanted")
        return None
    return value


def text(value: Any) -> str:
    """Return `value` as the text an API takes: objects as JSON, booleans in lower case."""
    if isinstance(value, Mapping | list):
        return json.dumps(value)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def truth(value: Any) -> bool:
    """Return a template's boolean, which may be spelled "true" or "false".

    Raises:
        ValueError: it is neither.
    """
    spelled = str(value).lower()
    if spelled not in {"true", "false"}:
        raise ValueError(value)
    return spelled == "true"


def dig(response: Any, path: str) -> Any:
    """Return what the dotted `path` leads to in `response`; numbers index lists; None when it leads nowhere."""
    for step in path.split("."):
        if isinstance(response, list):
            response = response[int(step)] if int(step) < len(response) else None
        elif isinstance(response, Mapping):
            response = response.get(step)
        else:
            return None
    return response
