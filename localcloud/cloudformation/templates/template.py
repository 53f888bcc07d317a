"""Loads templates in JSON and YAML, including YAML's short forms of intrinsic functions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import chain, islice
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
NAMED_SECTIONS = {"Resources": "Resource", "Parameters": "Parameter", "Outputs": "Output", "Mappings": "Mapping"}
NAME = re.compile(r"[a-zA-Z0-9]+")
# Source: https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-limits.html (2026-11).
MAX_RESOURCES = 500
# As AWS does, accept a comma after the last item of a JSON object or array. The first group matches a string.
# Source: test_lambda_cfn_dead_letter_config_async_invocation in
# https://github.com/localstack/localstack/tree/8b9a79f/tests/aws/services/cloudformation/resources.
LAST_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])')


class _Loader(yaml.SafeLoader):
    """YAML loader for templates: accepts short-form tags, keeps dates as strings and rejects duplicate keys."""


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
    duplicate = sorted({str(key) for key in keys if keys.count(key) > 1})
    if duplicate:
        raise TemplateError(f"Template error: duplicate keys {duplicate}")
    return {key: loader.construct_object(value, deep=True) for key, value in pairs}


_Loader.add_multi_constructor("!", _construct)
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: str(node.value))


def load_template(body: str) -> dict[str, Any]:
    """Parse a template and check its structure.

    Raises:
        TemplateError: The template is not JSON or YAML, or its structure is invalid. The message matches
            CloudFormation's, as recorded on AWS in
            https://github.com/localstack/localstack/tree/8b9a79f/tests/aws/services/cloudformation; problems in several
            sections are combined.
    """
    try:
        is_json = body.lstrip().startswith("{")
        loaded = json.loads(_without_last_commas(body)) if is_json else yaml.load(body, _Loader)  # noqa: S506
    except json.JSONDecodeError as error:
        where = f"(line {error.lineno}, column {error.colno + 1})"
        raise TemplateError(f"Template format error: JSON not well-formed. {where}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
        raise TemplateError(f"Template format error: YAML not well-formed.{where}") from error
    if not isinstance(loaded, dict):
        raise TemplateError("Template format error: unsupported structure.")
    problems = list(dict.fromkeys(_section_problems(loaded)))
    problems = problems or list(islice(chain(_nulls(loaded, ""), _mapping_problems(loaded)), 1))
    if problems:
        raise TemplateError("; ".join(problems))
    return loaded


def _without_last_commas(body: str) -> str:
    # Replace the comma with a space, so that columns in error messages remain correct.
    return LAST_COMMA.sub(lambda found: found[1] or " ", body)


def _section_problems(template: Mapping[str, Any]) -> Iterator[str]:
    unknown = [str(name) for name in template if name not in SECTIONS]
    if unknown:
        yield f"Invalid template property or properties [{', '.join(unknown)}]"
    if template.get("Transform") or '"Fn::Transform"' in json.dumps(template, default=str):
        yield "Transform: macros are not emulated; expand the template before deploying it"
    resources: Any = template.get("Resources")
    if "Resources" in template and not isinstance(resources, dict):
        yield "Template format error: Any Resources member must be an object."
        return
    if not resources:
        yield "Template format error: At least one Resources member must be defined."
        return
    if len(resources) > MAX_RESOURCES:
        found = len(resources)
        yield f"Template format error: Number of resources, {found}, is greater than maximum allowed, {MAX_RESOURCES}"
    for section, word in NAMED_SECTIONS.items():
        for name in template.get(section) or {}:
            if NAME.fullmatch(str(name)) is None:
                yield f"Template format error: {word} name {name} is non alphanumeric."
    for logical_id, resource in resources.items():
        yield from _resource_problems(f"Resources/{logical_id}", resource)
    for output in (template.get("Outputs") or {}).values():
        if not isinstance(output, dict) or "Value" not in output:
            yield "Template format error: Every Outputs member must contain a Value object"


def _resource_problems(where: str, resource: Any) -> Iterator[str]:
    if not isinstance(resource, dict):
        yield "Template format error: Any Resources member must be an object."
        return
    if not isinstance(resource.get("Type"), str):
        yield f"Template format error: [/{where}] Every Resources object must contain a Type member."
    yield from (f"Invalid template resource property '{key}'" for key in resource if key not in RESOURCE_KEYS)
    for key in ("DeletionPolicy", "UpdateReplacePolicy"):
        value = resource.get(key, "Delete")
        # A function such as Fn::If is evaluated later, with the deployment's parameters.
        if not isinstance(value, dict) and value not in DELETION_POLICIES:
            yield f"Template error: {where}: {key} {value}: must be one of {sorted(DELETION_POLICIES)}"


def _mapping_problems(template: Mapping[str, Any]) -> Iterator[str]:
    for mapping in (template.get("Mappings") or {}).values():
        for name, attributes in mapping.items() if isinstance(mapping, dict) else ():
            if not isinstance(attributes, dict):
                yield f"Template format error: Every Mappings member {name} must be a map"
                continue
            values = [item for value in attributes.values() for item in (value if isinstance(value, list) else [value])]
            if any(isinstance(value, (dict, list)) for value in values):
                yield "Template format error: Every Mappings attribute must be a String or a List."


def _nulls(value: Any, path: str) -> Iterator[str]:
    if value is None:
        yield f"[{path}] 'null' values are not allowed in templates"
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _nulls(item, f"{path}/{key}")
