"""Computes a change set's changes without creating anything.

Values known only after the deployment are `Unknown`: the IDs of new and replaced resources, and the attributes of
updated resources. The names, IDs and ARNs of resources that are updated in place do not change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from typing import Any

from localcloud.cloudformation.engine.stack import Resource
from localcloud.cloudformation.errors import TemplateError
from localcloud.cloudformation.resource_types import is_taggable
from localcloud.cloudformation.templates.definition import changed_attributes, evaluate, evaluate_output
from localcloud.cloudformation.templates.graph import dependencies, references
from localcloud.cloudformation.templates.intrinsics import MakeResolver, Unknown
from localcloud.cloudformation.updates.replacement import PropertyChange, property_changes, replaces

STABLE_SUFFIXES = ("Arn", "ARN", "Id", "Name")


class Plan:
    """The changes that a template makes to a stack's resources, in dependency order.

    Args:
        notes: List to which the resolvers add the reasons for unknown values.

    Attributes:
        warnings: Resources whose values are unknown for one of these reasons, in CloudFormation's wording.
    """

    def __init__(
        self,
        template: Mapping[str, Any],
        resources: Mapping[str, Resource],
        make_resolver: MakeResolver,
        changed_parameters: frozenset[str] = frozenset(),
        old_template: Mapping[str, Any] | None = None,
        notes: list[str] | None = None,
    ) -> None:
        self._notes = [] if notes is None else notes
        self.warnings: list[str] = []
        self._template = template
        self._changed_parameters = changed_parameters
        self._old_template = old_template or {}
        self._block = "Resources"
        self._resources = resources
        self._included: set[str] = set()
        self._new_or_replaced: set[str] = set()
        self._changed: set[str] = set()
        self._problems: list[str] = []
        self._resolver = make_resolver(self._ref, self._get_att)

    def require_rules(self) -> None:
        """Check the parameters against the template's Rules.

        Raises:
            TemplateError: One or more assertions failed. The message lists all of them.
        """
        failed = self._resolver.assertions_failed()
        if failed:
            raise TemplateError("Template constraint error: " + "; ".join(failed))

    def changes(self, *, tags_changed: bool) -> list[dict[str, Any]]:
        """Return the changes, including property values, in boto3's shape.

        Raises:
            TemplateError: CloudFormation does not support one or more changes. The message lists all of them.
        """
        wanted = self._template["Resources"]
        self._included = {name for name, item in wanted.items() if self._resolver.includes(item)}
        changes = []
        for logical_id in TopologicalSorter(dependencies(self._template, self._included)).static_order():
            change = self._change(logical_id, wanted[logical_id], tags_changed)
            if change is not None:
                changes.append(change)
        old = self._old_template.get("Resources", {})
        changes += [_removal(r, old.get(n, {})) for n, r in self._resources.items() if n not in self._included]
        self._block = "Outputs"
        for name, output in self._template.get("Outputs", {}).items():
            # Report errors in outputs now. Otherwise, they would appear only after all resources exist.
            if self._resolver.includes(output):
                evaluate_output(self._resolver, name, output)
        if self._problems:
            raise TemplateError("; ".join(self._problems))
        return [{"Type": "Resource", "ResourceChange": change} for change in changes]

    def _change(self, logical_id: str, definition: Mapping[str, Any], tags_changed: bool) -> dict[str, Any] | None:
        self._notes.clear()
        after = evaluate(self._resolver, definition)
        self.warnings += [f"ChangeSet creation failed for resource [{logical_id}] because: {n}" for n in self._notes]
        before = self._resources.get(logical_id)
        head = {"LogicalResourceId": logical_id, "ResourceType": definition["Type"]}
        if before is None or before.status == "CREATE_FAILED":
            self._new_or_replaced.add(logical_id)
            return {"Action": "Add", **head, "Scope": [], "Details": [], "AfterContext": _context(after)}
        if before.type_name != definition["Type"]:
            self._problems.append(
                "Update of resource type is not permitted. The new template modifies resource type of the following "
                f"resources: [{logical_id}]"
            )
            return None
        properties = property_changes(before.type_name, before.definition, after)
        self._problems += [f"{logical_id}: {change.problem}" for change in properties if change.problem]
        details = [detail for change in properties for detail in self._details(logical_id, change)]
        details += self._possible(logical_id, before, {change.path[0] for change in properties})
        attributes = changed_attributes(before.definition, after)
        scope = (["Properties"] if details else []) + attributes
        declared = self._template["Resources"][logical_id]
        for name in attributes:
            details += self._caused(_plain_target(name), declared.get(name))
        if tags_changed and is_taggable(before.type_name):
            details += self._caused(_plain_target("Tags"), None)
            scope.append("Tags")
        if not details:
            return None
        replacement = replaces(properties)
        if replacement != "False":
            self._new_or_replaced.add(logical_id)
        elif "Properties" in scope:
            self._changed.add(logical_id)
        change = {
            "Action": "Modify",
            **head,
            "PhysicalResourceId": before.physical_id,
            "Replacement": replacement,
            "Scope": scope,
            "Details": details,
            "BeforeContext": _context(before.definition),
            "AfterContext": _context(after),
        }
        if replacement == "True":
            keeps = after.get("UpdateReplacePolicy", "Delete")
            change["PolicyAction"] = {"Retain": "ReplaceAndRetain", "Snapshot": "ReplaceAndSnapshot"}.get(
                keeps, "ReplaceAndDelete"
            )
        return change

    def _details(self, logical_id: str, change: PropertyChange) -> Iterator[dict[str, Any]]:
        """Yield a changed property's details."""
        kind = "Add" if change.before is None else "Remove" if change.after is None else "Modify"
        target = {
            "Attribute": "Properties",
            "Name": change.path[0],
            "RequiresRecreation": change.recreation,
            "Path": "/Properties/" + "/".join(change.path),
            "AttributeChangeType": kind,
        }
        if change.before is not None:
            target["BeforeValue"] = _shown(change.before)
        if change.after is not None:
            target["AfterValue"] = _shown(change.after)
        raw = self._template["Resources"][logical_id].get("Properties", {}).get(change.path[0])
        return self._caused(target, raw, change.is_static)

    def _caused(self, target: Mapping[str, Any], raw: Any, is_static: bool = True) -> Iterator[dict[str, Any]]:
        """Yield the details of a change: the references that cause it, and the change itself.

        Source: https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_ResourceChangeDetail.html
        (2026-11).
        """
        causes = list(self._causes(raw))
        for source, entity in causes:
            # An attribute of a resource that is updated in place may keep its value.
            evaluation = "Dynamic" if entity.partition(".")[0] in self._changed else "Static"
            yield {"Target": target, "Evaluation": evaluation, "ChangeSource": source, "CausingEntity": entity}
        evaluation = "Dynamic" if causes or not is_static else "Static"
        yield {"Target": target, "Evaluation": evaluation, "ChangeSource": "DirectModification"}

    def _possible(self, logical_id: str, before: Resource, changed: set[str]) -> Iterator[dict[str, Any]]:
        """Yield the details of properties that may change because a referenced value changes.

        As on AWS, DescribeChangeSet does not show them with IncludePropertyValues. Source: test_change_set_fn_get_attr
        in https://github.com/localstack/localstack/tree/8b9a79f/tests/aws/services/cloudformation.
        """
        declared = self._template["Resources"][logical_id].get("Properties") or {}
        for name in declared.keys() - changed:
            causes = list(self._causes(declared[name]))
            probe = {"Properties": {name: Unknown(name)}} if causes else {}
            for change in property_changes(before.type_name, {}, probe):
                target = {"Attribute": "Properties", "Name": name, "RequiresRecreation": change.recreation}
                for source, entity in causes:
                    yield {
                        "Target": target,
                        "Evaluation": "Dynamic",
                        "ChangeSource": source,
                        "CausingEntity": entity,
                    }

    def _causes(self, raw: Any) -> Iterator[tuple[str, str]]:
        """Yield the references that can change a value, as (ChangeSource, CausingEntity)."""
        for name, attribute in dict.fromkeys(references(raw)):
            if name in self._changed_parameters:
                yield "ParameterReference", name
            elif attribute is None and name in self._new_or_replaced:
                yield "ResourceReference", name
            elif attribute is not None and (name in self._new_or_replaced or self._moves(name, attribute)):
                yield "ResourceAttribute", f"{name}.{attribute}"

    def _is_set(self, logical_id: str, attribute: str) -> bool:
        """Return True if an attribute is a property that the current template sets."""
        return attribute.partition(".")[0] in self._resources[logical_id].properties

    def _moves(self, logical_id: str, attribute: str) -> bool:
        """Return True if an update in place may change an attribute."""
        if logical_id not in self._changed:
            return False
        return self._is_set(logical_id, attribute) or not attribute.endswith(STABLE_SUFFIXES)

    def _require(self, logical_id: str) -> None:
        if logical_id not in self._included:
            prefix = "Template format error: " if self._block == "Resources" else ""
            raise TemplateError(
                f"{prefix}Unresolved resource dependencies [{logical_id}] in the {self._block} block of the template"
            )

    def _ref(self, logical_id: str) -> Any:
        self._require(logical_id)
        if logical_id in self._new_or_replaced or logical_id not in self._resources:
            return Unknown(logical_id)
        return self._resources[logical_id].physical_id

    def _get_att(self, logical_id: str, attribute: str) -> Any:
        self._require(logical_id)
        unknown = Unknown(f"{logical_id}.{attribute}")
        if logical_id in self._new_or_replaced or logical_id not in self._resources:
            return unknown
        if self._moves(logical_id, attribute) and not self._is_set(logical_id, attribute):
            return unknown
        try:
            return self._resources[logical_id].attribute(attribute)
        except KeyError:
            return unknown


