"""Drift of stacks: what somebody changed or removed beside their templates.

Source (2026-11): https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/using-cfn-stack-drift.html
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

POLL_SECONDS = 5.0
DRIFTED = ("MODIFIED", "DELETED")


class DetectionError(RuntimeError):
    """Stacks could not be compared; the message names each with the reason."""


@dataclass(frozen=True)
class Drift:
    """A resource that is not as its template says; `properties` are the paths that differ."""

    stack: str
    logical_id: str
    resource_type: str
    status: str
    properties: tuple[str, ...]

    def __str__(self) -> str:
        """Return it as a line."""
        what = "is gone" if self.status == "DELETED" else "was changed: " + ", ".join(self.properties)
        return f"{self.stack}: {self.logical_id} ({self.resource_type}) {what}"


def detect(
    cloudformation: Any,
    stacks: Sequence[str],
    *,
    timeout_seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Drift]:
    """Compare stacks with what is there; all at once, since each takes minutes.

    Raises:
        DetectionError: A comparison failed, or took longer than `timeout_seconds`.
    """
    deadline = clock() + timeout_seconds
    failed: list[str] = []
    waiting: dict[str, str] = {}
    for stack in stacks:
        try:
            waiting[stack] = cloudformation.detect_stack_drift(StackName=stack)["StackDriftDetectionId"]
        except ClientError as error:  # not there, or in the midst of a deploy: the others are compared still
            failed.append(f"{stack}: {error}")
    while waiting:
        for stack, detection in list(waiting.items()):
            answer = cloudformation.describe_stack_drift_detection_status(StackDriftDetectionId=detection)
            if answer["DetectionStatus"] != "DETECTION_IN_PROGRESS":
                del waiting[stack]
            if answer["DetectionStatus"] == "DETECTION_FAILED":
                failed.append(f"{stack}: {answer.get('DetectionStatusReason', 'no reason was given')}")
        if waiting:
            if clock() >= deadline:
                failed += [f"{stack}: not compared within {timeout_seconds:.0f} seconds" for stack in waiting]
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
        found += [
            Drift(
                stack=stack,
                logical_id=item["LogicalResourceId"],
                resource_type=item["ResourceType"],
                status=item["StackResourceDriftStatus"],
                properties=tuple(each["PropertyPath"] for each in item.get("PropertyDifferences", [])),
            )
            for item in page["StackResourceDrifts"]
        ]
        if "NextToken" not in page:
            return found
        token = {"NextToken": page["NextToken"]}
