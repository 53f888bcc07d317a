"""Compares what a template gives a resource with what the service says of it.

Only properties that the template gives are compared, and of them only those that the registry schema says can be read.
Source: https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/using-cfn-stack-drift.html (2026-11).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from localcloud.cloudformation.provider import ResourceContext
from localcloud.cloudformation.schemas import paths, schema

Status = Literal["IN_SYNC", "MODIFIED", "DELETED", "NOT_CHECKED"]

DRIFTED: tuple[Status, ...] = ("MODIFIED", "DELETED")


@dataclass(frozen=True)
class PropertyDifference:
    """One place where the two differ, by its JSON pointer; None is the side that has nothing."""

    path: str
    expected: Any
    actual: Any

    def view(self) -> dict[str, str]:
        """Return it as DescribeStackResourceDrifts shows it."""
        kind = "ADD" if self.expected is None else "REMOVE" if self.actual is None else "NOT_EQUAL"
        return {
            "PropertyPath": self.path,
            "ExpectedValue": _shown(self.expected),
            "ActualValue": _shown(self.actual),
            "DifferenceType": kind,
        }


@dataclass(frozen=True)
class ResourceDrift:
    """What a comparison found at one resource."""

    status: Status
    differences: Sequence[PropertyDifference] = field(default=())
    actual: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Readable(Protocol):
    """A provider that can say which values the properties have now."""

    def actual(
        self, context: ResourceContext, physical_id: str, properties: Mapping[str, Any], known_ids: frozenset[str]
    ) -> Mapping[str, Any]:
        """Return properties as a template would give them; those that are not in it are not compared.

        `known_ids` are the physical ids of all resources of all stacks: what one of them brought is theirs.
        """
        ...


def is_compared(type_name: str) -> bool:
    """Tell whether drift detection looks at a type: one that the registry can read (AWS::IAM::Policy is not)."""
    return "read" in schema(type_name).get("handlers", {})


def differences(
    type_name: str, expected: Mapping[str, Any], actual: Mapping[str, Any]
) -> tuple[PropertyDifference, ...]:
    """Return where a resource is not as its template says."""
    unread = {path[0] for path in paths(type_name, "writeOnlyProperties") if len(path) == 1}
    compared = [name for name in expected if name in actual and name not in unread]
    return tuple(one for name in compared for one in _between(f"/{name}", expected[name], actual[name]))


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
    """Yield what differs between two lists whose order means nothing, as that of rules and statements."""
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
    """Tell whether two values mean the same.

    Numbers and truths are as text, one item is as a list of it, a list is in any order, and what is not said is false.
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
