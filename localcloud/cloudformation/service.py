"""The CloudFormation API, as the AWS SDKs and the CDK command line call it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from localcloud.api import ApiError, Call, Clients, Handler, Observer
from localcloud.cloudformation.change_sets import make_change_set, stack_for, template_body
from localcloud.cloudformation.drift import DriftDetections
from localcloud.cloudformation.errors import NoSuchChangeSet, TemplateError
from localcloud.cloudformation.operations import Stacks
from localcloud.cloudformation.provider import Provider
from localcloud.cloudformation.stack import ChangeSet, Stack
from localcloud.cloudformation.template import load_template
from localcloud.cloudformation.views import change_set_view, page, resource_view, stack_view

Output = Mapping[str, Any]


class CloudFormationService:
    """All of CloudFormation (api.Service); an operation that is not here is not supported."""

    name = "cloudformation"

    def __init__(self, clients: Clients, providers: Mapping[str, Provider] | None = None) -> None:
        if providers is None:
            from localcloud.cloudformation.providers import registry

            providers = registry()
        self.stacks = Stacks(clients, providers)
        self._drifts = DriftDetections(self.stacks)
        self._lock = threading.Lock()

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers by operation."""
        return {
            "CreateStack": self._create_stack,
            "UpdateStack": self._update_stack,
            "DeleteStack": self._delete_stack,
            "DescribeStacks": self._describe_stacks,
            "ListStacks": self._list_stacks,
            "DescribeStackEvents": self._describe_events,
            "DescribeEvents": self._describe_operation_events,
            "DescribeStackResources": self._describe_resources,
            "DescribeStackResource": self._describe_resource,
            "ListStackResources": self._list_resources,
            "GetTemplate": self._get_template,
            "GetTemplateSummary": self._get_template_summary,
            "ValidateTemplate": self._validate_template,
            "CreateChangeSet": self._create_change_set,
            "DescribeChangeSet": self._describe_change_set,
            "ExecuteChangeSet": self._execute_change_set,
            "DeleteChangeSet": self._delete_change_set,
            "ListChangeSets": self._list_change_sets,
            "ListExports": self._list_exports,
            "ListImports": self._list_imports,
            "UpdateTerminationProtection": self._update_termination_protection,
            **self._drifts.operations(),
        }

    def observers(self) -> Mapping[tuple[str, str], Observer]:
        """Observe nothing."""
        return {}

    def http(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Take the answers of custom resources' functions."""
        kind, _, token = path.partition("/")
        if method != "PUT" or kind != "response" or not token:
            return 404, b""
        self.stacks.custom.receive(token, body)
        return 200, b""

    def close(self) -> None:
        """Let operations under way end."""
        self.stacks.close()

    def _find(self, call: Call) -> Stack:
        return self.stacks.find(str(call.parameters["StackName"]), call.region)

    def _create_stack(self, call: Call) -> Output:
        return self._change_now(call, "CREATE")

    def _update_stack(self, call: Call) -> Output:
        return self._change_now(call, "UPDATE")

    def _change_now(self, call: Call, kind: str) -> Output:
        with self._lock:
            stack = stack_for(self.stacks, call, kind)
            try:
                change_set = make_change_set(self.stacks, call, kind, stack, "direct")
                if change_set.status == "FAILED":
                    raise TemplateError("No updates are to be performed.")
            except ApiError:
                if kind == "CREATE":
                    self.stacks.remove(stack)
                raise
            self._execute(stack, change_set, call)
        return {"StackId": stack.stack_id}

    def _execute(self, stack: Stack, change_set: ChangeSet, call: Call) -> None:
        p = call.parameters
        token = p.get("ClientRequestToken")
        disable_rollback = bool(p.get("DisableRollback")) or change_set.on_failure == "DO_NOTHING"
        stack.role_arn = change_set.role_arn
        stack.disable_rollback = disable_rollback
        stack.termination_protection = bool(p.get("EnableTerminationProtection", stack.termination_protection))
        stack.change_set_id = change_set.change_set_id if change_set.name != "direct" else None
        change_set.execution_status = "EXECUTE_IN_PROGRESS"
        if change_set.kind == "CREATE":
            stack.tags = change_set.tags
        stack.set_status(f"{change_set.kind}_IN_PROGRESS", token, "User Initiated")

        def act() -> None:
            self.stacks.deploy(stack, change_set, token, disable_rollback=disable_rollback)

        self.stacks.start(act, stack, f"{change_set.kind}_FAILED", token)

    def _delete_stack(self, call: Call) -> Output:
        p = call.parameters
        known = [s for s in self.stacks.all(call.region) if p["StackName"] in (s.name, s.stack_id)]
        alive = [s for s in known if s.status != "DELETE_COMPLETE"]
        if not alive:
            return {}
        stack = alive[0]
        if stack.termination_protection:
            raise TemplateError(f"Stack [{stack.name}] cannot be deleted while TerminationProtection is enabled")
        with self._lock:
            if stack.is_busy:
                raise TemplateError(f"Stack [{stack.name}] is in {stack.status}; wait for its end")
            token = p.get("ClientRequestToken")
            if p.get("RoleARN"):
                stack.role_arn = p["RoleARN"]
            stack.set_status("DELETE_IN_PROGRESS", token, "User Initiated")
        retain = set(p.get("RetainResources", []))
        self.stacks.start(lambda: self.stacks.delete(stack, token, retain), stack, "DELETE_FAILED", token)
        return {}

    def _describe_stacks(self, call: Call) -> Output:
        if call.parameters.get("StackName"):
            return {"Stacks": [stack_view(self._find(call))]}
        alive = [stack for stack in self.stacks.all(call.region) if stack.status != "DELETE_COMPLETE"]
        shown, more = page(alive, call.parameters.get("NextToken"))
        return {"Stacks": [stack_view(stack) for stack in shown], **more}

    def _list_stacks(self, call: Call) -> Output:
        wanted = call.parameters.get("StackStatusFilter") or []
        found = [s for s in self.stacks.all(call.region) if not wanted or s.status in wanted]
        shown, more = page([stack_view(stack) for stack in found], call.parameters.get("NextToken"))
        return {"StackSummaries": shown, **more}

    def _describe_events(self, call: Call) -> Output:
        stack = self._find(call)
        shown, more = page(list(reversed(stack.events)), call.parameters.get("NextToken"))
        return {"StackEvents": shown, **more}

    def _describe_operation_events(self, call: Call) -> Output:
        p = call.parameters
        name = p.get("StackName") or p.get("ChangeSetName", "")
        stack = self.stacks.find(str(name), call.region)
        shown, more = page(list(reversed(stack.events)), p.get("NextToken"))
        return {"OperationEvents": shown, **more}

    def _describe_resources(self, call: Call) -> Output:
        stack = self._find(call)
        wanted = call.parameters.get("LogicalResourceId")
        views = [resource_view(stack, r) for n, r in stack.resources.items() if wanted in (None, n)]
        return {"StackResources": views}

    def _describe_resource(self, call: Call) -> Output:
        stack = self._find(call)
        wanted = str(call.parameters["LogicalResourceId"])
        if wanted not in stack.resources:
            raise TemplateError(f"Resource {wanted} does not exist for stack {stack.name}")
        view = resource_view(stack, stack.resources[wanted])
        view["Metadata"] = json.dumps(stack.resources[wanted].definition.get("Metadata", {}))
        return {"StackResourceDetail": view}

    def _list_resources(self, call: Call) -> Output:
        stack = self._find(call)
        views = [resource_view(stack, resource) for resource in stack.resources.values()]
        shown, more = page(views, call.parameters.get("NextToken"))
        return {"StackResourceSummaries": shown, **more}

    def _get_template(self, call: Call) -> Output:
        p = call.parameters
        if p.get("ChangeSetName"):
            body = self._find_change_set(call)[1].template_body
        else:
            body = self._find(call).template_body
        return {"TemplateBody": body, "StagesAvailable": ["Original", "Processed"]}

    def _get_template_summary(self, call: Call) -> Output:
        if call.parameters.get("StackName"):
            body = self._find(call).template_body
        else:
            body = template_body(self.stacks, call, "")
        return _summary(load_template(body)) | {
            "ResourceTypes": sorted({r["Type"] for r in load_template(body)["Resources"].values()})
        }

    def _validate_template(self, call: Call) -> Output:
        summary = _summary(load_template(template_body(self.stacks, call, "")))
        return {name: value for name, value in summary.items() if name in ("Parameters", "Description", "Capabilities")}

    def _create_change_set(self, call: Call) -> Output:
        p = call.parameters
        kind = str(p.get("ChangeSetType", "UPDATE"))
        if kind == "IMPORT":
            raise TemplateError("ChangeSetType IMPORT: the local cloud imports no resources")
        with self._lock:
            stack = stack_for(self.stacks, call, kind)
            name = str(p["ChangeSetName"])
            if name in stack.change_sets:
                raise ApiError("AlreadyExistsException", f"ChangeSet {name} already exists for stack {stack.name}")
            try:
                change_set = make_change_set(self.stacks, call, kind, stack, name)
            except ApiError:
                if kind == "CREATE" and not stack.change_sets:
                    self.stacks.remove(stack)
                raise
            stack.change_sets[name] = change_set
        return {"Id": change_set.change_set_id, "StackId": stack.stack_id}

    def _find_change_set(self, call: Call) -> tuple[Stack, ChangeSet]:
        name = str(call.parameters["ChangeSetName"])
        if call.parameters.get("StackName"):
            stacks = [self._find(call)]
        else:
            stacks = self.stacks.all(call.region)
        for stack in stacks:
            for change_set in stack.change_sets.values():
                if name in (change_set.name, change_set.change_set_id):
                    return stack, change_set
        raise NoSuchChangeSet(name)

    def _describe_change_set(self, call: Call) -> Output:
        stack, change_set = self._find_change_set(call)
        view = change_set_view(stack, change_set)
        shown, more = page(change_set.changes, call.parameters.get("NextToken"))
        return {**view, "Changes": shown, **more}

    def _execute_change_set(self, call: Call) -> Output:
        stack, change_set = self._find_change_set(call)
        with self._lock:
            if change_set.execution_status != "AVAILABLE":
                raise ApiError(
                    "InvalidChangeSetStatus",
                    f"ChangeSet [{change_set.change_set_id}] cannot be executed in its current status of "
                    f"[{change_set.status}] and execution status of [{change_set.execution_status}]",
                )
            if stack.is_busy:
                raise TemplateError(f"Stack:{stack.stack_id} is in {stack.status} state and can not be updated.")
            # The others were planned against what this one changes.
            stack.change_sets = {change_set.name: change_set}
            self._execute(stack, change_set, call)
        return {}

    def _delete_change_set(self, call: Call) -> Output:
        try:
            stack, change_set = self._find_change_set(call)
        except NoSuchChangeSet:
            return {}
        with self._lock:
            stack.change_sets.pop(change_set.name, None)
        return {}

    def _list_change_sets(self, call: Call) -> Output:
        stack = self._find(call)
        return {"Summaries": [change_set_view(stack, one) for one in stack.change_sets.values()]}

    def _list_exports(self, call: Call) -> Output:
        exports = [
            {"ExportingStackId": stack.stack_id, "Name": name, "Value": value}
            for stack in self.stacks.all(call.region)
            if stack.exists
            for name, value in stack.exports().items()
        ]
        shown, more = page(exports, call.parameters.get("NextToken"))
        return {"Exports": shown, **more}

    def _list_imports(self, call: Call) -> Output:
        name = str(call.parameters["ExportName"])
        users = self.stacks.importers(name, call.region)
        if not users:
            raise TemplateError(f"Export '{name}' is not imported by any stack.")
        return {"Imports": users}

    def _update_termination_protection(self, call: Call) -> Output:
        stack = self._find(call)
        stack.termination_protection = bool(call.parameters["EnableTerminationProtection"])
        return {"StackId": stack.stack_id}


def _summary(template: Mapping[str, Any]) -> dict[str, Any]:
    optional: Callable[[Mapping[str, Any], str], dict[str, Any]] = lambda d, k: {k: str(d[k])} if k in d else {}  # noqa: E731
    parameters = [
        {"ParameterKey": name, "NoEcho": bool(d.get("NoEcho", False)), "ParameterType": d["Type"]}
        | ({"DefaultValue": str(d["Default"])} if "Default" in d else {})
        | optional(d, "Description")
        for name, d in template.get("Parameters", {}).items()
    ]
    return {"Parameters": parameters, **optional(template, "Description")}
