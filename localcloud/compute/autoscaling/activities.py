"""Tracks scaling activities, describes their causes in AWS's wording, and publishes and records their outcomes.

Event shapes: docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-event-reference.html, read 2026-11.
"""

from __future__ import annotations

import json
import secrets
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

from localcloud.api import Clients, EventBus
from localcloud.compute.autoscaling.model import LAUNCHING, Activity, Group, HookWait, Member
from localcloud.compute.describe import iso_time
from localcloud.journal import RecordLog


class ActivityLog:
    """Starts and completes scaling activities. Callers hold the store's lock."""

    def __init__(
        self, clients: Clients, bus: EventBus, records: RecordLog, clock: Callable[[], float] = time.time
    ) -> None:
        self._clients = clients
        self._bus = bus
        self._records = records
        self._clock = clock

    def user_request(self, group: Group, text: str) -> None:
        """Prefix the causes of subsequent activities with a user's request."""
        group.user_causes.append(f"At {iso_time(self._clock())} {text}")

    def begin(
        self, group: Group, description: str, cause: str, *, instance_id: str | None, subnet_id: str, zone: str
    ) -> Activity:
        """Start an activity. Its cause includes the time and any preceding user requests."""
        now = self._clock()
        activity = Activity(
            activity_id=str(uuid.UUID(bytes=secrets.token_bytes(16), version=4)), group_name=group.name,
            description=description, cause="  ".join([*group.user_causes, f"At {iso_time(now)} {cause}"]), started=now,
            details={"Subnet ID": subnet_id, "Availability Zone": zone}, instance_id=instance_id,
        )  # fmt: skip
        group.activities.appendleft(activity)
        return activity

    def launch_succeeded(self, group: Group, activity: Activity) -> None:
        """Complete a successful launch."""
        self._end(activity, "Successful", "")
        self._publish("EC2 Instance Launch Successful", group, activity, origin="EC2", destination="AutoScalingGroup")

    def launch_failed(self, group: Group, activity: Activity, message: str) -> None:
        """Complete a failed launch."""
        activity.description += f".  Status Reason: {message}"
        self._end(activity, "Failed", message)
        self._publish("EC2 Instance Launch Unsuccessful", group, activity, origin="EC2", destination="AutoScalingGroup")

    def launch_cancelled(self, activity: Activity, message: str) -> None:
        """Cancel a launch whose instance was removed before it entered service."""
        self._end(activity, "Cancelled", message)

    def termination_succeeded(self, group: Group, activity: Activity) -> None:
        """Complete a termination."""
        self._end(activity, "Successful", "")
        self._publish(
            "EC2 Instance Terminate Successful", group, activity, origin="AutoScalingGroup", destination="EC2"
        )

    def detached(self, activity: Activity) -> None:
        """Complete a detachment, which publishes no event."""
        self._end(activity, "Successful", "")

    def lifecycle_action(self, group: Group, member: Member, wait: HookWait) -> None:
        """Publish a lifecycle hook's event."""
        is_launch = wait.hook.transition == LAUNCHING
        detail = {
            "LifecycleActionToken": wait.token,
            "AutoScalingGroupName": group.name,
            "LifecycleHookName": wait.hook.name,
            "EC2InstanceId": member.instance_id,
            "LifecycleTransition": wait.hook.transition,
            "Origin": "EC2" if is_launch else "AutoScalingGroup",
            "Destination": "AutoScalingGroup" if is_launch else "EC2",
        }
        name = f"EC2 Instance-{'launch' if is_launch else 'terminate'} Lifecycle Action"
        self._bus.publish("aws.autoscaling", name, detail, [group.arn])

    def _end(self, activity: Activity, status: str, message: str) -> None:
        activity.status, activity.message, activity.progress = status, message, 100
        activity.ended = self._clock()
        self._records.append(
            "group_activity", group=activity.group_name, activity_id=activity.activity_id, status=status,
            description=activity.description, cause=activity.cause, message=message,
            instance_id=activity.instance_id, started_unix_seconds=activity.started,
        )  # fmt: skip

    def _publish(self, detail_type: str, group: Group, activity: Activity, *, origin: str, destination: str) -> None:
        assert activity.ended is not None
        resources = [group.arn]
        if activity.instance_id:
            place = f"{self._clients.region}:{self._clients.account}"
            resources.append(f"arn:aws:ec2:{place}:instance/{activity.instance_id}")
        self._bus.publish(
            "aws.autoscaling", detail_type,
            {
                "StatusCode": "Failed" if activity.status == "Failed" else "InProgress",
                "Description": activity.description, "AutoScalingGroupName": group.name,
                "ActivityId": activity.activity_id, "RequestId": activity.activity_id,
                "Details": dict(activity.details),
                "StatusMessage": activity.message, "StartTime": iso_time(activity.started),
                "EndTime": iso_time(activity.ended), "EC2InstanceId": activity.instance_id or "",
                "Cause": activity.cause, "Origin": origin, "Destination": destination,
            },
            resources,
        )  # fmt: skip


def shown(activity: Activity, group_arn: str) -> dict[str, object]:
    """Return an activity in the format of DescribeScalingActivities."""
    answer: dict[str, object] = {
        "ActivityId": activity.activity_id, "AutoScalingGroupName": activity.group_name,
        "AutoScalingGroupARN": group_arn, "Description": activity.description, "Cause": activity.cause,
        "StartTime": datetime.fromtimestamp(activity.started, UTC), "StatusCode": activity.status,
        "Progress": activity.progress, "Details": json.dumps(dict(activity.details)),
    }  # fmt: skip
    if activity.ended is not None:
        answer["EndTime"] = datetime.fromtimestamp(activity.ended, UTC)
    if activity.message:
        answer["StatusMessage"] = activity.message
    return answer
