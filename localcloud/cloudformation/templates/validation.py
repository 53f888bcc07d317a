"""Validates a template's types, required properties, references, attributes, conditions and deletion policies.

`template` checks the structure, and `parameters` checks the parameter values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from localcloud.api import ApiError
from localcloud.cloudformation.errors import TemplateError
from localcloud.cloudformation.resource_types import (
    ACCEPTED_TYPES,
    SNAPSHOT_TYPES,
    has_attribute,
    is_custom,
)
from localcloud.cloudformation.templates.graph import EVALUATED, REFERRING, dependencies, references

PSEUDO_PARAMETERS = {
    "AWS::AccountId",
    "AWS::NoValue",
    "AWS::NotificationARNs",
    "AWS::Partition",
    "AWS::Region",
    "AWS::StackId",
    "AWS::StackName",
    "AWS::URLSuffix",
}
GET_ATT_SHAPE = (
    "every Fn::GetAtt object requires two non-empty parameters, the resource name and the resource attribute"
)
# Types whose names a template can set. Such names can conflict with existing resources.
# Source: https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_CreateStack.html (2026-11).
NAMED_IAM = {
    "AWS::IAM::Group": "GroupName",
    "AWS::IAM::InstanceProfile": "InstanceProfileName",
    "AWS::IAM::ManagedPolicy": "ManagedPolicyName",
    "AWS::IAM::Role": "RoleName",
    "AWS::IAM::User": "UserName",
}
NEEDS_CAPABILITY = {
    *NAMED_IAM,
    "AWS::IAM::AccessKey",
    "AWS::IAM::Policy",
    "AWS::IAM::UserToGroupAddition",
}


def validate(template: Mapping[str, Any], provided: Collection[str]) -> None:
    """Check that a template can be deployed.

    Args:
        provided: Resource types that have a provider.

    Raises:
        TemplateError: The template is invalid. The message lists all problems.
    """
    for found in references(template["Resources"]):
        if found[1] == "":
            raise TemplateError(f"Template error: {GET_ATT_SHAPE}")
    _require_dependencies(template)
    problems = [*_conditions(template), *_outputs(template)]
    for logical_id, resource in template["Resources"].items():
        problems += [f"Resources/{logical_id}: {what}" for what in _resource(template, resource, provided)]
    if problems:
        raise TemplateError("Template error: " + "; ".join(problems))
    dependencies(template, set(template["Resources"]))


def _require_dependencies(template: Mapping[str, Any]) -> None:
    """Check that all referenced resources and parameters exist.

    Raises:
        TemplateError: The message uses CloudFormation's wording, and lists all unknown names.
    """
    known = {*template["Resources"], *template.get("Parameters", {}), *PSEUDO_PARAMETERS}
    blocks = {
        "Resources": [
            name
            for resource in template["Resources"].values()
            for name in (*_named(resource.get("DependsOn", [])), *_referenced(resource))
        ],
        "Outputs": [name for output in template.get("Outputs", {}).values() for name, _ in references(output)],
    }
    for block, names in blocks.items():
        missing = sorted(set(names) - known)
        if missing:
            raise TemplateError(
                f"Template format error: Unresolved resource dependencies [{', '.join(missing)}] in the {block} block "
                "of the template"
            )


def _named(depends_on: str | list[str]) -> list[str]:
    return [depends_on] if isinstance(depends_on, str) else depends_on


def _referenced(resource: Mapping[str, Any]) -> list[str]:
    return [name for key in REFERRING for name, _ in references(resource.get(key))]


def needed_capability(template: Mapping[str, Any]) -> str | None:
    """Return the capability that a template's IAM resources require, or None."""
    kinds = [(item["Type"], item.get("Properties") or {}) for item in template["Resources"].values()]
    if any(NAMED_IAM.get(kind) in properties for kind, properties in kinds):
        return "CAPABILITY_NAMED_IAM"
    return "CAPABILITY_IAM" if any(kind in NEEDS_CAPABILITY for kind, _ in kinds) else None


def require_capabilities(template: Mapping[str, Any], given: Collection[str]) -> None:
    """Check that the caller has acknowledged the template's IAM resources.

    Raises:
        ApiError: InsufficientCapabilitiesException, which names the required capability.
    """
    needed = needed_capability(template)
    if needed is not None and needed not in given and "CAPABILITY_NAMED_IAM" not in given:
        raise ApiError("InsufficientCapabilitiesException", f"Requires capabilities : [{needed}]")


def _resource(template: Mapping[str, Any], resource: Mapping[str, Any], provided: Collection[str]) -> Iterator[str]:
    kind = resource["Type"]
    properties = resource.get("Properties") or {}
    if not is_custom(kind) and kind not in provided and kind not in ACCEPTED_TYPES:
        yield f"{kind} is not emulated; to list the accepted types: python -m localcloud accepted"
        return
    if is_custom(kind) and not {"ServiceToken", "Fn::If"} & properties.keys():
        yield f"{kind}: missing required properties: ServiceToken"
    for name in _named(resource.get("DependsOn", [])):
        if name not in template["Resources"]:
            yield f"DependsOn {name}: must name a resource"
    if "Condition" in resource and resource["Condition"] not in template.get("Conditions", {}):
        yield f"Condition {resource['Condition']} is not defined"
    for policy in ("DeletionPolicy", "UpdateReplacePolicy"):
        if resource.get(policy) == "Snapshot" and kind not in SNAPSHOT_TYPES:
            yield f"{policy} Snapshot: only emulated for {', '.join(SNAPSHOT_TYPES)}; use Retain or Delete"
    for key in REFERRING:
        yield from _references(template, resource.get(key))


def _references(template: Mapping[str, Any], value: Any) -> Iterator[str]:
    resources = template["Resources"]
    for name, attribute in references(value):
        if attribute is None or attribute is EVALUATED:
            continue
        if name not in resources:
            yield f"Fn::GetAtt {name}.{attribute}: {name} is not a resource"
            continue
        kind = resources[name].get("Type", "")
        if not is_custom(kind) and not has_attribute(kind, attribute):
            yield f"Fn::GetAtt {name}.{attribute}: {kind} has no such attribute"


def _outputs(template: Mapping[str, Any]) -> Iterator[str]:
    for name, output in template.get("Outputs", {}).items():
        where = f"Outputs/{name}"
        if "Condition" in output and output["Condition"] not in template.get("Conditions", {}):
            yield f"{where}: Condition {output['Condition']} is not defined"
        yield from (f"{where}: {what}" for what in _references(template, [output["Value"], output.get("Export")]))


def _conditions(template: Mapping[str, Any]) -> Iterator[str]:
    parameters = template.get("Parameters", {})
    for name, condition in template.get("Conditions", {}).items():
        for referred, attribute in references(condition):
            if attribute is not None or (referred not in parameters and referred not in PSEUDO_PARAMETERS):
                yield f"Conditions/{name}: references {referred}; conditions can only reference parameters"
