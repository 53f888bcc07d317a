"""CloudFormation API operations that change stacks.

The read-only operations are in `queries` and `drift`. All other API operations return an error.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from functools import cache
from typing import Any

import botocore.session

from localcloud.api import ApiError, Call, Clients, Handler, Service
from localcloud.cloudformation.change_sets import create_change_set, reject_parameters, require_updatable, stack_for
from localcloud.cloudformation.drift import Drift
from localcloud.cloudformation.engine.operations import Stacks
from localcloud.cloudformation.engine.stack import ChangeSet, Stack, now
from localcloud.cloudformation.errors import InvalidRequest, NoSuchChangeSet, NoSuchStack
from localcloud.cloudformation.provider import Provider
from localcloud.cloudformation.queries import Queries

Output = Mapping[str, Any]
# Name of the change set that CreateStack and UpdateStack use internally. DescribeChangeSet does not return it.
DIRECT = "direct"


class CloudFormationService(Service):
    """CloudFormation (api.Service)."""

    name = "cloudformation"

    def __init__(self, clients: Clients, providers: Mapping[str, Provider] | None = None) -> None:
        if providers is None:
            from localcloud.cloudformation.providers import registry

            providers = registry()
        self.stacks = Stacks(clients, providers)
        self._queries = Queries(self.stacks)
        self._drift = Drift(self.stacks)
        # Ensures that only one call at a time finds a stack idle and starts an operation.
        self._lock = threading.Lock()

    def operations(self) -> Mapping[str, Handler]:
        """Return a handler for every API operation."""
        return {
            **dict.fromkeys(_api_operations(), _not_emulated),
            **self._queries.operations(),
            **self._drift.operations(),
            "CancelUpdateStack": self._cancel_update,
            "ContinueUpdateRollback": self._continue_rollback,
            "CreateChangeSet": self._create_change_set,
            "CreateStack": self._create_stack,
            "DeleteChangeSet": self._delete_change_set,
            "DeleteStack": self._delete_stack,
            "ExecuteChangeSet": self._execute_change_set,
            "GetStackPolicy": self._get_stack_policy,
            "RollbackStack": self._rollback_stack,
            "UpdateStack": self._update_stack,
            "UpdateTerminationProtection": self._update_termination_protection,
        }

    def http(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Receive the responses from the functions behind custom resources, or list the recorded resources."""
        if method == "GET" and path.strip("/") == "recorded":
            return 200, json.dumps(self.stacks.recorded()).encode()
        kind, _, token = path.strip("/").partition("/")
        if method != "PUT" or kind != "response" or not token:
            return 404, b""
        return (200, b"") if self.stacks.responses.receive(token, body) else (403, b"no request expects this response")

    def close(self) -> None:
        """Wait briefly for running operations."""
        self.stacks.close()

    def _create_stack(self, call: Call) -> Output:
        return self._change_now(call, "CREATE")

    def _update_stack(self, call: Call) -> Output:
        return self._change_now(call, "UPDATE")

    def _change_now(self, call: Call, kind: str) -> Output:
        reject_parameters(call, "StackPolicyDuringUpdateBody", "StackPolicyDuringUpdateURL")
        with self._lock:
            stack = stack_for(self.stacks, call, kind)
            try:
                change_set = create_change_set(self.stacks, call, kind, stack, DIRECT)
                if change_set.status == "FAILED":
                    raise InvalidRequest("No updates are to be performed.")
            except ApiError:
                if not stack.exists and not stack.change_sets:
                    self.stacks.remove(stack)
                raise
            self._execute(stack, change_set, call)
        return {"StackId": stack.stack_id}

    def _create_change_set(self, call: Call) -> Output:
        p = call.parameters
        kind = str(p.get("ChangeSetType", "UPDATE"))
        if kind == "IMPORT" or p.get("ResourcesToImport"):
            raise InvalidRequest("ChangeSetType IMPORT: importing existing resources is not emulated")
        if p.get("DeploymentMode"):
            raise InvalidRequest(f"DeploymentMode {p['DeploymentMode']}: not emulated")
        with self._lock:
            stack = stack_for(self.stacks, call, kind)
            name = str(p["ChangeSetName"])
            try:
                if any(one.name == name and one.is_open for one in stack.change_sets):
                    raise ApiError("AlreadyExistsException", f"ChangeSet {name} already exists for stack {stack.name}")
                change_set = create_change_set(self.stacks, call, kind, stack, name)
            except ApiError:
                if not stack.exists and not stack.change_sets:
                    self.stacks.remove(stack)
                raise
            stack.change_sets.append(change_set)
        return {"Id": change_set.change_set_id, "StackId": stack.stack_id}

    def _execute_change_set(self, call: Call) -> Output:
        stack, change_set = self._queries.change_set(call)
        with self._lock:
            if change_set.execution_status != "AVAILABLE":
                raise ApiError(
                    "InvalidChangeSetStatus",
                    f"ChangeSet [{change_set.change_set_id}] cannot be executed in its current "
                    + (
                        f"execution status of [{change_set.execution_status}]"
                        if change_set.status == "CREATE_COMPLETE"
                        else f"status of [{change_set.status}]"
                    ),
                )
            if stack.exists or change_set.kind == "UPDATE":
                require_updatable(stack)
            self._execute(stack, change_set, call)
        return {}

    def _execute(self, stack: Stack, change_set: ChangeSet, call: Call) -> None:
        p = call.parameters
        token = p.get("ClientRequestToken")
        kind = change_set.kind
        stack.role_arn = change_set.role_arn
        stack.disable_rollback = bool(p.get("DisableRollback", change_set.deployment_config.get("DisableRollback")))
        stack.retain_except_on_create = bool(p.get("RetainExceptOnCreate"))
        stack.deployment_config = change_set.deployment_config
        stack.termination_protection = bool(p.get("EnableTerminationProtection", stack.termination_protection))
        stack.change_set_id = None
        if change_set.name != DIRECT:
            stack.change_set_id, stack.updated = change_set.change_set_id, now()
        for other in stack.change_sets:
            if other.is_open:
                # The change set was computed before this operation changed the stack.
                other.execution_status = "OBSOLETE"
        change_set.execution_status = "EXECUTE_IN_PROGRESS"
        stack.cancelled.clear()
        stack.begin(f"{kind}_IN_PROGRESS", f"{kind}_STACK", token)
        failed = "CREATE_FAILED" if kind == "CREATE" else "UPDATE_FAILED"
        self.stacks.start(lambda: self.stacks.deploy(stack, change_set, token), stack, failed, token)

    def _delete_change_set(self, call: Call) -> Output:
        try:
            stack, change_set = self._queries.change_set(call)
        except NoSuchChangeSet:
            return {}
        with self._lock:
            if change_set.execution_status == "EXECUTE_IN_PROGRESS":
                raise ApiError(
                    "InvalidChangeSetStatus",
                    f"ChangeSet [{change_set.change_set_id}] is being executed; wait until the operation ends",
                )
            stack.change_sets.remove(change_set)
        return {}

    def _delete_stack(self, call: Call) -> Output:
        p = call.parameters
        try:
            stack = self._queries.stack(call)
        except NoSuchStack:
            return {}
        with self._lock:
            if stack.status == "DELETE_COMPLETE" or stack.status == "DELETE_IN_PROGRESS":
                return {}
            if stack.termination_protection:
                raise InvalidRequest(f"Stack [{stack.name}] cannot be deleted while TerminationProtection is enabled")
            if stack.is_busy and stack.status != "CREATE_IN_PROGRESS":
                raise InvalidRequest(f"Stack:{stack.stack_id} is in {stack.status} state and can not be deleted.")
            retain = set(p.get("RetainResources", []))
            if p.get("DeletionMode") == "FORCE_DELETE_STACK":
                retain |= {n for n, r in stack.resources.items() if r.status == "DELETE_FAILED"}
            elif retain and stack.status != "DELETE_FAILED":
                raise InvalidRequest(
                    f"Stack [{stack.name}] is in {stack.status}: RetainResources requires status DELETE_FAILED"
                )
            token = p.get("ClientRequestToken")
            stack.role_arn = p.get("RoleARN") or stack.role_arn
            with stack.lock:
                before = stack.status
                stack.begin("DELETE_IN_PROGRESS", "DELETE_STACK", token)
            if before == "CREATE_IN_PROGRESS":
                # The thread that is creating the stack also deletes it.
                stack.cancelled.set()
                return {}
        self.stacks.start(lambda: self.stacks.delete(stack, token, retain, before), stack, "DELETE_FAILED", token)
        return {}

    def _cancel_update(self, call: Call) -> Output:
        stack = self._queries.stack(call)
        with self._lock:
            if stack.status != "UPDATE_IN_PROGRESS":
                raise InvalidRequest(f"CancelUpdateStack cannot be called from current stack status: {stack.status}")
            stack.cancelled.set()
        return {}

    def _continue_rollback(self, call: Call) -> Output:
        skip = {str(name) for name in call.parameters.get("ResourcesToSkip", [])}
        stack = self._queries.stack(call)
        unknown = sorted(skip - stack.resources.keys())
        if unknown:
            raise InvalidRequest(f"ResourcesToSkip: {', '.join(unknown)}: not in stack {stack.name}")
        if call.parameters.get("ForceRollback"):
            skip |= {name for name, resource in stack.resources.items() if resource.status == "UPDATE_FAILED"}
        self._begin_rollback(call, stack, {"UPDATE_ROLLBACK_FAILED": "UPDATE_ROLLBACK"}, "CONTINUE_ROLLBACK", skip)
        return {}

    def _rollback_stack(self, call: Call) -> Output:
        stack = self._queries.stack(call)
        states = {"CREATE_FAILED": "ROLLBACK", "UPDATE_FAILED": "UPDATE_ROLLBACK"}
        stack.retain_except_on_create = bool(call.parameters.get("RetainExceptOnCreate"))
        self._begin_rollback(call, stack, states, "ROLLBACK", set())
        return {"StackId": stack.stack_id, "OperationId": stack.operation_id}

    def _begin_rollback(
        self, call: Call, stack: Stack, states: Mapping[str, str], operation: str, skip: set[str]
    ) -> None:
        token = call.parameters.get("ClientRequestToken")
        with self._lock:
            if stack.status not in states or stack.undo is None:
                raise InvalidRequest(f"{call.operation} cannot be called from current stack status: {stack.status}")
            prefix = states[stack.status]
            stack.role_arn = call.parameters.get("RoleARN") or stack.role_arn
            stack.begin(f"{prefix}_IN_PROGRESS", operation, token)
        self.stacks.start(lambda: self.stacks.roll_back(stack, token, prefix, skip), stack, f"{prefix}_FAILED", token)

    def _get_stack_policy(self, call: Call) -> Output:
        """Return an empty response, since stack policies are not emulated."""
        self._queries.stack(call)
        return {}

    def _update_termination_protection(self, call: Call) -> Output:
        stack = self._queries.stack(call)
        stack.termination_protection = bool(call.parameters["EnableTerminationProtection"])
        return {"StackId": stack.stack_id}


@cache
def _api_operations() -> tuple[str, ...]:
    return tuple(botocore.session.get_session().get_service_model("cloudformation").operation_names)


def _not_emulated(call: Call) -> Output:
    raise InvalidRequest(f"{call.operation}: this CloudFormation operation is not emulated")
