"""Drift detection: which resources of a stack are gone, and of which types that can say so, what was changed.

Source: https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/using-cfn-stack-drift.html (2026-11).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from botocore.exceptions import ClientError

from localcloud.api import Call, Handler
from localcloud.cloudformation.drift_comparison import DRIFTED, ResourceDrift
from localcloud.cloudformation.errors import TemplateError
from localcloud.cloudformation.operations import Stacks
from localcloud.cloudformation.provider import ResourceFailure
from localcloud.cloudformation.stack import Resource, Stack, now
from localcloud.cloudformation.views import page


@dataclass(frozen=True)
class Detection:
    """One detection that was made: what it found at each resource, or why it failed."""

    stack: Stack
    found: Mapping[str, ResourceDrift]
    at: datetime
    failure: str | None = None


class Drift:
    """Detects and remembers drift."""

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks
        self._detections: dict[str, Detection] = {}

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers by operation."""
        return {
            "DetectStackDrift": self._detect,
            "DetectStackResourceDrift": self._detect_resource,
            "DescribeStackDriftDetectionStatus": self._status,
            "DescribeStackResourceDrifts": self._drifts,
        }

    def _check(self, stack: Stack, wanted: list[str] | None) -> dict[str, ResourceDrift]:
        worker = self._stacks.worker(stack, None)
        known_ids = frozenset(
            resource.physical_id for one in self._stacks.all(stack.region) for resource in one.resources.values()
        )
        with stack.lock:
            resources = [r for n, r in stack.resources.items() if r.physical_id and (not wanted or n in wanted)]
        return {r.logical_id: worker.drift(r, known_ids) for r in resources}

    def _detect(self, call: Call) -> Mapping[str, Any]:
        stack = self._stacks.find(str(call.parameters["StackName"]), call.region)
        if stack.is_busy or not stack.exists:
            raise TemplateError(f"Drift detection cannot be performed on stack in {stack.status} state")
        failure = None
        found: dict[str, ResourceDrift] = {}
        try:
            found = self._check(stack, call.parameters.get("LogicalResourceIds"))
        except (ClientError, ResourceFailure) as error:
            failure = str(error)
        detection_id = str(uuid.uuid4())
        self._detections[detection_id] = Detection(stack, found, now(), failure)
        if failure is None:
            stack.drift, stack.drift_checked = {**stack.drift, **found}, now()
        return {"StackDriftDetectionId": detection_id}

    def _detect_resource(self, call: Call) -> Mapping[str, Any]:
        stack = self._stacks.find(str(call.parameters["StackName"]), call.region)
        name = str(call.parameters["LogicalResourceId"])
        if name not in stack.resources:
            raise TemplateError(f"Resource {name} does not exist for stack {stack.name}")
        stack.drift, stack.drift_checked = {**stack.drift, **self._check(stack, [name])}, now()
        return {"StackResourceDrift": _view(stack, stack.resources[name])}

    def _status(self, call: Call) -> Mapping[str, Any]:
        detection_id = str(call.parameters["StackDriftDetectionId"])
        found = self._detections.get(detection_id)
        if found is None:
            raise TemplateError(f"Drift detection {detection_id} does not exist")
        view: dict[str, Any] = {
            "StackId": found.stack.stack_id,
            "StackDriftDetectionId": detection_id,
            "Timestamp": found.at,
        }
        if found.failure is not None:
            return {**view, "DetectionStatus": "DETECTION_FAILED", "DetectionStatusReason": found.failure}
        drifted = sum(one.status in DRIFTED for one in found.found.values())
        return {
            **view,
            "DetectionStatus": "DETECTION_COMPLETE",
            "StackDriftStatus": "DRIFTED" if drifted else "IN_SYNC",
            "DriftedStackResourceCount": drifted,
        }

    def _drifts(self, call: Call) -> Mapping[str, Any]:
        p = call.parameters
        stack = self._stacks.find(str(p["StackName"]), call.region)
        with stack.lock:
            checked = [r for n, r in stack.resources.items() if n in stack.drift]
            views = [_view(stack, r) for r in checked if stack.drift[r.logical_id].status != "NOT_CHECKED"]
        wanted = p.get("StackResourceDriftStatusFilters")
        shown, more = page(
            [v for v in views if not wanted or v["StackResourceDriftStatus"] in wanted], p.get("NextToken")
        )
        return {"StackResourceDrifts": shown, **more}


def _view(stack: Stack, resource: Resource) -> dict[str, Any]:
    expected = json.dumps(resource.properties, sort_keys=True, default=str)
    found = stack.drift[resource.logical_id]
    view: dict[str, Any] = {
        "StackId": stack.stack_id,
        "LogicalResourceId": resource.logical_id,
        "PhysicalResourceId": resource.physical_id,
        "ResourceType": resource.type_name,
        "ExpectedProperties": expected,
        "PropertyDifferences": [one.view() for one in found.differences],
        "StackResourceDriftStatus": found.status,
        "Timestamp": stack.drift_checked,
    }
    if found.status == "DELETED":
        return view
    return {**view, "ActualProperties": json.dumps(found.actual, sort_keys=True, default=str)}
