"""API operations on lifecycle hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localcloud.api import ApiError, Call, Handler
from localcloud.compute.autoscaling.lifecycle import Lifecycle
from localcloud.compute.autoscaling.model import LAUNCHING, TERMINATING, Group, GroupStore, Hook, Member
from localcloud.compute.autoscaling.views import hook_view

_MIN_SECONDS, _MAX_SECONDS, _DEFAULT_SECONDS = 30, 7200, 3600


class HookOperations:
    """Handlers for operations on hooks."""

    def __init__(self, store: GroupStore, lifecycle: Lifecycle) -> None:
        self._store = store
        self._lifecycle = lifecycle

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation."""
        return {
            "PutLifecycleHook": self.put,
            "DeleteLifecycleHook": self.delete,
            "DescribeLifecycleHooks": self.describe,
            "CompleteLifecycleAction": self.complete,
            "RecordLifecycleActionHeartbeat": self.heartbeat,
        }

    def put(self, call: Call) -> Mapping[str, Any]:
        """Create or change a hook. If the hook exists, omitted parameters keep their values."""
        with self._store.lock:
            group = self._store.get(call.parameters["AutoScalingGroupName"])
            before = group.hooks.get(call.parameters["LifecycleHookName"])
            hook = read_hook(call.parameters, before)
            group.hooks[hook.name] = hook
        return {}

    def delete(self, call: Call) -> Mapping[str, Any]:
        """Delete a hook. Instances stop waiting for it."""
        with self._store.lock:
            group = self._store.get(call.parameters["AutoScalingGroupName"])
            name = call.parameters["LifecycleHookName"]
            if group.hooks.pop(name, None) is None:
                raise ApiError("ValidationError", f"No Lifecycle Hook found with name {name} for group {group.name}")
            for member in group.members.values():
                for wait in member.waits:
                    if wait.hook.name == name and wait.result is None:
                        # Source: docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DeleteLifecycleHook.html:
                        # outstanding launch actions are abandoned, and outstanding terminate actions continue.
                        wait.result = "ABANDON" if wait.hook.transition == LAUNCHING else "CONTINUE"
        self._store.wake.set()
        return {}

    def describe(self, call: Call) -> Mapping[str, Any]:
        """Describe a group's hooks."""
        wanted = call.parameters.get("LifecycleHookNames")
        with self._store.lock:
            group = self._store.get(call.parameters["AutoScalingGroupName"])
            hooks = [hook_view(one, group.name) for one in group.hooks.values() if not wanted or one.name in wanted]
        return {"LifecycleHooks": hooks}

    def complete(self, call: Call) -> Mapping[str, Any]:
        """Complete an instance's lifecycle action."""
        result = call.parameters["LifecycleActionResult"]
        if result not in ("CONTINUE", "ABANDON"):
            raise ApiError("ValidationError", f"LifecycleActionResult '{result}' must be CONTINUE or ABANDON")
        with self._store.lock:
            group, member, token = self._waiting(call)
            self._lifecycle.complete(group, member, call.parameters["LifecycleHookName"], token, result)
        self._store.wake.set()
        return {}

    def heartbeat(self, call: Call) -> Mapping[str, Any]:
        """Extend a lifecycle action's timeout."""
        with self._store.lock:
            group, member, token = self._waiting(call)
            self._lifecycle.heartbeat(group, member, call.parameters["LifecycleHookName"], token)
        self._store.wake.set()
        return {}

    def _waiting(self, call: Call) -> tuple[Group, Member, str | None]:
        group = self._store.get(call.parameters["AutoScalingGroupName"])
        token, instance_id = call.parameters.get("LifecycleActionToken"), call.parameters.get("InstanceId")
        if token is None and instance_id is None:
            raise ApiError("ValidationError", "LifecycleActionToken or InstanceId is required")
        for member in group.members.values():
            if (instance_id is None or member.instance_id == instance_id) and (
                token is None or any(wait.token == token for wait in member.waits)
            ):
                return group, member, token
        named = f"token {token}" if instance_id is None else f"instance ID {instance_id}"
        raise ApiError("ValidationError", f"No active Lifecycle Action found with {named}")


def read_hook(parameters: Mapping[str, Any], before: Hook | None = None) -> Hook:
    """Return the hook defined by the parameters, with defaults from `before`.

    Raises:
        ApiError: ValidationError.
    """
    name = parameters["LifecycleHookName"]
    if unknown := sorted({"NotificationMetadata", "NotificationTargetARN", "RoleARN"} & set(parameters)):
        raise ApiError(
            "ValidationError", f"Lifecycle hook '{name}': the embedded cloud does not emulate {', '.join(unknown)}"
        )
    transition = parameters.get("LifecycleTransition") or (before.transition if before else None)
    seconds = int(parameters.get("HeartbeatTimeout") or (before.heartbeat_seconds if before else _DEFAULT_SECONDS))
    result = parameters.get("DefaultResult") or (before.default_result if before else "ABANDON")
    if transition not in (LAUNCHING, TERMINATING):
        raise ApiError(
            "ValidationError", f"Lifecycle hook '{name}': LifecycleTransition must be {LAUNCHING} or {TERMINATING}"
        )
    if not _MIN_SECONDS <= seconds <= _MAX_SECONDS:
        raise ApiError(
            "ValidationError",
            f"Lifecycle hook '{name}': HeartbeatTimeout {seconds} must be from {_MIN_SECONDS} to {_MAX_SECONDS}",
        )
    if result not in ("CONTINUE", "ABANDON"):
        raise ApiError("ValidationError", f"Lifecycle hook '{name}': DefaultResult must be CONTINUE or ABANDON")
    return Hook(name, transition, seconds, result)
