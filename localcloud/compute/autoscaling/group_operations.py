"""The API calls that make, change, size and show groups."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from localcloud.api import ApiError, Call, Clients, Handler
from localcloud.compute.autoscaling.activities import ActivityLog, shown
from localcloud.compute.autoscaling.group_settings import (
    TERMINATION_POLICIES,
    apply_settings,
    check_sizes,
    read_subnets,
    read_tags,
    refuse_unknown,
)  # fmt: skip
from localcloud.compute.autoscaling.hook_operations import read_hook
from localcloud.compute.autoscaling.launch_plan import read_plan
from localcloud.compute.autoscaling.lifecycle import Lifecycle
from localcloud.compute.autoscaling.model import Group, GroupStore
from localcloud.compute.autoscaling.views import group_view, page
from localcloud.compute.filters import matches
from localcloud.compute.launch import LaunchResolver

PROCESSES = (
    "Launch", "Terminate", "HealthCheck", "ReplaceUnhealthy", "AZRebalance", "AlarmNotification", "ScheduledActions",
    "AddToLoadBalancer", "InstanceRefresh",
)  # fmt: skip


class GroupOperations:
    """Handlers of the calls about groups."""

    def __init__(
        self, store: GroupStore, clients: Clients, resolver: LaunchResolver, lifecycle: Lifecycle,
        activities: ActivityLog, placement_group_name: Callable[[str | None, str | None], str | None],
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._store = store
        self._clients = clients
        self._resolver = resolver
        self._lifecycle = lifecycle
        self._activities = activities
        self._placement_group_name = placement_group_name
        self._clock = clock

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by operation."""
        return {
            "CreateAutoScalingGroup": self.create,
            "UpdateAutoScalingGroup": self.update,
            "DeleteAutoScalingGroup": self.delete,
            "DescribeAutoScalingGroups": self.describe,
            "SetDesiredCapacity": self.set_desired_capacity,
            "DescribeScalingActivities": self.describe_activities,
            "SuspendProcesses": self.suspend,
            "ResumeProcesses": self.resume,
            "DescribeScalingProcessTypes": lambda call: {"Processes": [{"ProcessName": one} for one in PROCESSES]},
            "DescribeTerminationPolicyTypes": _termination_policy_types,
        }

    def create(self, call: Call) -> Mapping[str, Any]:
        """Create a group; its instances follow."""
        parameters = call.parameters
        refuse_unknown(parameters)
        name = parameters["AutoScalingGroupName"]
        minimum, maximum = int(parameters["MinSize"]), int(parameters["MaxSize"])
        desired = int(parameters.get("DesiredCapacity", minimum))
        check_sizes(minimum, maximum, desired)
        plan = read_plan(parameters, self._resolver)
        if plan is None:
            raise ApiError(
                "ValidationError",
                "Valid requests must contain either LaunchTemplate, LaunchConfigurationName, InstanceId or "
                "MixedInstancesPolicy parameter.",
            )
        subnets = read_subnets(parameters, self._clients)
        if subnets is None:
            raise ApiError("ValidationError", "At least one Availability Zone or VPC Subnet is required.")
        account, region = self._clients.account, self._clients.region
        group = Group(
            name=name,
            arn=f"arn:aws:autoscaling:{region}:{account}:autoScalingGroup:{uuid.uuid4()}:autoScalingGroupName/{name}",
            created=self._clock(), plan=plan, minimum=minimum, maximum=maximum, desired=desired, subnets=subnets[0],
            uses_default_subnets=subnets[1], placement_group=None,
            service_role_arn=f"arn:aws:iam::{account}:role/aws-service-role/autoscaling.amazonaws.com/"
            "AWSServiceRoleForAutoScaling",
            tags=read_tags(parameters),
        )  # fmt: skip
        apply_settings(group, parameters)
        self._check_placement(group.placement_group)
        hooks = [read_hook(one) for one in parameters.get("LifecycleHookSpecificationList", [])]
        group.hooks = {hook.name: hook for hook in hooks}
        with self._store.lock:
            if name in self._store.groups:
                raise ApiError(
                    "AlreadyExists", f"AutoScalingGroup by this name already exists - A group with the name {name} "
                    "already exists",
                )  # fmt: skip
            self._store.groups[name] = group
            if desired:
                self._activities.user_request(
                    group,
                    f"a user request created an AutoScalingGroup changing the desired capacity from 0 to {desired}.",
                )
            for hook in hooks:
                self._lifecycle.announce(group, hook)
        self._store.wake.set()
        return {}

    def update(self, call: Call) -> Mapping[str, Any]:
        """Change a group; running instances stay as they are."""
        parameters = call.parameters
        refuse_unknown(parameters)
        plan = read_plan(parameters, self._resolver)
        subnets = read_subnets(parameters, self._clients)
        if parameters.get("PlacementGroup"):
            self._check_placement(parameters["PlacementGroup"])
        with self._store.lock:
            group = self._store.get(parameters["AutoScalingGroupName"])
            if group.is_deleting:
                raise ApiError("ValidationError", f"AutoScalingGroup '{group.name}' is being deleted")
            minimum = int(parameters.get("MinSize", group.minimum))
            maximum = int(parameters.get("MaxSize", group.maximum))
            if "DesiredCapacity" in parameters:
                desired = int(parameters["DesiredCapacity"])
            else:
                desired = max(minimum, min(group.desired, maximum))
            check_sizes(minimum, maximum, desired)
            apply_settings(group, parameters)
            if plan is not None:
                group.plan = plan
            if subnets is not None:
                group.subnets, group.uses_default_subnets = subnets
            if desired != group.desired:
                self._activities.user_request(
                    group,
                    f"a user request update of AutoScalingGroup constraints to min: {minimum}, max: {maximum}, "
                    f"desired: {desired} changing the desired capacity from {group.desired} to {desired}.",
                )
            group.minimum, group.maximum, group.desired = minimum, maximum, desired
            _launch_anew(group)
        self._store.wake.set()
        return {}

    def delete(self, call: Call) -> Mapping[str, Any]:
        """Delete a group: an empty one, or with ForceDelete one and its instances, without waiting for hooks."""
        by_force = bool(call.parameters.get("ForceDelete"))
        with self._store.lock:
            group = self._store.get(call.parameters["AutoScalingGroupName"])
            if group.deletion_protection == "prevent-all-deletion" or (
                by_force and group.deletion_protection == "prevent-force-deletion"
            ):
                raise ApiError("ValidationError", f"AutoScalingGroup '{group.name}' has deletion protection")
            if group.members and not by_force:
                raise ApiError(
                    "ResourceInUse",
                    "You cannot delete an AutoScalingGroup while there are instances or pending Spot instance "
                    "request(s) still in the group.",
                )
            group.hooks.clear()
            group.minimum = group.maximum = group.desired = 0
            group.is_deleting = True
            if not group.members and not group.is_launching:
                del self._store.groups[group.name]
            for member in group.members.values():
                for wait in member.waits:
                    wait.result = wait.result or "CONTINUE"
                cause = "an instance was taken out of service in response to a user deleting the group."
                self._lifecycle.begin_end(group, member, cause)
        self._store.wake.set()
        return {}

    def describe(self, call: Call) -> Mapping[str, Any]:
        """Describe groups, by name or by filter on tags."""
        names = call.parameters.get("AutoScalingGroupNames")
        filters = call.parameters.get("Filters", [])
        with_instances = bool(call.parameters.get("IncludeInstances", True))
        with self._store.lock:
            found = [
                group_view(one, with_instances=with_instances)
                for one in self._store.groups.values()
                if not names or one.name in names or one.arn in names
            ]
        return page([one for one in found if matches(filters, one, {})], call.parameters, "AutoScalingGroups")

    def set_desired_capacity(self, call: Call) -> Mapping[str, Any]:
        """Size a group."""
        desired = int(call.parameters["DesiredCapacity"])
        with self._store.lock:
            group = self._store.get(call.parameters["AutoScalingGroupName"])
            if desired > group.maximum:
                raise ApiError(
                    "ValidationError", f"New SetDesiredCapacity value {desired} is above max value {group.maximum} for "
                    "the AutoScalingGroup.",
                )  # fmt: skip
            if desired < group.minimum:
                raise ApiError(
                    "ValidationError", f"New SetDesiredCapacity value {desired} is below min value {group.minimum} for "
                    "the AutoScalingGroup.",
                )  # fmt: skip
            if call.parameters.get("HonorCooldown") and self._clock() < group.cooldown_until:
                raise ApiError("ScalingActivityInProgress", f"{group.name}: the cooldown period has not passed yet")
            if desired != group.desired:
                self._activities.user_request(
                    group, "a user request explicitly set group desired capacity changing the desired capacity from "
                    f"{group.desired} to {desired}.",
                )  # fmt: skip
                group.cooldown_until = self._clock() + group.cooldown_seconds
            group.desired = desired
            _launch_anew(group)
        self._store.wake.set()
        return {}

    def describe_activities(self, call: Call) -> Mapping[str, Any]:
        """Describe scaling activities, the newest first."""
        wanted, name = call.parameters.get("ActivityIds"), call.parameters.get("AutoScalingGroupName")
        with self._store.lock:
            groups = [self._store.get(name)] if name else list(self._store.groups.values())
            found = [
                (one.started, shown(one, group.arn))
                for group in groups
                for one in group.activities
                if not wanted or one.activity_id in wanted
            ]
        if name is None:
            found.sort(key=lambda one: one[0], reverse=True)
        return page([one for _, one in found], call.parameters, "Activities")

    def suspend(self, call: Call) -> Mapping[str, Any]:
        """Suspend processes, all when none is named."""
        with self._store.lock:
            group = self._store.get(call.parameters["AutoScalingGroupName"])
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._clock()))
            for process in _processes(call):
                group.suspended[process] = f"User suspended at {when}"
        return {}

    def resume(self, call: Call) -> Mapping[str, Any]:
        """Resume processes, all when none is named."""
        with self._store.lock:
            group = self._store.get(call.parameters["AutoScalingGroupName"])
            for process in _processes(call):
                group.suspended.pop(process, None)
        self._store.wake.set()
        return {}

    def _check_placement(self, name: str | None) -> None:
        try:
            self._placement_group_name(name, None)
        except ApiError as error:
            raise ApiError("ValidationError", error.message) from error


def _launch_anew(group: Group) -> None:
    """Let a user's change be tried at once, whatever failed before."""
    group.launch_failures, group.launch_not_before = 0, 0.0


def _processes(call: Call) -> list[str]:
    named = call.parameters.get("ScalingProcesses") or list(PROCESSES)
    if unknown := [one for one in named if one not in PROCESSES]:
        raise ApiError(
            "ValidationError", f"Unknown scaling processes {', '.join(unknown)}; known: {', '.join(PROCESSES)}"
        )
    return list(named)


def _termination_policy_types(call: Call) -> Mapping[str, Any]:
    return {"TerminationPolicyTypes": list(TERMINATION_POLICIES)}
