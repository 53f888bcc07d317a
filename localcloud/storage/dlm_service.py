"""Data Lifecycle Manager: policies that snapshot tagged volumes on a schedule, and remove old snapshots.

Policies for EBS snapshots with interval or cron schedules and count or age retention. Not here: AMI policies, event
policies, copies to other regions and accounts; they are refused.
Source: docs.aws.amazon.com/ebs/latest/userguide/snapshot-ami-policy.html, 2026-11.
"""

from __future__ import annotations

import copy
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from botocore.exceptions import ClientError

from localcloud.api import ApiError, Call, Clients, Handler, Observer
from localcloud.compute.moments import moment_of
from localcloud.functions.schedules import parse_schedule
from localcloud.storage.dlm_policy import problems, retention_seconds

_logger = logging.getLogger(__name__)
POLICY_TAG = "aws:dlm:lifecycle-policy-id"
SCHEDULE_TAG = "aws:dlm:lifecycle-schedule-name"
_LOOK_SECONDS = 60.0


class DlmService:
    """api.Service for Data Lifecycle Manager; a thread takes the snapshots that are due."""

    name = "dlm"

    def __init__(self, clients: Clients, clock: Callable[[], float] = time.time) -> None:
        self._clients = clients
        self._clock = clock
        self._lock = threading.RLock()
        self._policies: dict[str, dict[str, Any]] = {}
        self._last: dict[tuple[str, str], float] = {}
        self._closed = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dlm", daemon=True)
        self._thread.start()

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers by operation."""
        return {
            "CreateLifecyclePolicy": self.create,
            "UpdateLifecyclePolicy": self.update,
            "GetLifecyclePolicy": self.get,
            "GetLifecyclePolicies": self.list_policies,
            "DeleteLifecyclePolicy": self.delete,
            "TagResource": self.tag,
            "UntagResource": self.untag,
            "ListTagsForResource": self.tags,
        }

    def observers(self) -> Mapping[tuple[str, str], Observer]:
        """Return nothing."""
        return {}

    def http(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Answer nothing."""
        return 404, b""

    def close(self) -> None:
        """Stop taking snapshots."""
        self._closed.set()
        self._wake.set()
        self._thread.join()

    def wake(self) -> None:
        """Let the thread look at the time."""
        self._wake.set()

    def create(self, call: Call) -> Mapping[str, Any]:
        """Answer CreateLifecyclePolicy."""
        asked = call.parameters
        self._check(asked.get("PolicyDetails") or {}, asked.get("ExecutionRoleArn"))
        policy_id = f"policy-{secrets.token_hex(9)[:17]}"
        now = moment_of(self._clock())
        policy = {
            "PolicyId": policy_id, "Description": asked["Description"], "State": asked["State"],
            "ExecutionRoleArn": asked["ExecutionRoleArn"], "DateCreated": now, "DateModified": now,
            "PolicyDetails": {"PolicyType": "EBS_SNAPSHOT_MANAGEMENT"} | copy.deepcopy(dict(asked["PolicyDetails"])),
            "Tags": dict(asked.get("Tags") or {}),
            "PolicyArn": f"arn:aws:dlm:{call.region}:{call.account}:policy/{policy_id}", "DefaultPolicy": False,
        }  # fmt: skip
        with self._lock:
            self._policies[policy_id] = policy
        self._wake.set()
        return {"PolicyId": policy_id}

    def update(self, call: Call) -> Mapping[str, Any]:
        """Answer UpdateLifecyclePolicy."""
        names = ("Description", "State", "ExecutionRoleArn", "PolicyDetails")
        changes = {name: copy.deepcopy(call.parameters[name]) for name in names if call.parameters.get(name)}
        with self._lock:
            policy = self._found(call)
            merged = policy | changes
            self._check(merged["PolicyDetails"], merged["ExecutionRoleArn"])
            policy |= changes | {"DateModified": moment_of(self._clock())}
        self._wake.set()
        return {}

    def get(self, call: Call) -> Mapping[str, Any]:
        """Answer GetLifecyclePolicy."""
        with self._lock:
            return {"Policy": copy.deepcopy(self._found(call))}

    def list_policies(self, call: Call) -> Mapping[str, Any]:
        """Answer GetLifecyclePolicies."""
        wanted = call.parameters.get("PolicyIds")
        with self._lock:
            chosen = [one for key, one in self._policies.items() if not wanted or key in wanted]
        names = ("PolicyId", "Description", "State", "Tags", "DefaultPolicy")
        return {
            "Policies": [
                {name: one[name] for name in names} | {"PolicyType": one["PolicyDetails"]["PolicyType"]}
                for one in chosen
            ]
        }

    def delete(self, call: Call) -> Mapping[str, Any]:
        """Answer DeleteLifecyclePolicy; the snapshots stay."""
        with self._lock:
            del self._policies[self._found(call)["PolicyId"]]
        return {}

    def tag(self, call: Call) -> Mapping[str, Any]:
        """Answer TagResource."""
        with self._lock:
            self._by_arn(call)["Tags"].update(call.parameters["Tags"])
        return {}

    def untag(self, call: Call) -> Mapping[str, Any]:
        """Answer UntagResource."""
        with self._lock:
            for key in call.parameters["TagKeys"]:
                self._by_arn(call)["Tags"].pop(key, None)
        return {}

    def tags(self, call: Call) -> Mapping[str, Any]:
        """Answer ListTagsForResource."""
        with self._lock:
            return {"Tags": dict(self._by_arn(call)["Tags"])}

    def _check(self, details: Mapping[str, Any], role_arn: str | None) -> None:
        wrong = problems(details)
        try:
            trust = self._clients.direct("iam").get_role(RoleName=str(role_arn).rpartition("/")[2])["Role"]
        except ClientError:
            wrong.append(f"ExecutionRoleArn {role_arn}: no such role")
        else:
            if "dlm.amazonaws.com" not in str(trust["AssumeRolePolicyDocument"]):
                wrong.append(f"ExecutionRoleArn {role_arn}: the role does not trust dlm.amazonaws.com")
        if wrong:
            raise ApiError("InvalidRequestException", "; ".join(wrong))

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

    def _run(self) -> None:
        while not self._closed.is_set():
            self._wake.wait(_LOOK_SECONDS)
            self._wake.clear()
            with self._lock:
                policies = [copy.deepcopy(one) for one in self._policies.values() if one["State"] == "ENABLED"]
            for policy in policies:
                for schedule in policy["PolicyDetails"]["Schedules"]:
                    if self._closed.is_set():
                        return
                    try:
                        self._look_at(policy, schedule)
                    except (ApiError, ClientError):
                        _logger.exception("%s: snapshots could not be taken", policy["PolicyId"])

    def _look_at(self, policy: Mapping[str, Any], schedule: Mapping[str, Any]) -> None:
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
        # moto lists in order of creation.
        taken = ec2.describe_snapshots(Filters=filters)["Snapshots"]
        rule = schedule["RetainRule"]
        if rule.get("Count"):
            old = taken[: -int(rule["Count"])]
        else:
            oldest = moment_of(self._clock()) - timedelta(seconds=retention_seconds(rule))
            old = [one for one in taken if one["StartTime"] < oldest]
        for one in old:
            ec2.delete_snapshot(SnapshotId=one["SnapshotId"])


def next_run(rule: Mapping[str, Any], after: float) -> float | None:
    """Return when a create rule is due next after a moment, in Unix seconds; None when it never is again."""
    if rule.get("CronExpression"):
        return parse_schedule(rule["CronExpression"]).next_after(after, after)
    hours, minutes = map(int, (rule.get("Times") or ["09:00"])[0].split(":"))
    step = int(rule["Interval"]) * 3600
    start = moment_of(after).replace(hour=hours, minute=minutes, second=0, microsecond=0).timestamp()
    while start - step > after:
        start -= step
    while start <= after:
        start += step
    return start
