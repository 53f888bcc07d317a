"""Values of a template as text, and the documents that travel inside them as the mappings that they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from stacks.changes.references import is_intrinsic

NODE_DOCUMENT, RUN_DOCUMENT, SHIM = "node document", "run document", "shim"
"""Names in the paths of changed properties."""
_END_OF_SHIM = "exit # node document\n"
_EXPORT = "ExportsOutput"


def text_of(value: Any) -> str:
    """Return a value as one text, with references as ${Name}, ${Name.Attribute}."""
    if isinstance(value, bool):
        return str(value).lower()
    if not is_intrinsic(value):
        return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    ((function, argument),) = value.items()
    if function == "Ref":
        return f"${{{argument}}}"
    if function == "Fn::GetAtt":
        return f"${{{argument if isinstance(argument, str) else '.'.join(map(str, argument))}}}"
    if function == "Fn::ImportValue" and isinstance(argument, str):
        return f"${{{_of_export(argument)}}}"
    if function == "Fn::Join":
        return str(argument[0]).join(text_of(item) for item in argument[1])
    if function == "Fn::Base64":
        return text_of(argument)
    if function == "Fn::Sub" and isinstance(argument, str):
        return argument
    return f"${{{function} {json.dumps(argument, sort_keys=True)}}}"


def _of_export(name: str) -> str:
    """Return what an export stands for; the CDK names them STACK:ExportsOutputRefName or ...FnGetAttNameAttribute."""
    stack, _, output = name.partition(":")
    for prefix in (f"{_EXPORT}Ref", f"{_EXPORT}FnGetAtt"):
        if output.startswith(prefix):
            return f"{stack}:{output.removeprefix(prefix)}"
    return name


def opened(type_name: str, properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the properties of a resource with the documents in its texts opened, so that they compare key by key."""
    if type_name == "AWS::EC2::LaunchTemplate":
        data = properties.get("LaunchTemplateData", {})
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
    # The bundle's digest is in the shim too: it is told once, with the document.
    digest = document.get("bundle", {}).get("sha256")
    key = document.get("bundle", {}).get("key")
    for name, told in (("sha256", digest), ("key", key)):
        if isinstance(told, str) and told:
            shim = shim.replace(told, f"<bundle {name}>")
    return {SHIM: shim, NODE_DOCUMENT: document}


def _document(text: str) -> dict[str, Any] | None:
    """Return the document that a text is; None when it is none of ours."""
    try:
        loaded = json.loads(text)
    except ValueError:
        return None
    return loaded if isinstance(loaded, dict) and "schema_version" in loaded else None
