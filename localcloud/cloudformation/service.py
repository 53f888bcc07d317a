"""The CloudFormation API, as the AWS SDKs and the CDK command line call it: the operations that change stacks.

Those that only look are in `queries` and `drift`. Operations that the local cloud does not have are refused in words.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import botocore.session

from localcloud.api import ApiError, Call, Clients, Handler, Observer
from localcloud.cloudformation.change_sets import make_change_set, refuse_parameters, require_updatable, stack_for
from localcloud.cloudformation.drift import Drift
from localcloud.cloudformation.errors import NoSuchChangeSet, NoSuchStack, RequestRefused
from localcloud.cloudformation.operations import Stacks
from localcloud.cloudformation.provider import Provider
from localcloud.cloudformation.queries import Queries
from localcloud.cloudformation.stack import ChangeSet, Stack

Output = Mapping[str, Any]
# The name of the change set behind CreateStack and UpdateStack, which nobody can look up.
DIRECT = "direct"


class CloudFormationService:
    """All of CloudFormation (api.Service)."""

    name = "cloudformation"

    def __init__(self, clients: Clients, providers: Mapping[str, Provider] | None = None) -> None:
        if providers is None:
            from localcloud.cloudformation.providers import registry

            providers = registry()
        self.stacks = Stacks(clients, providers)
        self._queries = Queries(self.stacks)
        self._drift = Drift(self.stacks)
        # Two calls must not both find a stack idle and start an operation.
        self._lock = threading.Lock()

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers by operation; every operation of the API has one."""
        return {
            **dict.fromkeys(_api_operations(), _refuse),
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

    def observers(self) -> Mapping[tuple[str, str], Observer]:
        """Observe nothing."""
        return {}

    def http(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Take the answers of custom resources' functions."""
        kind, _, token = path.strip("/").partition("/")
        if method != "PUT" or kind != "response" or not token:
            return 404, b""
        return (200, b"") if self.stacks.mailbox.receive(token, body) else (403, b"nobody expects this answer")

    def close(self) -> None:
        """Let operations under way end."""
        self.stacks.close()

    def _create_stack(self, call: Call) -> Output:
        return self._change_now(call, "CREATE")

    def _update_stack(self, call: Call) -> Output:
        return self._change_now(call, "UPDATE")

    def _change_now(self, call: Call, kind: str) -> Output:
        refuse_parameters(call, "StackPolicyDuringUpdateBody", "StackPolicyDuringUpdateURL")
        with self._lock:
            stack = stack_for(self.stacks, call, kind)
            try:
                change_set = make_change_set(self.stacks, call, kind, stack, DIRECT)
                if change_set.status == "FAILED":
                    raise RequestRefused("No updates are to be performed.")
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
            raise RequestRefused("ChangeSetType IMPORT: the local cloud imports no existing resources into stacks")
        if p.get("DeploymentMode"):
            raise RequestRefused(f"DeploymentMode {p['DeploymentMode']}: the local cloud reverts no drift")
        with self._lock:
            stack = stack_for(self.stacks, call, kind)
            name = str(p["ChangeSetName"])
            try:
                if name in stack.change_sets:
                    raise ApiError("AlreadyExistsException", f"ChangeSet {name} already exists for stack {stack.name}")
                change_set = make_change_set(self.stacks, call, kind, stack, name)
            except ApiError:
                if not stack.exists and not stack.change_sets:
                    self.stacks.remove(stack)
                raise
            stack.change_sets[name] = change_set
        return {"Id": change_set.change_set_id, "StackId": stack.stack_id}

    def _execute_change_set(self, call: Call) -> Output:
        stack, change_set = self._queries.change_set(call)
        with self._lock:
            if change_set.execution_status != "AVAILABLE":
                raise ApiError(
                    "InvalidChangeSetStatus",
                    f"ChangeSet [{change_set.change_set_id}] cannot be executed in its current status of "
                    f"[{change_set.status}] and execution status of [{change_set.execution_status}]",
                )
            if stack.exists or change_set.kind == "UPDATE":
                require_updatable(stack)
            # The others were planned against what this one changes.
            stack.change_sets = {change_set.name: change_set}
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
        if change_set.name != DIRECT:
            stack.change_set_id = change_set.change_set_id
        change_set.execution_status = "EXECUTE_IN_PROGRESS"
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
                    f"ChangeSet [{change_set.change_set_id}] is being executed; wait for its end",
                )
            stack.change_sets.pop(change_set.name, None)
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
                raise RequestRefused(f"Stack [{stack.name}] cannot be deleted while TerminationProtection is enabled")
            if stack.is_busy:
                raise RequestRefused(f"Stack:{stack.stack_id} is in {stack.status} state and can not be deleted.")
            retain = set(p.get("RetainResources", []))
            if p.get("DeletionMode") == "FORCE_DELETE_STACK":
                retain |= {n for n, r in stack.resources.items() if r.status == "DELETE_FAILED"}
            elif retain and stack.status != "DELETE_FAILED":
                raise RequestRefused(
                    f"Stack [{stack.name}] is in {stack.status}: RetainResources is for stacks in DELETE_FAILED"
                )
            token = p.get("ClientRequestToken")
            stack.role_arn = p.get("RoleARN") or stack.role_arn
            before = stack.status
            stack.begin("DELETE_IN_PROGRESS", "DELETE_STACK", token)
        self.stacks.start(lambda: self.stacks.delete(stack, token, retain, before), stack, "DELETE_FAILED", token)
        return {}

    def _cancel_update(self, call: Call) -> Output:
        stack = self._queries.stack(call)
        with self._lock:
            if stack.status != "UPDATE_IN_PROGRESS" or stack.pending is None:
                raise RequestRefused(f"CancelUpdateStack cannot be called from current stack status: {stack.status}")
            stack.pending.cancel()
        return {}

    def _continue_rollback(self, call: Call) -> Output:
        skip = {str(name) for name in call.parameters.get("ResourcesToSkip", [])}
        stack = self._queries.stack(call)
        unknown = sorted(skip - stack.resources.keys())
        if unknown:
            raise RequestRefused(f"ResourcesToSkip: {', '.join(unknown)} not in stack {stack.name}")
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
            if stack.status not in states or stack.pending is None:
                raise RequestRefused(f"{call.operation} cannot be called from current stack status: {stack.status}")
            prefix = states[stack.status]
            stack.role_arn = call.parameters.get("RoleARN") or stack.role_arn
            stack.begin(f"{prefix}_IN_PROGRESS", operation, token)
        self.stacks.start(lambda: self.stacks.roll_back(stack, token, prefix, skip), stack, f"{prefix}_FAILED", token)

    def _get_stack_policy(self, call: Call) -> Output:
        """Stack policies cannot be set here, so no stack has one."""
        self._queries.stack(call)
        return {}

    def _update_termination_protection(self, call: Call) -> Output:
        stack = self._queries.stack(call)
        stack.termination_protection = bool(call.parameters["EnableTerminationProtection"])
        return {"StackId": stack.stack_id}


@lru_cache(maxsize=1)
def _api_operations() -> tuple[str, ...]:
    return tuple(botocore.session.get_session().get_service_model("cloudformation").operation_names)


def _refuse(call: Call) -> Output:
    raise RequestRefused(f"{call.operation}: this operation of CloudFormation is not part of the local cloud")
