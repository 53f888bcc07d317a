"""The operations of CloudFormation that only look."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from localcloud.api import Call, Handler
from localcloud.cloudformation.change_sets import template_body
from localcloud.cloudformation.errors import NoSuchChangeSet, RequestRefused, TemplateError
from localcloud.cloudformation.operations import Stacks
from localcloud.cloudformation.stack import ChangeSet, Stack
from localcloud.cloudformation.template import load_template
from localcloud.cloudformation.validation import needed_capability
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


class Queries:
    """Answers from what the stacks are now."""

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers by operation."""
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
        """Return the stack that a call names.

        Raises:
            NoSuchStack: There is none.
        """
        return self._stacks.find(str(call.parameters["StackName"]), call.region)

    def change_set(self, call: Call) -> tuple[Stack, ChangeSet]:
        """Return the change set that a call names, by name with its stack or by ARN.

        Raises:
            ApiError: NoSuchStack or NoSuchChangeSet.
        """
        name = str(call.parameters["ChangeSetName"])
        named = call.parameters.get("StackName")
        for stack in [self.stack(call)] if named else self._stacks.all(call.region):
            for change_set in list(stack.change_sets.values()):
                if name in (change_set.name if named else None, change_set.change_set_id):
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
        # A page token counts from the oldest event: newer ones that come between two pages move nothing.
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
            # What is wrong with a change set is told by the call that makes it: none that is here has failed checks.
            self.change_set(call)
            return {"OperationEvents": []}
        if p.get("StackName"):
            stacks = [self.stack(call)]
        elif p.get("OperationId"):
            stacks = self._stacks.all(call.region)
        else:
            raise RequestRefused("DescribeEvents needs a StackName, a ChangeSetName or an OperationId")
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
            raise TemplateError(f"Resource {wanted} does not exist for stack {stack.name}")
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
        else:
            configuration = self.stack(call).configuration
        # Nothing is transformed here, so both stages are the same text.
        return {"TemplateBody": configuration.template_body, "StagesAvailable": ["Original", "Processed"]}

    def _get_template_summary(self, call: Call) -> Output:
        if call.parameters.get("StackName"):
            body = self.stack(call).configuration.template_body
        else:
            body = template_body(self._stacks, call, "")
        template = load_template(body)
        types = sorted({resource["Type"] for resource in template["Resources"].values()})
        described = _description(template)
        for parameter in described["Parameters"]:
            allowed = template["Parameters"][parameter["ParameterKey"]].get("AllowedValues", [])
            parameter["ParameterConstraints"] = {"AllowedValues": [str(value) for value in allowed]}
        metadata = {"Metadata": json.dumps(template["Metadata"], default=str)} if "Metadata" in template else {}
        return {**described, "ResourceTypes": types, "DeclaredTransforms": [], **metadata}

    def _validate_template(self, call: Call) -> Output:
        described = _description(load_template(template_body(self._stacks, call, "")))
        names = ("ParameterKey", "DefaultValue", "NoEcho", "Description")
        shown = [{n: p[n] for n in names if n in p} for p in described["Parameters"]]
        return {**described, "Parameters": shown, "DeclaredTransforms": []}

    def _describe_change_set(self, call: Call) -> Output:
        stack, change_set = self.change_set(call)
        with_values = bool(call.parameters.get("IncludePropertyValues"))
        changes = change_views(stack, change_set, with_values=with_values)
        shown, more = page(changes, call.parameters.get("NextToken"))
        return {**change_set_view(stack, change_set), "Changes": shown, **more}

    def _list_change_sets(self, call: Call) -> Output:
        stack = self.stack(call)
        names = ("StackId", "StackName", "ChangeSetId", "ChangeSetName", "ExecutionStatus", "Status", "StatusReason")
        views = [change_set_view(stack, one) for one in list(stack.change_sets.values())]
        shown, more = page(views, call.parameters.get("NextToken"))
        return {
            "Summaries": [{n: v[n] for n in (*names, "CreationTime", "Description") if n in v} for v in shown],
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
        """There are no hooks here, so none has a result."""
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
        described |= {"Capabilities": [capability], "CapabilitiesReason": "The template has IAM resources."}
    return described
