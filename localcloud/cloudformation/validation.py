"""Checks a template before anything is made: types, required properties, references, attributes, conditions, policies.

All problems are told at once. Not here: the template's shape (`template`) and values (`parameters`, Rules).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from localcloud.api import ApiError
from localcloud.cloudformation.accepted import ACCEPTED_TYPES
from localcloud.cloudformation.custom_resource import is_custom
from localcloud.cloudformation.errors import TemplateError
from localcloud.cloudformation.graph import REFERRING, dependencies, references
from localcloud.cloudformation.schemas import has_attribute, required_properties
from localcloud.cloudformation.snapshots import SNAPSHOTS

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
# Types of which a template may choose the name, and so clash with what is there.
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
    """Refuse a template that cannot be deployed here.

    Args:
        provided: The resource types that have a provider.

    Raises:
        TemplateError: With every reason.
    """
    problems = [*_conditions(template), *_outputs(template)]
    for logical_id, resource in template["Resources"].items():
        problems += [f"Resources/{logical_id}: {what}" for what in _resource(template, resource, provided)]
    if problems:
        raise TemplateError("Template error: " + "; ".join(problems))
    dependencies(template, set(template["Resources"]))


def needed_capability(template: Mapping[str, Any]) -> str | None:
    """Return the capability that a template's IAM resources ask for."""
    kinds = [(item["Type"], item.get("Properties") or {}) for item in template["Resources"].values()]
    if any(NAMED_IAM.get(kind) in properties for kind, properties in kinds):
        return "CAPABILITY_NAMED_IAM"
    return "CAPABILITY_IAM" if any(kind in NEEDS_CAPABILITY for kind, _ in kinds) else None


def require_capabilities(template: Mapping[str, Any], given: Collection[str]) -> None:
    """Refuse IAM resources that the caller did not acknowledge.

    Raises:
        ApiError: InsufficientCapabilitiesException, with the capability that is needed.
    """
    needed = needed_capability(template)
    if needed is not None and needed not in given and "CAPABILITY_NAMED_IAM" not in given:
        raise ApiError("InsufficientCapabilitiesException", f"Requires capabilities : [{needed}]")


def _resource(template: Mapping[str, Any], resource: Mapping[str, Any], provided: Collection[str]) -> Iterator[str]:
    kind = resource["Type"]
    properties = resource.get("Properties") or {}
    if not is_custom(kind) and kind not in provided and kind not in ACCEPTED_TYPES:
        yield f"{kind} is not emulated by the local cloud, and not on its list of accepted types"
        return
    required = ["ServiceToken"] if is_custom(kind) else required_properties(kind)
    # A property that is a function as a whole cannot be looked into.
    missing = [] if "Fn::If" in properties else [name for name in required if name not in properties]
    if missing:
        yield f"{kind} needs the properties {', '.join(missing)}"
    named = resource.get("DependsOn", [])
    for name in [named] if isinstance(named, str) else named:
        if name not in template["Resources"]:
            yield f"DependsOn names {name}, which is no resource"
    if "Condition" in resource and resource["Condition"] not in template.get("Conditions", {}):
        yield f"Condition {resource['Condition']} is not defined"
    for policy in ("DeletionPolicy", "UpdateReplacePolicy"):
        if resource.get(policy) == "Snapshot" and kind not in SNAPSHOTS:
            yield f"{policy} Snapshot: here only {', '.join(SNAPSHOTS)} has snapshots; use Retain or Delete"
    for key in REFERRING:
        yield from _references(template, resource.get(key))


def _references(template: Mapping[str, Any], value: Any) -> Iterator[str]:
    resources, parameters = template["Resources"], template.get("Parameters", {})
    for name, attribute in references(value):
        if attribute is not None and name in resources:
            kind = resources[name].get("Type", "")
            if not is_custom(kind) and not has_attribute(kind, attribute):
                yield f"Fn::GetAtt {name}.{attribute}: {kind} has no such attribute"
        elif attribute is not None and name not in PSEUDO_PARAMETERS:
            yield f"Fn::GetAtt {name}.{attribute}: unresolved, there is no resource {name}"
        elif name not in resources and name not in parameters and name not in PSEUDO_PARAMETERS:
            yield f"Ref {name}: unresolved, there is no resource or parameter of this name"


def _outputs(template: Mapping[str, Any]) -> Iterator[str]:
    for name, output in template.get("Outputs", {}).items():
        where = f"Outputs/{name}"
        if not isinstance(output, Mapping) or "Value" not in output:
            yield f"{where}: Value is missing"
            continue
        if "Condition" in output and output["Condition"] not in template.get("Conditions", {}):
            yield f"{where}: Condition {output['Condition']} is not defined"
        yield from (f"{where}: {what}" for what in _references(template, [output["Value"], output.get("Export")]))


def _conditions(template: Mapping[str, Any]) -> Iterator[str]:
    parameters = template.get("Parameters", {})
    for name, condition in template.get("Conditions", {}).items():
        for referred, attribute in references(condition):
            if attribute is not None or (referred not in parameters and referred not in PSEUDO_PARAMETERS):
                yield f"Conditions/{name}: refers to {referred}; conditions know only parameters"
