"""Data Lifecycle Manager, which takes scheduled snapshots of tagged volumes and deletes old snapshots.

Supports policies for EBS snapshots with interval or cron schedules and retention by count or age. Rejects AMI policies,
event policies and copies to other regions or accounts.
Source: docs.aws.amazon.com/ebs/latest/userguide/snapshot-ami-policy.html, 2026-11.
"""

from __future__ import annotations

import copy
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from botocore.exceptions import ClientError

from localcloud.api import ApiError, Call, Clients, Handler, Service
from localcloud.compute.describe import timestamp
from localcloud.control_loop import ControlLoop
from localcloud.events.schedules import parse_schedule
from localcloud.storage.dlm_policy import problems, retention_seconds

POLICY_TAG = "aws:dlm:lifecycle-policy-id"
SCHEDULE_TAG = "aws:dlm:lifecycle-schedule-name"
_POLL_SECONDS = 60.0


class DlmService(Service):
    """api.Service for Data Lifecycle Manager. `loop`'s thread takes snapshots when they are due."""

    name = "dlm"

    def __init__(self, clients: Clients, clock: Callable[[], float] = time.time) -> None:
        self._clients = clients
        self._clock = clock
        self._lock = threading.RLock()
        self._policies: dict[str, dict[str, Any]] = {}
        self._last: dict[tuple[str, str], float] = {}
        self.loop = ControlLoop("dlm", self._enabled, self._run, lambda: _POLL_SECONDS)
        self.loop.start()

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation."""
        return {
            "CreateLifecyclePolicy": self.create,
            "UpdateLifecyclePolicy": self.update,
            "GetLifecyclePolicy": self.get,
            "DeleteLifecyclePolicy": self.delete,
            "TagResource": self.tag,
            "UntagResource": self.untag,
            "ListTagsForResource": self.tags,
        }

    def close(self) -> None:
        """Stop taking snapshots."""
        self.loop.close()

    def create(self, call: Call) -> Mapping[str, Any]:
        """Handle CreateLifecyclePolicy."""
        asked = call.parameters
        self._check(asked.get("PolicyDetails") or {}, asked.get("ExecutionRoleArn"))
        policy_id = f"policy-{secrets.token_hex(9)[:17]}"
        now = timestamp(self._clock())
        policy = {
            "PolicyId": policy_id, "Description": asked["Description"], "State": asked["State"],
            "ExecutionRoleArn": asked["ExecutionRoleArn"], "DateCreated": now, "DateModified": now,
            "PolicyDetails": {"PolicyType": "EBS_SNAPSHOT_MANAGEMENT"} | copy.deepcopy(dict(asked["PolicyDetails"])),
            "Tags": dict(asked.get("Tags") or {}),
            "PolicyArn": f"arn:aws:dlm:{call.region}:{call.account}:policy/{policy_id}", "DefaultPolicy": False,
        }  # fmt: skip
        with self._lock:
            self._policies[policy_id] = policy
        self.loop.wake()
        return {"PolicyId": policy_id}

    def update(self, call: Call) -> Mapping[str, Any]:
        """Handle UpdateLifecyclePolicy."""
        names = ("Description", "State", "ExecutionRoleArn", "PolicyDetails")
        changes = {name: copy.deepcopy(call.parameters[name]) for name in names if call.parameters.get(name)}
        with self._lock:
            policy = self._found(call)
            merged = policy | changes
            self._check(merged["PolicyDetails"], merged["ExecutionRoleArn"])
            policy |= changes | {"DateModified": timestamp(self._clock())}
        self.loop.wake()
        return {}

    def get(self, call: Call) -> Mapping[str, Any]:
        """Handle GetLifecyclePolicy."""
        with self._lock:
            return {"Policy": copy.deepcopy(self._found(call))}

    def delete(self, call: Call) -> Mapping[str, Any]:
        """Handle DeleteLifecyclePolicy. The policy's snapshots are kept."""
        with self._lock:
            del self._policies[self._found(call)["PolicyId"]]
        return {}

    def tag(self, call: Call) -> Mapping[str, Any]:
        """Handle TagResource."""
        with self._lock:
            self._by_arn(call)["Tags"].update(call.parameters["Tags"])
        return {}

    def untag(self, call: Call) -> Mapping[str, Any]:
        """Handle UntagResource."""
        with self._lock:
            for key in call.parameters["TagKeys"]:
                self._by_arn(call)["Tags"].pop(key, None)
        return {}

    def tags(self, call: Call) -> Mapping[str, Any]:
        """Handle ListTagsForResource."""
        with self._lock:
            return {"Tags": dict(self._by_arn(call)["Tags"])}

    def _check(self, details: Mapping[str, Any], role_arn: str | None) -> None:
        found = problems(details)
        try:
            trust = self._clients.direct("iam").get_role(RoleName=str(role_arn).rpartition("/")[2])["Role"]
        except ClientError:
            found.append(f"ExecutionRoleArn {role_arn}: the role does not exist")
        else:
            if "dlm.amazonaws.com" not in str(trust["AssumeRolePolicyDocument"]):
                found.append(f"ExecutionRoleArn {role_arn}: the role does not trust dlm.amazonaws.com")
        if found:
            raise ApiError("InvalidRequestException", "; ".join(found))

    def _found(self, call: Call) -> dict[str, Any]:
        policy_id = call.parameters["PolicyId"]
        if policy_id not in self._policies:
            raise ApiError("ResourceNotFoundException", f"Policy {policy_id} does not exist", 404)
        return self._policies[policy_id]

    def _by_arn(self, call: Call) -> dict[str, Any]:
        arn = call.parameters["ResourceArn"]
        for one in self._policies.values():
            if one["PolicyArn"] == arn:
                return one
        raise ApiError("ResourceNotFoundException", f"{arn} does not exist", 404)

    def _enabled(self) -> list[str]:
        with self._lock:
            return [policy_id for policy_id, one in self._policies.items() if one["State"] == "ENABLED"]

    def _run(self, policy_id: str) -> None:
        with self._lock:
            if policy_id not in self._policies:  # the policy has been deleted
                return
            policy = copy.deepcopy(self._policies[policy_id])
        for schedule in policy["PolicyDetails"]["Schedules"]:
            self._run_schedule(policy, schedule)

    def _run_schedule(self, policy: Mapping[str, Any], schedule: Mapping[str, Any]) -> None:
        key = (policy["PolicyId"], schedule["Name"])
        with self._lock:
            since = self._last.setdefault(key, policy["DateCreated"].timestamp())
        due = next_run(schedule["CreateRule"], since)
        if due is None or self._clock() < due:
            return
        with self._lock:
            self._last[key] = self._clock()
        for volume in self._targets(policy["PolicyDetails"]["TargetTags"]):
            self._snapshot(policy, schedule, volume)
            self._retire(policy, schedule, volume["VolumeId"])

    def _targets(self, tags: list[Mapping[str, str]]) -> list[Mapping[str, Any]]:
        found: dict[str, Mapping[str, Any]] = {}
        for tag in tags:
            filters = [{"Name": f"tag:{tag['Key']}", "Values": [tag["Value"]]}]
            volumes = self._clients.direct("ec2").describe_volumes(Filters=filters)["Volumes"]
            found |= {volume["VolumeId"]: volume for volume in volumes}
        return list(found.values())

    def _snapshot(self, policy: Mapping[str, Any], schedule: Mapping[str, Any], volume: Mapping[str, Any]) -> None:
        copied = volume.get("Tags", []) if schedule.get("CopyTags") else []
        tags = {tag["Key"]: tag["Value"] for tag in [*copied, *schedule.get("TagsToAdd", [])]}
        tags = {key: value for key, value in tags.items() if not key.startswith("aws:")}
        ec2 = self._clients.direct("ec2")
        description = f"Created for policy: {policy['PolicyId']} schedule: {schedule['Name']}"
        made = ec2.create_snapshot(VolumeId=volume["VolumeId"], Description=description)
        tags |= {POLICY_TAG: policy["PolicyId"], SCHEDULE_TAG: schedule["Name"]}
        ec2.create_tags(
            Resources=[made["SnapshotId"]], Tags=[{"Key": key, "Value": value} for key, value in tags.items()]
        )
        rule = schedule.get("FastRestoreRule")
        if rule:
            self._clients.client("ec2").enable_fast_snapshot_restores(
                AvailabilityZones=rule["AvailabilityZones"], SourceSnapshotIds=[made["SnapshotId"]]
            )

    def _retire(self, policy: Mapping[str, Any], schedule: Mapping[str, Any], volume_id: str) -> None:
        ec2 = self._clients.direct("ec2")
        filters = [
            {"Name": f"tag:{POLICY_TAG}", "Values": [policy["PolicyId"]]},
            {"Name": f"tag:{SCHEDULE_TAG}", "Values": [schedule["Name"]]},
            {"Name": "volume-id", "Values": [volume_id]},
        ]
        # moto lists snapshots in the order in which they were created.
        taken = ec2.describe_snapshots(Filters=filters)["Snapshots"]
        rule = schedule["RetainRule"]
        if rule.get("Count"):
            old = taken[: -int(rule["Count"])]
        else:
            oldest = timestamp(self._clock()) - timedelta(seconds=retention_seconds(rule))
            old = [one for one in taken if one["StartTime"] < oldest]
        for one in old:
            ec2.delete_snapshot(SnapshotId=one["SnapshotId"])


def next_run(rule: Mapping[str, Any], after: float) -> float | None:
    """Return the next time after `after` at which a create rule is due, in Unix seconds, or None if there is none."""
    if rule.get("CronExpression"):
        return parse_schedule(rule["CronExpression"]).next_after(after, after)
    hours, minutes = map(int, (rule.get("Times") or ["09:00"])[0].split(":"))
    step = int(rule["Interval"]) * 3600
    start = timestamp(after).replace(hour=hours, minute=minutes, second=0, microsecond=0).timestamp()
    while start - step > after:
        start -= step
    while start <= after:
        start += step
    return start
