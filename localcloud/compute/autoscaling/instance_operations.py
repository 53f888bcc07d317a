"""The API calls about the instances of groups."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from localcloud.api import ApiError, Call, Handler
from localcloud.compute.autoscaling.activities import ActivityLog, shown
from localcloud.compute.autoscaling.lifecycle import GROUP_TAG, Lifecycle
from localcloud.compute.autoscaling.model import Activity, Group, GroupStore, Member, TemplateReference
from localcloud.compute.autoscaling.views import member_view, page
from localcloud.compute.inventory import Inventory


class InstanceOperations:
    """Handlers of the calls about instances."""

    def __init__(
        self, store: GroupStore, inventory: Inventory, lifecycle: Lifecycle, activities: ActivityLog,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._store = store
        self._inventory = inventory
        self._lifecycle = lifecycle
        self._activities = activities
        self._clock = clock

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by operation."""
        return {
            "DescribeAutoScalingInstances": self.describe,
            "TerminateInstanceInAutoScalingGroup": self.terminate,
            "DetachInstances": self.detach,
            "AttachInstances": self.attach,
            "SetInstanceHealth": self.set_health,
            "SetInstanceProtection": self.set_protection,
        }

    def describe(self, call: Call) -> Mapping[str, Any]:
        """Describe instances of all groups."""
        wanted = call.parameters.get("InstanceIds")
        with self._store.lock:
            found = [
                member_view(member, group)
                for group, member in self._store.members()
                if not wanted or member.instance_id in wanted
            ]
        return page(found, call.parameters, "AutoScalingInstances", most=50)

    def terminate(self, call: Call) -> Mapping[str, Any]:
        """End one instance; without decrement another takes its place."""
        decrements = bool(call.parameters["ShouldDecrementDesiredCapacity"])
        with self._store.lock:
            group, member = self._store.of_instance(call.parameters["InstanceId"])
            if member.is_ending:
                raise ApiError("ScalingActivityInProgress", f"{member.instance_id}: is already being terminated")
            if decrements:
                self._decrement(group, member.weight)
            before = group.capacity
            change = (
                f"shrinking the capacity from {before} to {before - member.weight}"
                if decrements
                else f"keeping the capacity at {before}"
            )
            cause = f"instance {member.instance_id} was taken out of service in response to a user request, {change}."
            self._lifecycle.begin_end(group, member, cause)
            assert member.activity is not None
            answer = shown(member.activity, group.arn)
        self._store.wake.set()
        return {"Activity": answer}

    def detach(self, call: Call) -> Mapping[str, Any]:
        """Let instances leave the group and run on; without decrement others take their places."""
        ids = call.parameters.get("InstanceIds", [])
        if not ids:
            raise ApiError("ValidationError", "InstanceIds: name at least one instance")
        with self._store.lock:
            group = self._store.get(call.parameters["AutoScalingGroupName"])
            members = [group.member(one) for one in ids]
            for member in members:
                if member.state not in ("InService", "Standby"):
                    raise ApiError(
                        "ValidationError", f"The instance {member.instance_id} is not in InService or Standby "
                        f"({member.state}).",
                    )  # fmt: skip
            if call.parameters["ShouldDecrementDesiredCapacity"]:
                self._decrement(group, sum(member.weight for member in members))
            answer = [shown(self._detach_one(group, member), group.arn) for member in members]
        self._store.wake.set()
        return {"Activities": answer}

    def attach(self, call: Call) -> Mapping[str, Any]:
        """Take running instances into the group; the desired capacity grows with them."""
        ids = call.parameters.get("InstanceIds", [])
        with self._store.lock:
            group = self._store.get(call.parameters["AutoScalingGroupName"])
            if group.desired + len(ids) > group.maximum:
                raise ApiError(
                    "ValidationError", f"The Auto Scaling group {group.name} could not attach {len(ids)} instances: "
                    f"desired {group.desired} would be above max {group.maximum}.",
                )  # fmt: skip
            members = [self._attachable(group, one) for one in ids]
            for member in members:
                activity = self._activities.begin(
                    group, f"Attaching an existing EC2 instance: {member.instance_id}",
                    f"an instance was attached in response to a user request, increasing the capacity from "
                    f"{group.desired} to {group.desired + 1}.",
                    instance_id=member.instance_id, subnet_id=member.subnet_id, zone=member.zone,
                )  # fmt: skip
                group.members[member.instance_id] = member
                group.desired += 1
                self._inventory.join_group(member.instance_id, group.name)
                self._inventory.tag(member.instance_id, {GROUP_TAG: group.name})
                self._inventory.get(member.instance_id).target_lifecycle_state = "InService"
                self._activities.done(activity)
        self._store.wake.set()
        return {}

    def set_health(self, call: Call) -> Mapping[str, Any]:
        """Call an instance healthy or not."""
        health = call.parameters["HealthStatus"].capitalize()
        if health not in ("Healthy", "Unhealthy"):
            raise ApiError(
                "ValidationError", f"HealthStatus '{call.parameters['HealthStatus']}' is not Healthy or Unhealthy"
            )
        with self._store.lock:
            group, member = self._store.of_instance(call.parameters["InstanceId"])
            since = member.in_service_since
            in_grace = since is None or self._clock() < since + group.health_check_grace_seconds
            if health == "Unhealthy" and in_grace and call.parameters.get("ShouldRespectGracePeriod", True):
                return {}
            member.health, member.health_cause = health, "a user health-check"
        self._store.wake.set()
        return {}

    def set_protection(self, call: Call) -> Mapping[str, Any]:
        """Protect instances from scale-in, or not any more."""
        with self._store.lock:
            group = self._store.get(call.parameters["AutoScalingGroupName"])
            members = [group.member(one) for one in call.parameters["InstanceIds"]]
            for member in members:
                member.is_protected = bool(call.parameters["ProtectedFromScaleIn"])
        self._store.wake.set()
        return {}

    def _decrement(self, group: Group, by: int) -> None:
        if group.desired - by < group.minimum:
            raise ApiError(
                "ValidationError",
                f"Currently, desiredSize equals minSize ({group.minimum}). Terminating instance without replacement "
                f"will violate group's min size constraint. Either set shouldDecrementDesiredCapacity flag to false or "
                f"lower group's min size.",
            )
        group.desired -= by

    def _detach_one(self, group: Group, member: Member) -> Activity:
        activity = self._activities.begin(
            group, f"Detaching EC2 instance: {member.instance_id}",
            f"instance {member.instance_id} was detached in response to a user request.",
            instance_id=member.instance_id, subnet_id=member.subnet_id, zone=member.zone,
        )  # fmt: skip
        del group.members[member.instance_id]
        self._inventory.get(member.instance_id).target_lifecycle_state = "Detached"
        self._inventory.join_group(member.instance_id, None)
        self._inventory.untag(member.instance_id, [GROUP_TAG])
        self._activities.done(activity)
        return activity

    def _attachable(self, group: Group, instance_id: str) -> Member:
        instance = self._inventory.get(instance_id)
        if instance.state != "running":
            raise ApiError("ValidationError", f"Instance {instance_id} is not in correct state ({instance.state}).")
        if any(member.instance_id == instance_id for _, member in self._store.members()):
            raise ApiError("ValidationError", f"Instance {instance_id} is already part of an Auto Scaling group.")
        if instance.zone not in {subnet.zone for subnet in group.subnets}:
            raise ApiError(
                "ValidationError", f"Instance {instance_id} is in {instance.zone}, which the group does not use."
            )
        template = instance.specification.template
        reference = (
            TemplateReference(template.template_id, template.name, str(template.version))
            if template is not None
            else TemplateReference("", "", "0")
        )
        now = self._clock()
        return Member(
            instance_id, instance.specification.instance_type, instance.zone, instance.specification.subnet_id,
            instance.market, 1, reference, now, state="InService", in_service_since=now,
        )  # fmt: skip
