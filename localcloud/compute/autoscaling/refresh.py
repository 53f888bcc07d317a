"""Instance refreshes: which instances are out of date, and how many may go at a time.

Called under the store's lock by the reconciler. Not here: launching the replacements, which the group's size does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from localcloud.compute.autoscaling.lifecycle import Lifecycle
from localcloud.compute.autoscaling.model import Group, LaunchPlan, Member, Refresh
from localcloud.compute.launch import LaunchResolver

_CAUSE = "an instance was taken out of service in response to an instance refresh."


class InstanceRefresher:
    """Drives the refresh of a group, if there is one."""

    def __init__(self, lifecycle: Lifecycle, clock: Callable[[], float] = time.time) -> None:
        self._lifecycle = lifecycle
        self._clock = clock

    def advance(self, group: Group) -> None:
        """Take the refresh's next step."""
        refresh = group.refresh
        if refresh is None or not group.may("InstanceRefresh"):
            return
        if refresh.status == "Pending":
            refresh.status = "InProgress"
        # What has left by itself has been replaced by what the group launches today.
        refresh.to_replace &= set(group.members)
        waiting = {one for one in refresh.to_replace if not group.members[one].is_ending}
        if refresh.status == "Cancelling":
            if refresh.to_replace == waiting:
                self._finish(refresh, "Cancelled", "Cancelled by user")
            return
        if not refresh.to_replace:
            if self._is_settled(group, refresh):
                self._finish(refresh, "Successful", "")
            return
        self._replace_some(group, refresh, waiting)

    def next_deadline(self, group: Group) -> float | None:
        """Return when an instance that warms up will be warm."""
        refresh = group.refresh
        if refresh is None:
            return None
        warmup = self._warmup_seconds(group, refresh)
        ends = [member.in_service_since + warmup for member in group.members.values() if member.in_service_since]
        return min((end for end in ends if end > self._clock()), default=None)

    def _replace_some(self, group: Group, refresh: Refresh, waiting: set[str]) -> None:
        healthy = [one for one in group.members.values() if self._is_healthy(group, refresh, one)]
        needed = math.ceil(group.desired * int(refresh.preferences.get("MinHealthyPercentage", 90)) / 100)
        allowed = sum(member.weight for member in healthy) - needed
        is_idle = len(healthy) == len(group.members) and group.capacity >= group.desired
        protected = refresh.preferences.get("ScaleInProtectedInstances", "Wait")
        for instance_id in sorted(waiting, key=lambda one: group.members[one].joined):
            member = group.members[instance_id]
            if member.is_protected and protected != "Refresh":
                if protected == "Ignore":
                    refresh.to_replace.discard(instance_id)
                continue
            is_healthy = member in healthy
            # At least one at a time: 100 % healthy limits the rate to one, it does not forbid the refresh.
            if is_healthy and allowed < member.weight and not is_idle:
                continue
            self._lifecycle.begin_end(group, member, _CAUSE, holds_place=True)
            if is_healthy:
                allowed -= member.weight
            is_idle = False

    def _is_settled(self, group: Group, refresh: Refresh) -> bool:
        members = list(group.members.values())
        return group.capacity >= group.desired and all(self._is_healthy(group, refresh, one) for one in members)

    def _is_healthy(self, group: Group, refresh: Refresh, member: Member) -> bool:
        if not member.is_in_service or member.health != "Healthy" or member.in_service_since is None:
            return False
        if member.instance_id in refresh.to_replace:
            return True
        is_new = member.in_service_since >= refresh.started
        return not is_new or self._clock() >= member.in_service_since + self._warmup_seconds(group, refresh)

    def _warmup_seconds(self, group: Group, refresh: Refresh) -> float:
        if "InstanceWarmup" in refresh.preferences:
            return float(refresh.preferences["InstanceWarmup"])
        if group.default_warmup_seconds is not None:
            return float(group.default_warmup_seconds)
        return float(group.health_check_grace_seconds)

    def _finish(self, refresh: Refresh, status: str, reason: str) -> None:
        refresh.status, refresh.reason, refresh.ended = status, reason, self._clock()


@dataclass(frozen=True)
class WantedVersions:
    """The template (id, version) that a plan launches today, by instance type where an override has its own."""

    default: tuple[str, str]
    default_type: str | None
    types: Set[str]
    of_type: Mapping[str | None, tuple[str, str]]

    def is_met_by(self, member: Member) -> bool:
        """Tell whether an instance is what the plan would launch."""
        matches_type = member.instance_type in self.types if self.types else member.instance_type == self.default_type
        wanted = self.of_type.get(member.instance_type, self.default)
        return matches_type and (member.template.template_id, member.template.version) == wanted


def wanted_versions(plan: LaunchPlan, resolver: LaunchResolver) -> WantedVersions:
    """Resolve the template versions of a plan; asks EC2, so call it without the store's lock.

    Raises:
        ApiError: the launch template is gone.
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
    """Return the ids of the instances that a refresh that starts now replaces: all when nothing is `wanted`."""
    members = [member for member in group.members.values() if not member.is_ending]
    return {one.instance_id for one in members if wanted is None or not wanted.is_met_by(one)}
