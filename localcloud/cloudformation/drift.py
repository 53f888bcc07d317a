"""Detects drift: resources that were deleted or modified outside their stack.

Only properties that the template sets and the registry schema declares readable are compared.
Source: https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/using-cfn-stack-drift.html (2026-11).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from botocore.exceptions import ClientError

from localcloud.api import Call, Handler
from localcloud.cloudformation.engine.operations import Stacks
from localcloud.cloudformation.engine.stack import PropertyDifference, Resource, ResourceDrift, Stack, now
from localcloud.cloudformation.engine.work import Worker
from localcloud.cloudformation.errors import TemplateError
from localcloud.cloudformation.provider import ReadableProvider, ResourceFailure
from localcloud.cloudformation.resource_types import is_compared, paths
from localcloud.cloudformation.views import page


@dataclass(frozen=True)
class Detection:
    """The results of drift detection, keyed by resource, or the reason for its failure."""

    stack: Stack
    found: Mapping[str, ResourceDrift]
    at: datetime
    failure: str | None = None


class Drift:
    """Handlers for drift detection."""

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks
        self._detections: dict[str, Detection] = {}

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation."""
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
        return {r.logical_id: _detect(worker, r, known_ids) for r in resources}

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
        drifted = sum(one.is_drifted for one in found.found.values())
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


def _detect(worker: Worker, resource: Resource, known_ids: frozenset[str]) -> ResourceDrift:
    """Compare a resource with its definition in the template."""
    if not is_compared(resource.type_name):
        return ResourceDrift("NOT_CHECKED")
    provider, context, expected = worker.provider(resource.type_name), worker.context(resource), resource.properties
    if not provider.exists(context, resource.physical_id, expected):
        return ResourceDrift("DELETED")
    if not isinstance(provider, ReadableProvider):
        return ResourceDrift("NOT_CHECKED")
    actual = provider.read_properties(context, resource.physical_id, expected, known_ids)
    found = differences(resource.type_name, expected, actual)
    shown = {name: actual.get(name, value) for name, value in expected.items()}
    return ResourceDrift("MODIFIED" if found else "IN_SYNC", found, shown)


def _view(stack: Stack, resource: Resource) -> dict[str, Any]:
    found = stack.drift[resource.logical_id]
    view: dict[str, Any] = {
        "StackId": stack.stack_id,
        "LogicalResourceId": resource.logical_id,
        "PhysicalResourceId": resource.physical_id,
        "ResourceType": resource.type_name,
        "ExpectedProperties": _written(resource, resource.properties),
        "PropertyDifferences": [_difference_view(one) for one in found.differences],
        "StackResourceDriftStatus": found.status,
        "Timestamp": stack.drift_checked,
    }
    if found.status == "DELETED":
        return view
    return {**view, "ActualProperties": _written(resource, found.actual)}


def _written(resource: Resource, properties: Mapping[str, Any]) -> str:
    return json.dumps(_readable(resource.type_name, properties), sort_keys=True, default=str)


def _difference_view(difference: PropertyDifference) -> dict[str, str]:
    kind = "ADD" if difference.expected is None else "REMOVE" if difference.actual is None else "NOT_EQUAL"
    return {
        "PropertyPath": difference.path,
        "ExpectedValue": _shown(difference.expected),
        "ActualValue": _shown(difference.actual),
        "DifferenceType": kind,
    }


def differences(
    type_name: str, expected: Mapping[str, Any], actual: Mapping[str, Any]
) -> tuple[PropertyDifference, ...]:
    """Return the differences between a resource and its template."""
    compared = {name: value for name, value in _readable(type_name, expected).items() if name in actual}
    found = [one for name, value in compared.items() for one in _between(f"/{name}", value, actual[name])]
    return tuple(sorted(found, key=lambda one: one.path))


def _readable(type_name: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties that the resource's read handler returns."""
    unread = set(paths(type_name, "writeOnlyProperties"))
    found = {}
    for name, value in properties.items():
        inner = value if isinstance(value, Mapping) else {}
        if (name,) not in unread and not (inner and all((name, key) in unread for key in inner)):
            found[name] = value
    return found


def _between(path: str, expected: Any, actual: Any) -> Iterator[PropertyDifference]:
    if _same(expected, actual):
        return
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        for name in dict.fromkeys([*expected, *actual]):
            yield from _between(f"{path}/{name}", expected.get(name), actual.get(name))
    elif isinstance(expected, list) and isinstance(actual, list):
        yield from _between_lists(path, expected, actual)
    else:
        yield PropertyDifference(path, expected, actual)


def _between_lists(path: str, expected: list[Any], actual: list[Any]) -> Iterator[PropertyDifference]:
    """Yield the differences between two lists, ignoring their order, since rules and statements are unordered."""
    more = list(actual)
    missing = []
    for place, item in enumerate(expected):
        twin = next((one for one in more if _same(item, one)), None)
        if twin is None:
            missing.append((place, item))
        else:
            more.remove(twin)
    for (place, item), other in zip(missing, more, strict=False):
        yield from _between(f"{path}/{place}", item, other)
    for place, item in missing[len(more) :]:
        yield PropertyDifference(f"{path}/{place}", item, None)
    for place, item in enumerate(more[len(missing) :], start=len(expected)):
        yield PropertyDifference(f"{path}/{place}", None, item)


def _same(one: Any, other: Any) -> bool:
    """Return True if two values are equivalent.

    A number or boolean equals its string form, and a single item equals a list that contains only that item. Lists may
    be in any order. A missing value equals false.
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return all(_same(one.get(name), other.get(name)) for name in {*one, *other})
    if None in (one, other):
        return all(value is None or value is False or value == "false" for value in (one, other))
    if isinstance(one, list) or isinstance(other, list):
        left, right = (value if isinstance(value, list) else [value] for value in (one, other))
        rest = list(right)
        for item in left:
            twin = next((candidate for candidate in rest if _same(item, candidate)), None)
            if twin is None:
                return False
            rest.remove(twin)
        return not rest
    return _text(one) == _text(other)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
