"""Drift detection: which resources of a stack are gone. Changed properties are not compared."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from localcloud.api import Call, Handler
from localcloud.cloudformation.errors import TemplateError
from localcloud.cloudformation.operations import Stacks
from localcloud.cloudformation.stack import Stack, now


@dataclass(frozen=True)
class Detection:
    """One finished detection."""

    stack: Stack
    statuses: Mapping[str, str]
    at: datetime


class DriftDetections:
    """Detects and remembers drift."""

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks
        self._detections: dict[str, Detection] = {}

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers by operation."""
        return {
            "DetectStackDrift": self._detect,
            "DescribeStackDriftDetectionStatus": self._status,
            "DescribeStackResourceDrifts": self._drifts,
        }

    def _detect(self, call: Call) -> Mapping[str, Any]:
        stack = self._stacks.find(str(call.parameters["StackName"]), call.region)
        worker = self._stacks.worker(stack, None)
        statuses = {
            name: "IN_SYNC" if worker.exists(resource) else "DELETED" for name, resource in stack.resources.items()
        }
        detection_id = str(uuid.uuid4())
        self._detections[detection_id] = Detection(stack, statuses, now())
        return {"StackDriftDetectionId": detection_id}

    def _status(self, call: Call) -> Mapping[str, Any]:
        detection_id = str(call.parameters["StackDriftDetectionId"])
        found = self._detections.get(detection_id)
        if found is None:
            raise TemplateError(f"Drift detection {detection_id} does not exist")
        drifted = sum(status != "IN_SYNC" for status in found.statuses.values())
        return {
            "StackId": found.stack.stack_id,
            "StackDriftDetectionId": detection_id,
            "StackDriftStatus": "DRIFTED" if drifted else "IN_SYNC",
            "DetectionStatus": "DETECTION_COMPLETE",
            "DriftedStackResourceCount": drifted,
            "Timestamp": found.at,
        }

    def _drifts(self, call: Call) -> Mapping[str, Any]:
        stack = self._stacks.find(str(call.parameters["StackName"]), call.region)
        mine = [d for d in self._detections.values() if d.stack is stack]
        if not mine:
            return {"StackResourceDrifts": []}
        latest = mine[-1]
        wanted = call.parameters.get("StackResourceDriftStatusFilters") or []
        return {
            "StackResourceDrifts": [
                {
                    "StackId": stack.stack_id,
                    "LogicalResourceId": name,
                    "PhysicalResourceId": stack.resources[name].physical_id,
                    "ResourceType": stack.resources[name].type_name,
                    "StackResourceDriftStatus": status,
                    "Timestamp": latest.at,
                }
                for name, status in latest.statuses.items()
                if name in stack.resources and (not wanted or status in wanted)
            ]
        }
