"""Drift detection: drift by property, timeouts, and failed detections."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from stacks.functions.drift_watch import handler as function
from stacks.functions.drift_watch.detection import DetectionError, Drift, detect


class Stacks:
    """A fake CloudFormation whose detections finish after several polls, with one drift per page."""

    def __init__(self, drifts: dict[str, list[dict[str, Any]]], *, looks: int = 1, failing: str = "") -> None:
        self._drifts, self._looks, self._failing = drifts, looks, failing
        self.asked: list[str] = []

    def detect_stack_drift(self, StackName: str) -> dict[str, str]:
        return {"StackDriftDetectionId": StackName}

    def describe_stack_drift_detection_status(self, StackDriftDetectionId: str) -> dict[str, str]:
        self.asked.append(StackDriftDetectionId)
        if self.asked.count(StackDriftDetectionId) < self._looks:
            return {"DetectionStatus": "DETECTION_IN_PROGRESS"}
        if StackDriftDetectionId == self._failing:
            return {"DetectionStatus": "DETECTION_FAILED", "DetectionStatusReason": "may not read the bucket"}
        return {"DetectionStatus": "DETECTION_COMPLETE"}

    def describe_stack_resource_drifts(
        self, StackName: str, StackResourceDriftStatusFilters: list[str], NextToken: str = "0"
    ) -> dict[str, Any]:
        assert StackResourceDriftStatusFilters == ["MODIFIED", "DELETED"]
        found, index = self._drifts.get(StackName, []), int(NextToken)
        page: dict[str, Any] = {"StackResourceDrifts": found[index : index + 1]}
        return page | ({"NextToken": str(index + 1)} if index + 1 < len(found) else {})


BUCKET = {
    "LogicalResourceId": "Checkpoints",
    "ResourceType": "AWS::S3::Bucket",
    "StackResourceDriftStatus": "MODIFIED",
    "PropertyDifferences": [{"PropertyPath": "/BucketEncryption"}, {"PropertyPath": "/Tags/0"}],
}
TOPIC = {"LogicalResourceId": "Topic", "ResourceType": "AWS::SNS::Topic", "StackResourceDriftStatus": "DELETED"}


def test_detect_lists_changed_and_deleted_resources_of_all_pages() -> None:
    waits: list[float] = []
    stacks = Stacks({"a": [BUCKET, TOPIC]}, looks=3)
    found = detect(stacks, ["a", "b"], timeout_seconds=100, clock=lambda: 0, sleep=waits.append)
    assert [str(drift) for drift in found] == [
        "a: Checkpoints (AWS::S3::Bucket) was changed: /BucketEncryption, /Tags/0",
        "a: Topic (AWS::SNS::Topic) was deleted",
    ]
    assert found[1] == Drift("a", "Topic", "AWS::SNS::Topic", "DELETED", ())
    assert len(waits) == 2


@pytest.mark.parametrize(
    ("resource_type", "path", "is_drift"),
    [
        ("AWS::AutoScaling::AutoScalingGroup", "/DesiredCapacity", False),
        ("AWS::AutoScaling::AutoScalingGroup", "/VPCZoneIdentifier/0", True),  # the run controller does not move groups
        ("AWS::AutoScaling::AutoScalingGroup", "/MaxSize", True),
        ("AWS::EC2::EC2Fleet", "/TargetCapacitySpecification/TotalTargetCapacity", False),
        ("AWS::EC2::EC2Fleet", "/LaunchTemplateConfigs/0/Overrides/0/SubnetId", False),
        ("AWS::EC2::SpotFleet", "/SpotFleetRequestConfigData/LaunchTemplateConfigs/0/Overrides", False),
        ("AWS::EC2::SpotFleet", "/SpotFleetRequestConfigData/TargetCapacity", False),
        ("AWS::EC2::SpotFleet", "/SpotFleetRequestConfigData/AllocationStrategy", True),
    ],
)
def test_what_the_run_controller_changes_is_no_drift(resource_type: str, path: str, is_drift: bool) -> None:
    changed = {
        "LogicalResourceId": "Fleet",
        "ResourceType": resource_type,
        "StackResourceDriftStatus": "MODIFIED",
        "PropertyDifferences": [{"PropertyPath": path}],
    }
    found = detect(Stacks({"a": [changed]}), ["a"], timeout_seconds=100)
    assert [drift.properties for drift in found] == ([(path,)] if is_drift else [])


def test_failed_or_unfinished_detection_raises_with_the_stack() -> None:
    with pytest.raises(DetectionError, match="b: may not read the bucket"):
        detect(Stacks({}, failing="b"), ["a", "b"], timeout_seconds=100)
    times = iter(range(100))
    with pytest.raises(DetectionError, match="a: drift detection timed out after 2 s"):
        detect(Stacks({}, looks=1000), ["a"], timeout_seconds=2, clock=lambda: next(times), sleep=lambda _: None)


def test_function_logs_a_line_per_target_and_fails_after_all_were_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clients = {"us-east-1": Stacks({}, failing="x"), "eu-west-1": Stacks({"y": [TOPIC]})}
    monkeypatch.setattr(function, "_cloudformation", lambda target: clients[target["region"]])
    targets = [
        {"region": "us-east-1", "role_arn": "r", "stacks": ["x"]},
        {"region": "eu-west-1", "role_arn": "r", "stacks": ["y"]},
    ]
    monkeypatch.setenv("TARGETS", json.dumps(targets))
    context = SimpleNamespace(get_remaining_time_in_millis=lambda: 900_000)
    with pytest.raises(DetectionError, match="us-east-1: x: may not read"):
        function.handler({}, context)
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {
        "event": "drift",
        "region": "eu-west-1",
        "stacks": ["y"],
        "drifted": 1,
        "resources": ["y: Topic (AWS::SNS::Topic) was deleted"],
    }
