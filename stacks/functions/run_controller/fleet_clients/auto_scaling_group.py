"""The fleet as Auto Scaling groups."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from botocore.exceptions import ClientError

from .. import policy
from .fleet import FleetIdentity

ACTIVITIES = 50
"""Number of scaling activities to read, newest first; the API's maximum is 100."""
LAUNCH = re.compile(r"Launching a new EC2 instance(?:: (?P<instance>i-[0-9a-f]+))?")
"""The description of a launch. It ends with the status message.

Source: https://docs.aws.amazon.com/autoscaling/ec2/userguide/as-verify-scaling-activity.html (2026-11).
"""
OWN_SHUTDOWN = "Client.InstanceInitiatedShutdown"
"""The termination reason of a node that shut itself down, which is a failed boot rather than a failed launch."""
TERMINATING_HOOK = "trainstack-terminating"
"""The name of the hook that the template defines and that the nodes complete."""

ON_DEMAND_SUFFIX = ".on-demand"
"""The end of the names of the groups whose instances are bought on demand to meet a deadline."""

LEFT = ("is not part of Auto Scaling group", "is not in InService or Standby", "No active Lifecycle Action")
"""Parts of the messages of a ValidationError about an instance that leaves or has left its group.

Neither the API reference nor the service model lists the messages. Sources (2026-11):
https://github.com/ansible-collections/community.aws/pull/933, https://github.com/reproio/ecs_deploy/issues/84.
"""

Described = Mapping[str, Any]
"""A group's description."""


