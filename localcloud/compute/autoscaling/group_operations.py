"""API operations on groups and their tags."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from localcloud.api import ApiError, Call, Clients, Handler
from localcloud.compute.autoscaling.activities import ActivityLog, shown
from localcloud.compute.autoscaling.group_settings import (
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
from localcloud.compute.autoscaling.views import group_view, page, tag_list
from localcloud.compute.describe import matches
from localcloud.compute.launch.resolver import LaunchResolver

_TAG_FIELDS = {
    "auto-scaling-group": "ResourceId",
    "key": "Key",
    "value": "Value",
    "propagate-at-launch": "PropagateAtLaunch",
}


class GroupOperations:
    """Handlers for operations on groups and their tags."""

    def __init__(
        self, store: GroupStore, clients: Clients, resolver: LaunchResolver, lifecycle: Lifecycle,
        activities: ActivityLog, clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._store = store
        self._clients = clients
        self._resolver = resolver
        self._lifecycle = lifecycle
        self._activities = activities
        self._clock = clock

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation."""
        return {
            "CreateAutoScalingGroup": self.create,
            "UpdateAutoScalingGroup": self.update,
            "SetDesiredCapacity": self.resize,
            "DeleteAutoScalingGroup": self.delete,
            "DescribeAutoScalingGroups": self.describe,
            "DescribeScalingActivities": self.describe_activities,
            "CreateOrUpdateTags": self.put_tags,
            "DeleteTags": self.delete_tags,
            "DescribeTags": self.describe_tags,
        }

    def create(self, call: Call) -> Mapping[str, Any]:
        """Create a group. The reconciler launches its instances."""
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
            created=self._clock(), plan=plan, minimum=minimum, maximum=maximum, desired=desired, subnets=subnets,
            tags=read_tags(parameters),
        )  # fmt: skip
        apply_settings(group, parameters)
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
        self._store.wake.set()
        return {}

    def update(self, call: Call) -> Mapping[str, Any]:
        """Change a group without changing its running instances."""
        parameters = call.parameters
        refuse_unknown(parameters)
        plan = read_plan(parameters, self._resolver)
        subnets = read_subnets(parameters, self._clients)
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
                group.subnets = subnets
            if desired != group.desired:
                self._activities.user_request(
                    group,
                    f"a user request update of AutoScalingGroup constraints to min: {minimum}, max: {maximum}, "
                    f"desired: {desired} changing the desired capacity from {group.desired} to {desired}.",
                )
            group.minimum, group.maximum, group.desired = minimum, maximum, desired
            _reset_retries(group)
        self._store.wake.set()
        return {}

    def resize(self, call: Call) -> Mapping[str, Any]:
        """Set a group's desired capacity. Cooldown periods are not emulated and do not delay the change."""
        desired = int(call.parameters["DesiredCapacity"])
        with self._store.lock:
            group = self._store.get(call.parameters["AutoScalingGroupName"])
            if group.is_deleting:
                raise ApiError("ValidationError", f"AutoScalingGroup '{group.name}' is being deleted")
            for bound, value, is_outside in (
                ("above max", group.maximum, desired > group.maximum),
                ("below min", group.minimum, desired < group.minimum),
            ):
                if is_outside:
                    raise ApiError(
                        "ValidationError",
                        f"New SetDesiredCapacity value {desired} is {bound} value {value} for the AutoScalingGroup.",
                    )
            if desired != group.desired:
                self._activities.user_request(
                    group,
                    "a user request explicitly set group desired capacity changing the desired capacity from "
                    f"{group.desired} to {desired}.",
                )
            group.desired = desired
            _reset_retries(group)
        self._store.wake.set()
        return {}

    def delete(self, call: Call) -> Mapping[str, Any]:
        """Delete an empty group. With ForceDelete, delete a group and its instances without waiting for hooks."""
        by_force = bool(call.parameters.get("ForceDelete"))
        with self._store.lock:
            group = self._store.get(call.parameters["AutoScalingGroupName"])
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
        """Describe groups by name or by tag filters."""
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

    def describe_activities(self, call: Call) -> Mapping[str, Any]:
        """Describe scaling activities, newest first."""
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

    def put_tags(self, call: Call) -> Mapping[str, Any]:
        """Tag groups without tagging their running instances."""
        tags = call.parameters["Tags"]
        with self._store.lock:
            groups = [self._store.get(tag.get("ResourceId")) for tag in tags]
            read = [read_tags({"Tags": [tag]}) for tag in tags]
            for group, new in zip(groups, read, strict=True):
                group.tags.update(new)
        return {}

    def delete_tags(self, call: Call) -> Mapping[str, Any]:
        """Remove tags from groups. If a value is given, it must match."""
        with self._store.lock:
            for tag in call.parameters["Tags"]:
                group = self._store.get(tag.get("ResourceId"))
                kept = group.tags.get(tag["Key"])
                if kept is not None and tag.get("Value") in (None, kept.value):
                    del group.tags[tag["Key"]]
        return {}

    def describe_tags(self, call: Call) -> Mapping[str, Any]:
        """Describe the tags of all groups."""
        with self._store.lock:
            found = [tag for group in self._store.groups.values() for tag in tag_list(group)]
        filters = [
            {**one, "Values": [value.capitalize() if one["Name"] == "propagate-at-launch" else value
                               for value in one["Values"]]}
            for one in call.parameters.get("Filters", [])
        ]  # fmt: skip
        for one in filters:
            if one["Name"] not in _TAG_FIELDS:
                raise ApiError(
                    "ValidationError", f"Filter type {one['Name']} is not correct. Allowed: {', '.join(_TAG_FIELDS)}"
                )
        return page([tag for tag in found if matches(filters, tag, _TAG_FIELDS)], call.parameters, "Tags")


def _reset_retries(group: Group) -> None:
    """Let the next launch attempt start immediately, regardless of previous failures."""
    group.launch_failures, group.launch_not_before = 0, 0.0
