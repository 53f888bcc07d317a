"""Converts template values to text, and parses the JSON documents in them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import isfinite
from typing import Any, overload

from stacks.changes.templates.references import is_intrinsic

NODE_DOCUMENT, RUN_DOCUMENT, SHIM = "node document", "run document", "shim"
"""Names of the documents in user data and the run parameter, as they appear in the paths of changed properties."""
_END_OF_SHIM = "exit # node document\n"
_EXPORT = "ExportsOutput"
_VARIABLE = re.compile(r"\$\{([^}]*)\}")


def text_of(value: Any) -> str:
    """Return a value as text, with references written as ${Name} or ${Name.Attribute}."""
    if isinstance(value, bool):
        return str(value).lower()
    if not is_intrinsic(value):
        return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    ((function, argument),) = value.items()
    if function == "Ref":
        return f"${{{argument}}}"
    if function == "Fn::GetAtt":
        return f"${{{'.'.join(map(str, argument)) if isinstance(argument, list) else argument}}}"
    if function == "Fn::ImportValue" and isinstance(argument, str):
        return f"${{{_of_export(argument)}}}"
    if function == "Fn::Join" and isinstance(argument, list) and len(argument) == 2 and isinstance(argument[1], list):
        return text_of(argument[0]).join(text_of(item) for item in argument[1])
    if function == "Fn::Base64":
        return text_of(argument)
    if function == "Fn::Sub":
        text, values = argument if isinstance(argument, list) and len(argument) == 2 else (argument, {})
        if isinstance(text, str) and isinstance(values, Mapping):
            return _VARIABLE.sub(lambda match: _substituted(match.group(1), values), text)
    return f"${{{function} {json.dumps(argument, sort_keys=True)}}}"


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping, or an empty mapping for any other value, such as a function that could not be evaluated."""
    return value if isinstance(value, Mapping) and not is_intrinsic(value) else {}


def listed(value: Any) -> list[Any]:
    """Return a list unchanged, a missing value as an empty list, and any other value as a list with one item."""
    return value if isinstance(value, list) else [] if value is None else [value]


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """Return the mappings in a list, without functions that could not be evaluated."""
    return [found for one in value if (found := mapping(one))] if isinstance(value, list) else []


@overload
def number(value: Any) -> float | None: ...


@overload
def number(value: Any, otherwise: float) -> float: ...


def number(value: Any, otherwise: float | None = None) -> float | None:
    """Return a number, which a template can contain as text, or `otherwise` for any other value."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return otherwise
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return otherwise
    return found if isfinite(found) else otherwise


def _substituted(name: str, values: Mapping[str, Any]) -> str:
    return text_of(values[name]) if name in values else f"${{{name.removeprefix('!')}}}"


def _of_export(name: str) -> str:
    """Return the source of an export. The CDK names exports STACK:ExportsOutputRefName or ...FnGetAttNameAttribute."""
    stack, _, output = name.partition(":")
    for prefix in (f"{_EXPORT}Ref", f"{_EXPORT}FnGetAtt"):
        if output.startswith(prefix):
            return f"{stack}:{output.removeprefix(prefix)}"
    return name


def parse_documents(type_name: str, properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a resource's properties, with documents in user data and parameters parsed for comparison by key."""
    if type_name == "AWS::EC2::LaunchTemplate":
        data = mapping(properties.get("LaunchTemplateData"))
        if "UserData" in data:
            return {**properties, "LaunchTemplateData": {**data, "UserData": _user_data(data["UserData"])}}
    if type_name == "AWS::SSM::Parameter" and "Value" in properties:
        document = _document(text_of(properties["Value"]))
        if document is not None:
            return {**properties, "Value": {RUN_DOCUMENT: document}}
    return properties


def _user_data(value: Any) -> Any:
    shim, marker, rest = text_of(value).partition(_END_OF_SHIM)
    document = _document(rest)
    if not marker or document is None:
        return value
    # The shim also contains the bundle's digest and key. Report them once, as part of the document.
    for name in ("sha256", "key"):
        value = mapping(document.get("bundle")).get(name)
        if isinstance(value, str) and value:
            shim = shim.replace(value, f"<bundle {name}>")
    return {SHIM: shim, NODE_DOCUMENT: document}


def _document(text: str) -> dict[str, Any] | None:
    """Return the node or run document in a string, or None if the string contains neither."""
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return loaded if isinstance(loaded, dict) and "schema_version" in loaded else None