def _removal(resource: Resource, declared: Mapping[str, Any]) -> dict[str, Any]:
    before = {
        **resource.definition,
        "Properties": _without_references(resource.properties, declared.get("Properties") or {}),
    }
    policy = resource.definition.get("DeletionPolicy", "Delete")
    return {
        "Action": "Remove",
        "LogicalResourceId": resource.logical_id,
        "PhysicalResourceId": resource.physical_id,
        "ResourceType": resource.type_name,
        "PolicyAction": {"Delete": "Delete", "Snapshot": "Snapshot"}.get(policy, "Retain"),
        "Scope": [],
        "Details": [],
        "BeforeContext": _context(before),
    }


def _without_references(value: Any, declared: Any) -> Any:
    """Return the value that AWS reports for a removed resource's property, or unknown if it references a resource."""
    if isinstance(declared, Mapping) and any(name == "Ref" or name.startswith("Fn::") for name in declared):
        is_reference = any("::" not in name for name, _ in references(declared))
        return str(Unknown("")) if is_reference else value
    if isinstance(declared, Mapping) and isinstance(value, Mapping):
        return {key: _without_references(item, declared.get(key)) for key, item in value.items()}
    return value


def _plain_target(attribute: str) -> dict[str, Any]:
    return {"Attribute": attribute, "RequiresRecreation": "Never"}


def _context(definition: Mapping[str, Any]) -> str:
    return json.dumps({key: value for key, value in definition.items() if key != "Type"}, default=str, sort_keys=True)


def _shown(value: Any) -> str:
    return json.dumps(value, default=str, sort_keys=True) if isinstance(value, (dict, list)) else str(value)
