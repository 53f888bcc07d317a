"""Instance refreshes: implements their API operations, selects outdated instances and paces their replacement.

Each terminated instance leaves the group below its desired capacity, so the reconciler launches the replacement.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from localcloud.api import ApiError, Call, Handler
from localcloud.compute.autoscaling.lifecycle import Lifecycle
from localcloud.compute.autoscaling.model import Group, GroupStore, LaunchPlan, Member, Refresh
from localcloud.compute.autoscaling.views import page, refresh_view
from localcloud.compute.launch.resolver import LaunchResolver

_PREFERENCES = frozenset({"MinHealthyPercentage", "SkipMatching"})
_DEFAULT_MIN_HEALTHY = 90
_CAUSE = "an instance was taken out of service in response to an instance refresh."


class InstanceRefresher:
    """Advances a group's refresh. Callers hold the store's lock."""

    def __init__(self, lifecycle: Lifecycle, clock: Callable[[], float] = time.time) -> None:
        self._lifecycle = lifecycle
        self._clock = clock

    def advance(self, group: Group) -> None:
        """Terminate the refresh's next instances, if any, or finish the refresh."""
        refresh = group.refresh
        if refresh is None:
            return
        if refresh.status == "Pending":
            refresh.status = "InProgress"
        # Instances removed for other reasons have already been replaced using the current launch plan.
        refresh.to_replace &= set(group.members)
        waiting = {one for one in refresh.to_replace if not group.members[one].is_ending}
        if not refresh.to_replace:
            if group.capacity >= group.desired and all(_is_healthy(one) for one in group.members.values()):
                refresh.status, refresh.ended = "Successful", self._clock()
            return
        self._replace_some(group, refresh, waiting)

    def _replace_some(self, group: Group, refresh: Refresh, waiting: set[str]) -> None:
        healthy = [one for one in group.members.values() if _is_healthy(one)]
        needed = math.ceil(group.desired * int(refresh.preferences.get("MinHealthyPercentage", 90)) / 100)
        allowed = len(healthy) - needed
        is_idle = len(healthy) == len(group.members) and group.capacity >= group.desired
        for instance_id in sorted(waiting, key=lambda one: group.members[one].joined):
            member = group.members[instance_id]
            is_healthy = member in healthy
            # If MinHealthyPercentage is 100, replace one instance at a time.
            if is_healthy and allowed < 1 and not is_idle:
                continue
            self._lifecycle.begin_end(group, member, _CAUSE, holds_place=True)
            if is_healthy:
                allowed -= 1
            is_idle = False


def _is_healthy(member: Member) -> bool:
    return member.is_in_service and member.health == "Healthy"


@dataclass(frozen=True)
class WantedVersions:
    """The current template versions in a plan, as (ID, version).

    `default` is the plan's template version, and `of_type` contains overrides' own template versions by instance type.
    """

    default: tuple[str, str]
    default_type: str | None
    types: Set[str]
    of_type: Mapping[str | None, tuple[str, str]]

    def is_met_by(self, member: Member) -> bool:
        """Return True if an instance matches the plan."""
        matches_type = member.instance_type in self.types if self.types else member.instance_type == self.default_type
        wanted = self.of_type.get(member.instance_type, self.default)
        return matches_type and (member.template.template_id, member.template.version) == wanted


def wanted_versions(plan: LaunchPlan, resolver: LaunchResolver) -> WantedVersions:
    """Resolve a plan's template versions. This makes EC2 calls, so do not hold the store's lock.

    Raises:
        ApiError: The launch template does not exist.
    """
    of_type: dict[str | None, tuple[str, str]] = {}
    for override in plan.overrides:
        if override.template is not None:
            found = resolver.template(override.template.as_parameter())
            of_type[override.instance_type] = (found.template_id, str(found.version))
    version = resolver.template(plan.template.as_parameter())
    return WantedVersions(
        (version.template_id, str(version.version)),
        version.data.get("InstanceType"),
        {override.instance_type for override in plan.overrides if override.instance_type},
        of_type,
    )


def out_of_date(group: Group, wanted: WantedVersions | None) -> set[str]:
    """Return the IDs of the instances to replace: those that do not match `wanted`, or all if `wanted` is None."""
    members = [member for member in group.members.values() if not member.is_ending]
    return {one.instance_id for one in members if wanted is None or not wanted.is_met_by(one)}


class RefreshOperations:
    """Handlers for operations on instance refreshes."""

    def __init__(self, store: GroupStore, resolver: LaunchResolver, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._resolver = resolver
        self._clock = clock

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation."""
        return {
            "StartInstanceRefresh": self.start,
            "DescribeInstanceRefreshes": self.describe,
        }

    def start(self, call: Call) -> Mapping[str, Any]:
        """Start a refresh that replaces the instances that do not match the group's launch plan."""
        preferences = _preferences(call.parameters)
        with self._store.lock:
            group = self._store.get(call.parameters["AutoScalingGroupName"])
            _refuse_second(group)
            wanted = group.plan
        # The lock is released during EC2 calls, so the group may have changed. Check it again.
        version_of = wanted_versions(wanted, self._resolver) if preferences.get("SkipMatching") else None
        with self._store.lock:
            group = self._store.get(call.parameters["AutoScalingGroupName"])
            _refuse_second(group)
            stale = out_of_date(group, version_of)
            refresh = Refresh(str(uuid.uuid4()), self._clock(), preferences, stale, len(stale))
            group.refreshes.append(refresh)
        self._store.wake.set()
        return {"InstanceRefreshId": refresh.refresh_id}

    def describe(self, call: Call) -> Mapping[str, Any]:
        """Describe a group's refreshes, newest first."""
        wanted = call.parameters.get("InstanceRefreshIds")
        with self._store.lock:
            group = self._store.get(call.parameters["AutoScalingGroupName"])
            shown = [
                refresh_view(one, group) for one in reversed(group.refreshes) if not wanted or one.refresh_id in wanted
            ]
        return page(shown, call.parameters, "InstanceRefreshes")


def _refuse_second(group: Group) -> None:
    if group.refresh is not None:
        raise ApiError(
            "InstanceRefreshInProgress",
            f"An Instance Refresh is already in progress and blocks the execution of this Instance Refresh: "
            f"{group.refresh.refresh_id}",
        )


def _preferences(parameters: Mapping[str, Any]) -> dict[str, Any]:
    if parameters.get("Strategy", "Rolling") != "Rolling":
        raise ApiError("ValidationError", f"Strategy '{parameters['Strategy']}' is not emulated; use Rolling")
    if "DesiredConfiguration" in parameters:
        raise ApiError("ValidationError", "DesiredConfiguration: not emulated by the embedded cloud; update the group")
    given = dict(parameters.get("Preferences") or {})
    if unknown := given.keys() - _PREFERENCES:
        raise ApiError(
            "ValidationError", f"Preferences {', '.join(sorted(unknown))}: not emulated by the embedded cloud"
        )
    minimum = int(given.get("MinHealthyPercentage", _DEFAULT_MIN_HEALTHY))
    if not 0 <= minimum <= 100:
        raise ApiError("ValidationError", f"MinHealthyPercentage {minimum} must be from 0 to 100")
    return {"MinHealthyPercentage": minimum, "SkipMatching": False} | given
