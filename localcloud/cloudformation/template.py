"""Loads templates, JSON or YAML with the short forms of the intrinsic functions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from localcloud.cloudformation.errors import TemplateError

SECTIONS = {
    "AWSTemplateFormatVersion",
    "Description",
    "Metadata",
    "Parameters",
    "Mappings",
    "Conditions",
    "Rules",
    "Resources",
    "Outputs",
    "Transform",
}
RESOURCE_KEYS = {
    "Type",
    "Properties",
    "DependsOn",
    "Condition",
    "Metadata",
    "DeletionPolicy",
    "UpdateReplacePolicy",
    "UpdatePolicy",
    "CreationPolicy",
}
DELETION_POLICIES = {"Delete", "Retain", "Snapshot", "RetainExceptOnCreate"}


class _Loader(yaml.SafeLoader):
    """YAML of templates: short-form tags, dates kept as text, doubled keys refused."""


def _construct(loader: _Loader, suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        value: Any = loader.construct_scalar(node)
        if suffix == "GetAtt":
            value = value.split(".", 1)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        assert isinstance(node, yaml.MappingNode)
        value = loader.construct_mapping(node, deep=True)
    return {suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}": value}


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    pairs = [(loader.construct_object(key, deep=True), value) for key, value in node.value]
    keys = [key for key, _ in pairs]
    doubled = sorted({str(key) for key in keys if keys.count(key) > 1})
    if doubled:
        raise TemplateError(f"Template error: doubled keys {doubled}")
    return {key: loader.construct_object(value, deep=True) for key, value in pairs}


_Loader.add_multi_constructor("!", _construct)
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: str(node.value))


def load_template(body: str) -> dict[str, Any]:
    """Parse a template and check its shape.

    Raises:
        TemplateError: Not JSON or YAML, unknown sections or resource keys, no resources; all problems in one message.
    """
    try:
        loaded = json.loads(body) if body.lstrip().startswith("{") else yaml.load(body, _Loader)  # noqa: S506
    except (ValueError, yaml.YAMLError) as error:
        raise TemplateError(f"Template format error: {error}") from error
    if not isinstance(loaded, dict):
        raise TemplateError("Template format error: the template is not a mapping.")
    problems = _shape_problems(loaded)
    if problems:
        raise TemplateError("Template format error: " + "; ".join(problems))
    return loaded


def _shape_problems(template: Mapping[str, Any]) -> list[str]:
    problems = [f"unknown section {name}" for name in template if name not in SECTIONS]
    if template.get("Transform"):
        problems.append("Transform: macros are not run here; expand the template before it is deployed")
    resources = template.get("Resources")
    if not isinstance(resources, dict) or not resources:
        return [*problems, "At least one Resources member must be defined."]
    for logical_id, resource in resources.items():
        where = f"Resources/{logical_id}"
        if not isinstance(resource, dict) or not isinstance(resource.get("Type"), str):
            problems.append(f"{where}: Type is missing")
            continue
        problems += [f"{where}: unknown key {key}" for key in resource if key not in RESOURCE_KEYS]
        for key in ("DeletionPolicy", "UpdateReplacePolicy"):
            if resource.get(key, "Delete") not in DELETION_POLICIES:
                problems.append(f"{where}: {key} {resource[key]}: one of {sorted(DELETION_POLICIES)}")
    return problems
