"""The API calls about instance refreshes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from localcloud.api import ApiError, Call, Handler
from localcloud.compute.autoscaling.launch_plan import read_plan
from localcloud.compute.autoscaling.model import Group, GroupStore, Refresh
from localcloud.compute.autoscaling.refresh import out_of_date, wanted_versions
from localcloud.compute.autoscaling.views import page, refresh_view
from localcloud.compute.launch import LaunchResolver

_PREFERENCES = frozenset({"MinHealthyPercentage", "InstanceWarmup", "SkipMatching", "ScaleInProtectedInstances"})
_DEFAULT_MIN_HEALTHY = 90


class RefreshOperations:
    """Handlers of the calls about instance refreshes."""

    def __init__(self, store: GroupStore, resolver: LaunchResolver, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._resolver = resolver
        self._clock = clock

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by operation."""
        return {
            "StartInstanceRefresh": self.start,
            "DescribeInstanceRefreshes": self.describe,
            "CancelInstanceRefresh": self.cancel,
        }

    def start(self, call: Call) -> Mapping[str, Any]:
        """Begin a refresh; a desired configuration becomes the group's."""
        preferences = _preferences(call.parameters)
        configuration = call.parameters.get("DesiredConfiguration")
        plan = read_plan(configuration, self._resolver) if configuration else None
        with self._store.lock:
            group = self._store.get(call.parameters["AutoScalingGroupName"])
            _refuse_second(group)
            wanted = plan or group.plan
        # EC2 is asked without the lock; meanwhile the group may change, so what counts is looked at again under it.
        version_of = wanted_versions(wanted, self._resolver) if preferences.get("SkipMatching") else None
        with self._store.lock:
            group = self._store.get(call.parameters["AutoScalingGroupName"])
            _refuse_second(group)
            if plan is not None:
                group.plan = plan
            stale = out_of_date(group, version_of)
            refresh = Refresh(
                str(uuid.uuid4()), self._clock(), preferences, stale, len(stale), desired_configuration=configuration
            )
            group.refreshes.append(refresh)
        self._store.wake.set()
        return {"InstanceRefreshId": refresh.refresh_id}

    def describe(self, call: Call) -> Mapping[str, Any]:
        """Describe a group's refreshes, the newest first."""
        wanted = call.parameters.get("InstanceRefreshIds")
        with self._store.lock:
            group = self._store.get(call.parameters["AutoScalingGroupName"])
            shown = [
                refresh_view(one, group) for one in reversed(group.refreshes) if not wanted or one.refresh_id in wanted
            ]
        return page(shown, call.parameters, "InstanceRefreshes")

    def cancel(self, call: Call) -> Mapping[str, Any]:
        """Stop replacing; what has begun to end, ends."""
        with self._store.lock:
            group = self._store.get(call.parameters["AutoScalingGroupName"])
            refresh = group.refresh
            if refresh is None:
                raise ApiError("ActiveInstanceRefreshNotFound", "No in progress or pending Instance Refresh found.")
            refresh.status = "Cancelling"
        self._store.wake.set()
        return {"InstanceRefreshId": refresh.refresh_id}


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
    given = dict(parameters.get("Preferences") or {})
    harmless = {"AutoRollback": False, "StandbyInstances": "Ignore", "MaxHealthyPercentage": 100, "BakeTime": 0}
    unknown = [
        name for name, value in given.items() if name not in _PREFERENCES and harmless.get(name, object()) != value
    ]
    if unknown:
        raise ApiError("ValidationError", f"Preferences {', '.join(sorted(unknown))}: not emulated by the local cloud")
    least = int(given.get("MinHealthyPercentage", _DEFAULT_MIN_HEALTHY))
    if not 0 <= least <= 100:
        raise ApiError("ValidationError", f"MinHealthyPercentage {least} must be from 0 to 100")
    protected = given.get("ScaleInProtectedInstances", "Wait")
    if protected not in ("Refresh", "Ignore", "Wait"):
        raise ApiError("ValidationError", f"ScaleInProtectedInstances '{protected}' must be Refresh, Ignore or Wait")
    return {"MinHealthyPercentage": least, "SkipMatching": False} | given
