"""Evaluates the functions in resource definitions, so that the definitions can be stored and compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localcloud.cloudformation.errors import TemplateError
from localcloud.cloudformation.templates.intrinsics import Resolver

# Type, DependsOn and Condition are omitted. As on AWS, changing only these keys does not count as a change.
ATTRIBUTES = ("Metadata", "DeletionPolicy", "UpdateReplacePolicy", "UpdatePolicy", "CreationPolicy")
PROVIDER_ATTRIBUTES = ("UpdatePolicy", "CreationPolicy")


def evaluate(resolver: Resolver, definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return a resource's type, properties and attributes with their functions evaluated."""
    evaluated = {"Type": definition["Type"], "Properties": resolver.resolve(definition.get("Properties") or {})}
    for name in ATTRIBUTES:
        if name in definition:
            evaluated[name] = resolver.resolve(definition[name])
    return evaluated


def evaluate_output(resolver: Resolver, name: str, output: Mapping[str, Any]) -> dict[str, Any]:
    """Return an output's value, description and export name.

    Raises:
        TemplateError: The value or the name is not a string, number or boolean. The message matches CloudFormation's.
    """
    shown = {"OutputKey": name, "OutputValue": resolver.resolve(output["Value"])}
    if isinstance(shown["OutputValue"], (dict, list)):
        raise TemplateError("Template format error: The Value field of every Outputs member must evaluate to a String.")
    if "Description" in output:
        shown["Description"] = output["Description"]
    if "Export" in output:
        shown["ExportName"] = resolver.resolve(output["Export"]["Name"])
        if isinstance(shown["ExportName"], (dict, list)):
            raise TemplateError(
                f"Template format error: Output {name} is malformed. The Name field of every Export member must "
                "be specified and evaluate to a String."
            )
    return shown


def changed_attributes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the attributes that differ between two evaluated definitions."""
    return [name for name in ATTRIBUTES if old.get(name) != new.get(name)]
