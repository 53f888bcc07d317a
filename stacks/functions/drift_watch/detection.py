"""Stack drift: resources that were changed or deleted outside CloudFormation.

Source (2026-11): https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/using-cfn-stack-drift.html
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

POLL_SECONDS = 5.0
DRIFTED = ("MODIFIED", "DELETED")
SIZED_BY_CONTROLLER = {
    "AWS::AutoScaling::AutoScalingGroup": ("/DesiredCapacity",),
    "AWS::EC2::EC2Fleet": (
        *("/TargetCapacitySpecification", "/LaunchTemplateConfigs", "/ExcessCapacityTerminationPolicy"),
    ),
    "AWS::EC2::SpotFleet": (
        *("/SpotFleetRequestConfigData/TargetCapacity", "/SpotFleetRequestConfigData/OnDemandTargetCapacity"),
        *(
            "/SpotFleetRequestConfigData/LaunchTemplateConfigs",
            "/SpotFleetRequestConfigData/ExcessCapacityTerminationPolicy",
        ),
    ),
}
"""Properties whose drift is expected because the run controller changes them, by resource type."""


class DetectionError(RuntimeError):
    """Drift detection failed for some stacks. The message lists each stack with the reason."""


@dataclass(frozen=True)
class Drift:
    """A resource that differs from its template. `properties` lists the property paths that differ."""

    stack: str
    logical_id: str
    resource_type: str
    status: str
    properties: tuple[str, ...]

    def __str__(self) -> str:
        """Return the drift as one line."""
        change = "was deleted" if self.status == "DELETED" else "was changed: " + ", ".join(self.properties)
        return f"{self.stack}: {self.logical_id} ({self.resource_type}) {change}"


def detect(
    cloudformation: Any,
    stacks: Sequence[str],
    *,
    timeout_seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Drift]:
    """Return the drift for all stacks. CloudFormation compares the stacks in parallel because a comparison takes
    minutes.

    Raises:
        DetectionError: Detection failed or took longer than `timeout_seconds`.
    """
    deadline = clock() + timeout_seconds
    failed: list[str] = []
    waiting: dict[str, str] = {}
    for stack in stacks:
        try:
            waiting[stack] = cloudformation.detect_stack_drift(StackName=stack)["StackDriftDetectionId"]
        except ClientError as error:  # the stack does not exist or is being deployed: continue with the other stacks
            failed.append(f"{stack}: {error}")
    while waiting:
        for stack, detection in list(waiting.items()):
            response = cloudformation.describe_stack_drift_detection_status(StackDriftDetectionId=detection)
            if response["DetectionStatus"] != "DETECTION_IN_PROGRESS":
                del waiting[stack]
            if response["DetectionStatus"] == "DETECTION_FAILED":
                failed.append(f"{stack}: {response.get('DetectionStatusReason', 'CloudFormation gave no reason')}")
        if waiting:
            if clock() >= deadline:
                failed += [f"{stack}: drift detection timed out after {timeout_seconds:.0f} s" for stack in waiting]
                break
            sleep(POLL_SECONDS)
    if failed:
        raise DetectionError("; ".join(failed))
    return [drift for stack in stacks for drift in _drifts(cloudformation, stack)]


def _drifts(cloudformation: Any, stack: str) -> list[Drift]:
    found: list[Drift] = []
    token: dict[str, str] = {}
    while True:
        page = cloudformation.describe_stack_resource_drifts(
            StackName=stack, StackResourceDriftStatusFilters=list(DRIFTED), **token
        )
        drifts = (
            Drift(
                stack=stack,
                logical_id=item["LogicalResourceId"],
                resource_type=item["ResourceType"],
                status=item["StackResourceDriftStatus"],
                properties=_unexpected(item),
            )
            for item in page["StackResourceDrifts"]
        )
        found += [drift for drift in drifts if drift.status == "DELETED" or drift.properties]
        if "NextToken" not in page:
            return found
        token = {"NextToken": page["NextToken"]}


def _unexpected(item: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the property paths that differ, except those that the run controller changes."""
    expected = SIZED_BY_CONTROLLER.get(item["ResourceType"], ())
    paths = (str(each["PropertyPath"]) for each in item.get("PropertyDifferences", []))
    return tuple(path for path in paths if not any(path == one or path.startswith(f"{one}/") for one in expected))