class AutoScalingGroups:
    """Auto Scaling groups, which are identified by their names: one group, or one for each candidate subnet.

    With a deadline, each of these groups has a second one for instances that are bought on demand.
    When an interrupted instance is detached, its group immediately launches a replacement.
    """

    def __init__(self, identity: FleetIdentity, autoscaling: Any, ec2: Any) -> None:
        self._names = identity.fleet_id.split(",")
        self._autoscaling = autoscaling
        self._ec2 = ec2

    def describe(self) -> policy.FleetState | None:
        """Return the groups' current state as one fleet, or None if no group exists."""
        groups = self._groups()
        if not groups:
            return None
        members = [item for group in groups for item in group.get("Instances", [])]
        used = [group for group in groups if group["DesiredCapacity"] or group.get("Instances")]
        bought = [group for group in groups if _is_on_demand(group)]
        return policy.FleetState(
            desired=sum(group["DesiredCapacity"] for group in groups),
            maximum=max(group["MaxSize"] for group in groups),
            subnets=tuple(dict.fromkeys(subnet for group in used for subnet in _subnets(group))),
            template=",".join(dict.fromkeys(_template(group) for group in groups)),
            instances=tuple(policy.Instance(item["InstanceId"], item["LifecycleState"]) for item in members),
            held_after_termination=self._terminated(
                [item["InstanceId"] for item in members if item["LifecycleState"] == "Terminating:Wait"]
            ),
            on_demand=sum(group["DesiredCapacity"] for group in bought),
            bought=tuple(item["InstanceId"] for group in bought for item in group.get("Instances", [])),
        )

    def launch_failures(self, since_unix_seconds: float) -> tuple[policy.LaunchFailure, ...]:
        """Return the failed launches among the newest scaling activities of the groups that request instances."""
        return tuple(
            failure
            for group in self._groups()
            if group["DesiredCapacity"]
            for failure in self._failures(group["AutoScalingGroupName"], since_unix_seconds)
        )

    def apply(self, action: policy.Action) -> str:
        """Resize the fleet in one group, detach an instance, or complete its terminating hook.

        An instance can leave its group at any time after its description. Then nothing is left to do.
        """
        match action:
            case policy.Detach(instance_id):
                return self._of_member(instance_id, self._detach)
            case policy.CompleteTermination(instance_id):
                return self._of_member(instance_id, self._complete)
            case policy.Resize(desired, subnets, on_demand):
                groups = self._groups()
                spot = [group for group in groups if not _is_on_demand(group)]
                chosen = self._resize(spot, desired - on_demand, subnets)
                bought = [group for group in groups if _is_on_demand(group)]
                if bought or on_demand:
                    is_used = any(any(_use(group)) for group in bought)
                    self._resize(bought, on_demand, None if is_used else _subnets(chosen))
                return ""
            case _:
                raise TypeError(f"{action}: Auto Scaling groups detach interrupted instances instead")

    def _groups(self) -> list[Described]:
        """Return the existing groups in order of preference."""
        found = self._autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=self._names)["AutoScalingGroups"]
        return sorted(found, key=lambda group: self._names.index(group["AutoScalingGroupName"]))

    def _of_member(self, instance_id: str, change: Callable[[str, str], None]) -> str:
        """Change a group's instance. Return an empty string, or that the instance has left its group."""
        for group in self._groups():
            name = str(group["AutoScalingGroupName"])
            if any(item["InstanceId"] == instance_id for item in group.get("Instances", [])):
                try:
                    change(name, instance_id)
                except ClientError as error:
                    message = error.response["Error"]["Message"]
                    if not any(part in message for part in LEFT):
                        raise
                    return f"{instance_id} has left {name}: {message}"
                return ""
        return f"{instance_id} is in none of the groups {', '.join(self._names)}: it has left"

    def _detach(self, group: str, instance_id: str) -> None:
        self._autoscaling.detach_instances(
            AutoScalingGroupName=group, InstanceIds=[instance_id], ShouldDecrementDesiredCapacity=False
        )

    def _resize(self, groups: Sequence[Described], desired: int, subnets: Sequence[str] | None) -> Described:
        """Set the desired capacity of the group in `subnets`, or of the largest group, and set the others to zero."""
        if subnets is not None:
            candidates = [group for group in groups if set(_subnets(group)) & set(subnets)]
        else:
            candidates = sorted(groups, key=_use, reverse=True)
        if not candidates:
            raise LookupError(f"no group has a subnet among {', '.join(subnets or ())}; deploy again")
        for group in groups:
            target = desired if group is candidates[0] else 0
            if group["DesiredCapacity"] != target:
                self._autoscaling.set_desired_capacity(
                    AutoScalingGroupName=group["AutoScalingGroupName"], DesiredCapacity=target, HonorCooldown=False
                )
        return candidates[0]

    def _terminated(self, instance_ids: Sequence[str]) -> tuple[str, ...]:
        """Return the instances that have already terminated, such as nodes that powered themselves off."""
        if not instance_ids:
            return ()
        filters = [
            {"Name": "instance-id", "Values": list(instance_ids)},
            {"Name": "instance-state-name", "Values": ["terminated"]},
        ]
        reservations = self._ec2.describe_instances(Filters=filters)["Reservations"]
        return tuple(item["InstanceId"] for reservation in reservations for item in reservation["Instances"])

    def _complete(self, group: str, instance_id: str) -> None:
        self._autoscaling.complete_lifecycle_action(
            LifecycleHookName=TERMINATING_HOOK,
            AutoScalingGroupName=group,
            LifecycleActionResult="CONTINUE",
            InstanceId=instance_id,
        )

    def _failures(self, name: str, since_unix_seconds: float) -> list[policy.LaunchFailure]:
        activities = self._autoscaling.describe_scaling_activities(AutoScalingGroupName=name, MaxRecords=ACTIVITIES)
        failures: list[policy.LaunchFailure] = []
        for activity in activities["Activities"]:
            launch = LAUNCH.match(activity["Description"])
            if launch is None:
                continue
            if activity["StartTime"].timestamp() < since_unix_seconds or activity["StatusCode"] == "Successful":
                break
            message = activity.get("StatusMessage", "")
            if activity["StatusCode"] == "Failed" and OWN_SHUTDOWN not in message:
                started = activity["StartTime"].timestamp()
                failures.append(policy.LaunchFailure(message, launch["instance"] or "", started))
        return failures


def _use(group: Described) -> tuple[int, int]:
    return len(group.get("Instances", [])), int(group["DesiredCapacity"])


def _is_on_demand(group: Described) -> bool:
    return str(group["AutoScalingGroupName"]).endswith(ON_DEMAND_SUFFIX)


def _subnets(group: Described) -> list[str]:
    return str(group.get("VPCZoneIdentifier", "")).split(",")


def _template(group: Described) -> str:
    """Return the ids and versions of all the group's launch templates. A mixed instances policy can use several."""
    if "MixedInstancesPolicy" not in group:
        specifications = [group["LaunchTemplate"]]
    else:
        template = group["MixedInstancesPolicy"]["LaunchTemplate"]
        others = (item.get("LaunchTemplateSpecification") for item in template.get("Overrides", []))
        specifications = [template["LaunchTemplateSpecification"], *(item for item in others if item)]
    return ",".join(dict.fromkeys(f"{item['LaunchTemplateId']}:{item['Version']}" for item in specifications))
