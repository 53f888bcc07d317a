"""What a template would do to a stack: the changes of a change set, found without making anything.

Values that only the deploy will know are `Unknown`: the id of a resource that is new or replaced, an attribute of one
that changes. Names, ids and ARNs of a resource that is changed in place stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from graphlib import TopologicalSorter
from typing import Any

from localcloud.cloudformation.definition import changed_attributes, evaluate
from localcloud.cloudformation.errors import TemplateError
from localcloud.cloudformation.graph import dependencies, references
from localcloud.cloudformation.intrinsics import Resolver, Unknown
from localcloud.cloudformation.replacement import PropertyChange, property_changes, replaces
from localcloud.cloudformation.schemas import is_taggable
from localcloud.cloudformation.stack import Resource

STABLE_SUFFIXES = ("Arn", "ARN", "Id", "Name")
MakeResolver = Callable[[Callable[[str], Any], Callable[[str, str], Any]], Resolver]


class Plan:
    """The changes that a template makes to the resources of a stack, in the order of their dependencies."""

    def __init__(
        self, template: Mapping[str, Any], resources: Mapping[str, Resource], make_resolver: MakeResolver
    ) -> None:
        self._template = template
        self._resources = resources
        self._included: set[str] = set()
        self._fresh: set[str] = set()
        self._changed: set[str] = set()
        self._problems: list[str] = []
        self._resolver = make_resolver(self._ref, self._get_att)

    def require_rules(self) -> None:
        """Refuse parameters that the template's Rules do not admit.

        Raises:
            TemplateError: With every assertion that does not hold.
        """
        failed = self._resolver.assertions_failed()
        if failed:
            raise TemplateError("Template constraint error: " + "; ".join(failed))

    def changes(self, *, tags_changed: bool) -> list[dict[str, Any]]:
        """Return the changes in boto3's shape, with property values.

        Raises:
            TemplateError: A change is none that AWS can make; all such changes in one message.
        """
        wanted = self._template["Resources"]
        self._included = {name for name, item in wanted.items() if self._resolver.includes(item)}
        changes = []
        for logical_id in TopologicalSorter(dependencies(self._template, self._included)).static_order():
            change = self._change(logical_id, wanted[logical_id], tags_changed)
            if change is not None:
                changes.append(change)
        changes += [_removal(r) for name, r in self._resources.items() if name not in self._included]
        for output in self._template.get("Outputs", {}).values():
            # Evaluated for what it finds: better now than after everything is made.
            if self._resolver.includes(output):
                self._resolver.resolve([output["Value"], output.get("Export")])
        if self._problems:
            raise TemplateError("; ".join(self._problems))
        return [{"Type": "Resource", "ResourceChange": change} for change in changes]

    def _change(self, logical_id: str, definition: Mapping[str, Any], tags_changed: bool) -> dict[str, Any] | None:
        after = evaluate(self._resolver, definition)
        before = self._resources.get(logical_id)
        head = {"LogicalResourceId": logical_id, "ResourceType": definition["Type"]}
        if before is None or before.status == "CREATE_FAILED":
            self._fresh.add(logical_id)
            return {"Action": "Add", **head, "Scope": [], "Details": [], "AfterContext": _context(after)}
        if before.type_name != definition["Type"]:
            self._problems.append(
                "Update of resource type is not permitted. The new template modifies resource type of the following "
                f"resources: [{logical_id}]"
            )
            return None
        properties = property_changes(before.type_name, before.definition, after)
        self._problems += [f"{logical_id}: {change.problem}" for change in properties if change.problem]
        details = [self._detail(logical_id, change) for change in properties]
        attributes = changed_attributes(before.definition, after)
        details += [_plain_detail(name) for name in attributes]
        scope = (["Properties"] if properties else []) + attributes
        if tags_changed and is_taggable(before.type_name):
            details.append(_plain_detail("Tags"))
            scope.append("Tags")
        if not details:
            return None
        replacement = replaces(properties)
        if replacement != "False":
            self._fresh.add(logical_id)
        elif properties:
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

    def _detail(self, logical_id: str, change: PropertyChange) -> dict[str, Any]:
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
        detail: dict[str, Any] = {"Target": target, "Evaluation": "Static", "ChangeSource": "DirectModification"}
        if not change.is_static:
            detail["Evaluation"] = "Dynamic"
            raw = self._template["Resources"][logical_id].get("Properties", {}).get(change.path[0])
            for source, entity in self._causes(raw):
                detail |= {"ChangeSource": source, "CausingEntity": entity}
        return detail

    def _causes(self, raw: Any) -> Iterator[tuple[str, str]]:
        """Yield what of the stack makes a value unknown: (ChangeSource, CausingEntity)."""
        for logical_id, attribute in references(raw):
            if attribute is None and logical_id in self._fresh:
                yield "ResourceReference", logical_id
            elif attribute is not None and logical_id in self._fresh | self._changed:
                yield "ResourceAttribute", f"{logical_id}.{attribute}"

    def _require(self, logical_id: str) -> None:
        if logical_id not in self._included:
            raise TemplateError(
                f"Template format error: Unresolved resource dependencies [{logical_id}]: its condition is false"
            )

    def _ref(self, logical_id: str) -> Any:
        self._require(logical_id)
        if logical_id in self._fresh or logical_id not in self._resources:
            return Unknown(logical_id)
        return self._resources[logical_id].physical_id

    def _get_att(self, logical_id: str, attribute: str) -> Any:
        self._require(logical_id)
        unknown = Unknown(f"{logical_id}.{attribute}")
        is_moving = logical_id in self._changed and not attribute.endswith(STABLE_SUFFIXES)
        if logical_id in self._fresh or is_moving or logical_id not in self._resources:
            return unknown
        return self._resources[logical_id].attributes.get(attribute, unknown)


def _removal(resource: Resource) -> dict[str, Any]:
    policy = resource.definition.get("DeletionPolicy", "Delete")
    return {
        "Action": "Remove",
        "LogicalResourceId": resource.logical_id,
        "PhysicalResourceId": resource.physical_id,
        "ResourceType": resource.type_name,
        "PolicyAction": {"Delete": "Delete", "Snapshot": "Snapshot"}.get(policy, "Retain"),
        "Scope": [],
        "Details": [],
        "BeforeContext": _context(resource.definition),
    }


def _plain_detail(attribute: str) -> dict[str, Any]:
    return {
        "Target": {"Attribute": attribute, "RequiresRecreation": "Never"},
        "Evaluation": "Static",
        "ChangeSource": "DirectModification",
    }


def _context(definition: Mapping[str, Any]) -> str:
    return json.dumps({key: value for key, value in definition.items() if key != "Type"}, default=str, sort_keys=True)


def _shown(value: Any) -> str:
    return json.dumps(value, default=str, sort_keys=True) if isinstance(value, (dict, list)) else str(value)
