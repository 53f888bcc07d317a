"""Manages an instance's lifecycle in its group, from Pending through its hooks to Terminated.

Callers hold the store's lock. `reconciler` and `refresh` decide which instances to launch and terminate.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from localcloud.api import ApiError
from localcloud.compute.autoscaling.activities import ActivityLog
from localcloud.compute.autoscaling.model import (
    LAUNCHING,
    TERMINATING,
    Group,
    HookWait,
    Member,
    Result,
)  # fmt: skip
from localcloud.compute.machines.inventory import Inventory

GROUP_TAG = "aws:autoscaling:groupName"


class Lifecycle:
    """Moves instances from Pending to InService, and from there to Terminated."""

    def __init__(self, inventory: Inventory, activities: ActivityLog, clock: Callable[[], float] = time.time) -> None:
        self._inventory = inventory
        self._activities = activities
        self._clock = clock

    def begin_end(self, group: Group, member: Member, cause: str, *, holds_place: bool = False) -> None:
        """Take an instance out of service, and terminate it when its terminating hooks have completed."""
        if member.is_ending:
            return
        if member.activity is not None and not member.is_in_service:
            self._activities.launch_cancelled(member.activity, "The instance was removed before it entered service")
        member.waits = []
        member.activity = self._activities.begin(
            group, f"Terminating EC2 instance: {member.instance_id}", cause,
            instance_id=member.instance_id, subnet_id=member.subnet_id, zone=member.zone,
        )  # fmt: skip
        was_in_service = member.is_in_service
        member.state = "Terminating"
        member.holds_place_while_ending = holds_place
        self._inventory.get(member.instance_id).target_lifecycle_state = "Terminated"
        if was_in_service:
            self._wait_for_hooks(group, member, TERMINATING)
        if member.waits:
            member.state = "Terminating:Wait"
            member.activity.status = "MidLifecycleAction"
        else:
            self._end_instance(member)

    def advance(self, group: Group, member: Member) -> None:
        """Advance a pending or terminating instance to its next state if possible."""
        instance = self._inventory.get(member.instance_id)
        if member.state == "Pending" and instance.state == "running":
            self._wait_for_hooks(group, member, LAUNCHING)
            if member.waits:
                member.state = "Pending:Wait"
                assert member.activity is not None
                member.activity.status, member.activity.progress = "MidLifecycleAction", 60
            else:
                self._come_into_service(group, member)
        elif member.state.startswith("Pending") and not instance.is_live:
            self._fail_launch(group, member)
        elif member.state.endswith(":Wait"):
            self._check_waits(group, member)
        if member.is_ending and instance.state == "terminated" and member.state != "Terminating:Wait":
            self._leave(group, member)

    def complete(self, group: Group, member: Member, hook: str, token: str | None, result: Result) -> None:
        """Complete an instance's lifecycle action.

        Raises:
            ApiError: The instance is not waiting for this hook.
        """
        self._wait_of(group, member, hook, token).result = result

    def heartbeat(self, group: Group, member: Member, hook: str, token: str | None) -> None:
        """Restart a hook's timeout.

        Raises:
            ApiError: The instance is not waiting for this hook.
        """
        wait = self._wait_of(group, member, hook, token)
        wait.heartbeat_deadline = self._clock() + wait.hook.heartbeat_seconds

    def next_deadline(self, member: Member) -> float | None:
        """Return the time of the instance's next hook timeout in Unix seconds, or None if there is none."""
        open_waits = [wait for wait in member.waits if wait.result is None]
        return min((min(one.heartbeat_deadline, one.global_deadline) for one in open_waits), default=None)

    def _wait_of(self, group: Group, member: Member, hook: str, token: str | None) -> HookWait:
        if hook not in group.hooks:
            raise ApiError("ValidationError", f"No Lifecycle Hook found with name {hook} for group {group.name}")
        for wait in member.waits:
            if wait.hook.name == hook and wait.result is None and token in (None, wait.token):
                return wait
        raise ApiError("ValidationError", f"No active Lifecycle Action found with instance ID {member.instance_id}")

    def _wait_for_hooks(self, group: Group, member: Member, transition: str) -> None:
        now = self._clock()
        for hook in group.hooks.values():
            if hook.transition == transition:
                wait = HookWait(hook, str(uuid.uuid4()), now + hook.heartbeat_seconds, now + hook.global_seconds)
                member.waits.append(wait)
                self._activities.lifecycle_action(group, member, wait)

    def _check_waits(self, group: Group, member: Member) -> None:
        now = self._clock()
        for wait in member.waits:
            if wait.result is None and now >= min(wait.heartbeat_deadline, wait.global_deadline):
                wait.result = wait.hook.default_result
        is_abandoned = any(wait.result == "ABANDON" for wait in member.waits)
        if not is_abandoned and any(wait.result is None for wait in member.waits):
            return
        member.waits = []
        if member.state == "Terminating:Wait":
            self._end_instance(member)
        elif is_abandoned:
            self.begin_end(group, member, "an instance was taken out of service in response to an ABANDON result.")
        else:
            self._come_into_service(group, member)

    def _come_into_service(self, group: Group, member: Member) -> None:
        member.state = "InService"
        assert member.activity is not None
        self._activities.launch_succeeded(group, member.activity)
        member.activity = None

    def _end_instance(self, member: Member) -> None:
        member.state = "Terminating:Proceed"
        self._inventory.terminate([member.instance_id])

    def _fail_launch(self, group: Group, member: Member) -> None:
        instance = self._inventory.get(member.instance_id)
        assert member.activity is not None
        # Source: https://github.com/hashicorp/terraform-provider-aws/issues/39904
        message = "Instance became unhealthy while waiting for instance to be in InService state."
        if instance.reason:
            message += f" Termination Reason: {instance.reason.message}"
        self._activities.launch_failed(group, member.activity, message)
        del group.members[member.instance_id]

    def _leave(self, group: Group, member: Member) -> None:
        assert member.activity is not None
        self._activities.termination_succeeded(group, member.activity)
        del group.members[member.instance_id]
