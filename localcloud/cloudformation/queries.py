"""Read-only CloudFormation API operations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from localcloud.api import Call, Handler
from localcloud.cloudformation.change_sets import template_body
from localcloud.cloudformation.engine.operations import Stacks
from localcloud.cloudformation.engine.stack import ChangeSet, Stack
from localcloud.cloudformation.errors import InvalidRequest, NoSuchChangeSet, NoSuchStack, TemplateError
from localcloud.cloudformation.resource_types import paths
from localcloud.cloudformation.templates.template import load_template
from localcloud.cloudformation.templates.validation import NEEDS_CAPABILITY, needed_capability
from localcloud.cloudformation.views import (
    change_set_view,
    change_views,
    operation_event,
    page,
    resource_view,
    stack_view,
    summary_view,
)

Output = Mapping[str, Any]
# Messages for a missing stack, for operations that do not return "Stack with id NAME does not exist". Source:
# LocalStack's snapshots of AWS,
# https://github.com/localstack/localstack/tree/8b9a79f/tests/aws/services/cloudformation/api (2026-11).
NO_STACK = {
    **dict.fromkeys(
        ("CreateChangeSet", "DeleteChangeSet", "DescribeChangeSet", "DescribeStackEvents", "ExecuteChangeSet"),
        "Stack [{name}] does not exist",
    ),
    "DescribeStackResource": "Stack '{name}' does not exist",
}
INCOMPLETE = "[WARN] --include-property-values option can return incomplete ChangeSet data because: "


class Queries:
    """Handlers that return the stacks' current state."""

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation."""
        return {
            "DescribeChangeSet": self._describe_change_set,
            "DescribeEvents": self._describe_operation_events,
            "DescribeStackEvents": self._describe_events,
            "DescribeStackResource": self._describe_resource,
            "DescribeStackResources": self._describe_resources,
            "DescribeStacks": self._describe_stacks,
            "GetTemplate": self._get_template,
            "GetTemplateSummary": self._get_template_summary,
            "ListChangeSets": self._list_change_sets,
            "ListExports": self._list_exports,
            "ListHookResults": self._list_hook_results,
            "ListImports": self._list_imports,
            "ListStackResources": self._list_resources,
            "ListStacks": self._list_stacks,
            "ValidateTemplate": self._validate_template,
        }

    def stack(self, call: Call) -> Stack:
        """Return the stack named in a call.

        Raises:
            NoSuchStack: The stack does not exist.
        """
        name = str(call.parameters["StackName"])
        try:
            return self._stacks.find(name, call.region)
        except NoSuchStack:
            if call.operation not in NO_STACK:
                raise
            raise NoSuchStack(name, NO_STACK[call.operation]) from None

    def change_set(self, call: Call) -> tuple[Stack, ChangeSet]:
        """Return the change set named in a call, either by name and stack or by ARN.

        Raises:
            ApiError: NoSuchStack or NoSuchChangeSet.
        """
        name = str(call.parameters["ChangeSetName"])
        named = call.parameters.get("StackName")
        if not named and not name.startswith("arn:"):
            required = "StackName must be specified if ChangeSetName is not specified as an ARN."
            raise InvalidRequest("StackName is a required parameter." if call.operation == "GetTemplate" else required)
        for stack in [self.stack(call)] if named else self._stacks.all(call.region):
            for change_set in stack.change_sets:
                # Executed and obsolete change sets can only be found by ARN, since their names can be reused.
                if name in (change_set.name if named and change_set.holds_name else None, change_set.change_set_id):
                    return stack, change_set
        raise NoSuchChangeSet(name)

    def _describe_stacks(self, call: Call) -> Output:
        if call.parameters.get("StackName"):
            return {"Stacks": [stack_view(self.stack(call))]}
        alive = [stack for stack in self._stacks.all(call.region) if stack.status != "DELETE_COMPLETE"]
        shown, more = page(alive, call.parameters.get("NextToken"))
        return {"Stacks": [stack_view(stack) for stack in shown], **more}

    def _list_stacks(self, call: Call) -> Output:
        wanted = call.parameters.get("StackStatusFilter") or []
        found = [s for s in self._stacks.all(call.region) if not wanted or s.status in wanted]
        shown, more = page(found, call.parameters.get("NextToken"))
        return {"StackSummaries": [summary_view(stack) for stack in shown], **more}

    def _describe_events(self, call: Call) -> Output:
        stack = self.stack(call)
        # Page tokens count from the oldest event, so events recorded between two pages do not shift them.
        token = call.parameters.get("NextToken")
        events = list(stack.events)
        if token is not None and not token.isdigit():
            raise TemplateError(f"NextToken {token} is not valid")
        older = events[: int(token)] if token is not None else events
        shown, rest = older[-100:], older[:-100]
        more = {"NextToken": str(len(rest))} if rest else {}
        return {"StackEvents": list(reversed(shown)), **more}

    def _describe_operation_events(self, call: Call) -> Output:
        p = call.parameters
        if p.get("ChangeSetName"):
            # CreateChangeSet reports validation errors, so a stored change set is always valid.
            self.change_set(call)
            return {"OperationEvents": []}
        if p.get("StackName"):
            stacks = [self.stack(call)]
        elif p.get("OperationId"):
            stacks = self._stacks.all(call.region)
        else:
            raise InvalidRequest("DescribeEvents requires StackName, ChangeSetName or OperationId")
        events = [operation_event(e, stack.operations) for stack in stacks for e in reversed(list(stack.events))]
        if p.get("OperationId"):
            events = [event for event in events if event.get("OperationId") == p["OperationId"]]
        if p.get("Filters", {}).get("FailedEvents"):
            events = [event for event in events if event["ResourceStatus"].endswith("_FAILED")]
        shown, more = page(events, p.get("NextToken"))
        return {"OperationEvents": shown, **more}

    def _describe_resources(self, call: Call) -> Output:
        p = call.parameters
        if p.get("StackName"):
            stack = self.stack(call)
        else:
            physical_id = p.get("PhysicalResourceId")
            owners = [
                stack
                for stack in self._stacks.all(call.region)
                if stack.exists and physical_id in [r.physical_id for r in list(stack.resources.values())]
            ]
            if not owners:
                raise TemplateError(f"Stack for {physical_id} does not exist")
            stack = owners[0]
        wanted = p.get("LogicalResourceId")
        return {"StackResources": [view for view in _resources(stack) if wanted in (None, view["LogicalResourceId"])]}

    def _describe_resource(self, call: Call) -> Output:
        stack = self.stack(call)
        wanted = str(call.parameters["LogicalResourceId"])
        resource = stack.resources.get(wanted)
        if resource is None:
            raise TemplateError(f"Resource {wanted} does not exist for stack {call.parameters['StackName']}")
        metadata = json.dumps(resource.definition.get("Metadata", {}), default=str)
        with stack.lock:
            view = resource_view(stack, resource)
        return {"StackResourceDetail": {**view, "Metadata": metadata}}

    def _list_resources(self, call: Call) -> Output:
        shown, more = page(_resources(self.stack(call)), call.parameters.get("NextToken"))
        return {"StackResourceSummaries": shown, **more}

    def _get_template(self, call: Call) -> Output:
        if call.parameters.get("ChangeSetName"):
            configuration = self.change_set(call)[1].configuration
        elif call.parameters.get("StackName"):
            configuration = self.stack(call).configuration
        else:
            raise InvalidRequest("StackName is required if ChangeSetName is not specified.")
        # Transforms are not emulated, so both stages are the same. A stack under review does not have a template yet.
        return {"TemplateBody": configuration.template_body or None, "StagesAvailable": ["Original", "Processed"]}

    def _get_template_summary(self, call: Call) -> Output:
        if call.parameters.get("StackName"):
            stack = self.stack(call)
            if stack.status == "REVIEW_IN_PROGRESS":
                raise InvalidRequest("GetTemplateSummary cannot be called on REVIEW_IN_PROGRESS stacks.")
            body = stack.configuration.template_body
        else:
            body = template_body(self._stacks, call, "")
        template = load_template(body)
        resources = template["Resources"]
        types = sorted({resource["Type"] for resource in resources.values()})
        described = _description(template)
        for parameter in described["Parameters"]:
            allowed = template["Parameters"][parameter["ParameterKey"]].get("AllowedValues", [])
            parameter["ParameterConstraints"] = {"AllowedValues": [str(value) for value in allowed]} if allowed else {}
        identified = [
            {
                "ResourceType": kind,
                "LogicalResourceIds": [name for name, resource in resources.items() if resource["Type"] == kind],
                "ResourceIdentifiers": [".".join(path) for path in paths(kind, "primaryIdentifier")],
            }
            for kind in types
        ]
        shown = {"Version": template.get("AWSTemplateFormatVersion", "2010-09-09")}
        if "Metadata" in template:
            shown["Metadata"] = json.dumps(template["Metadata"], default=str)
        return {**described, "ResourceTypes": types, "ResourceIdentifierSummaries": identified, **shown}

    def _validate_template(self, call: Call) -> Output:
        described = _description(load_template(template_body(self._stacks, call, "")))
        names = ("ParameterKey", "DefaultValue", "NoEcho", "Description")
        shown = [{n: p[n] for n in names if n in p} for p in described["Parameters"]]
        return {**described, "Parameters": shown}

    def _describe_change_set(self, call: Call) -> Output:
        stack, change_set = self.change_set(call)
        with_values = bool(call.parameters.get("IncludePropertyValues"))
        changes = change_views(stack, change_set, with_values=with_values)
        shown, more = page(changes, call.parameters.get("NextToken"))
        view = change_set_view(stack, change_set)
        if with_values and change_set.warnings:
            view["StatusReason"] = INCOMPLETE + ", ".join(change_set.warnings)
        return {**view, "Changes": shown, **more}

    def _list_change_sets(self, call: Call) -> Output:
        stack = self.stack(call)
        names = ("StackId", "StackName", "ChangeSetId", "ChangeSetName", "ExecutionStatus", "Status", "StatusReason")
        more_names = ("CreationTime", "Description", "IncludeNestedStacks")
        views = [change_set_view(stack, one) for one in stack.change_sets if one.is_open]
        shown, more = page(views, call.parameters.get("NextToken"))
        return {
            "Summaries": [{n: v[n] for n in (*names, *more_names) if n in v} for v in shown],
            **more,
        }

    def _list_exports(self, call: Call) -> Output:
        exports = [
            {"ExportingStackId": stack.stack_id, "Name": name, "Value": value}
            for stack in self._stacks.all(call.region)
            if stack.exists
            for name, value in stack.exports().items()
        ]
        shown, more = page(exports, call.parameters.get("NextToken"))
        return {"Exports": shown, **more}

    def _list_imports(self, call: Call) -> Output:
        name = str(call.parameters["ExportName"])
        users = self._stacks.importers(name, call.region)
        if not users:
            raise TemplateError(f"Export '{name}' is not imported by any stack.")
        return {"Imports": users}

    def _list_hook_results(self, call: Call) -> Output:
        """Return an empty list, since hooks are not emulated."""
        return {"HookResults": []}


def _resources(stack: Stack) -> list[dict[str, Any]]:
    with stack.lock:
        return [resource_view(stack, resource) for resource in stack.resources.values()]


def _description(template: Mapping[str, Any]) -> dict[str, Any]:
    parameters = []
    for name, declared in template.get("Parameters", {}).items():
        shown = {"ParameterKey": name, "ParameterType": declared["Type"]}
        shown["NoEcho"] = str(declared.get("NoEcho", False)).lower() == "true"
        if "Default" in declared:
            shown["DefaultValue"] = str(declared["Default"])
        if "Description" in declared:
            shown["Description"] = declared["Description"]
        parameters.append(shown)
    described: dict[str, Any] = {"Parameters": parameters}
    if "Description" in template:
        described["Description"] = str(template["Description"])
    capability = needed_capability(template)
    if capability is not None:
        types = sorted({resource["Type"] for resource in template["Resources"].values()} & NEEDS_CAPABILITY)
        reason = f"The following resource(s) require capabilities: [{', '.join(types)}]"
        described |= {"Capabilities": [capability], "CapabilitiesReason": reason}
    return described
