"""API operations on instances in groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localcloud.api import ApiError, Call, Handler
from localcloud.compute.autoscaling.activities import ActivityLog, shown
from localcloud.compute.autoscaling.lifecycle import GROUP_TAG
from localcloud.compute.autoscaling.model import Activity, Group, GroupStore, Member
from localcloud.compute.autoscaling.views import member_view, page
from localcloud.compute.machines.inventory import Inventory


class InstanceOperations:
    """Handlers for operations on instances in groups."""

    def __init__(self, store: GroupStore, inventory: Inventory, activities: ActivityLog) -> None:
        self._store = store
        self._inventory = inventory
        self._activities = activities

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation."""
        return {
            "DescribeAutoScalingInstances": self.describe,
            "DetachInstances": self.detach,
        }

    def describe(self, call: Call) -> Mapping[str, Any]:
        """Describe instances in all groups."""
        wanted = call.parameters.get("InstanceIds")
        with self._store.lock:
            found = [
                member_view(member, group)
                for group, member in self._store.members()
                if not wanted or member.instance_id in wanted
            ]
        return page(found, call.parameters, "AutoScalingInstances", limit=50)

    def detach(self, call: Call) -> Mapping[str, Any]:
        """Detach running instances. They are replaced unless the call decrements the desired capacity."""
        ids = call.parameters.get("InstanceIds", [])
        if not ids:
            raise ApiError("ValidationError", "InstanceIds: at least one instance is required")
        with self._store.lock:
            group = self._store.get(call.parameters["AutoScalingGroupName"])
            members = [group.member(one) for one in ids]
            for member in members:
                if not member.is_in_service:
                    raise ApiError(
                        "ValidationError", f"The instance {member.instance_id} is not in InService or Standby "
                        f"({member.state}).",
                    )  # fmt: skip
            if call.parameters["ShouldDecrementDesiredCapacity"]:
                self._decrement(group, len(members))
            answer = [shown(self._detach_one(group, member), group.arn) for member in members]
        self._store.wake.set()
        return {"Activities": answer}

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
        self._inventory.leave_group(member.instance_id, GROUP_TAG)
        self._activities.detached(activity)
        return activity
