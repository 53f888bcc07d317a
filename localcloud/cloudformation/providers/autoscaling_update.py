"""UpdatePolicy of an Auto Scaling group: how an update reaches the instances that already run.

Source: https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-attribute-updatepolicy.html, read
2026-11. Not here: AutoScalingReplacingUpdate, which makes a new group; the engine decides that before a provider is
asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..provider import ResourceContext, ResourceFailure
from .resource import Place
from .shapes import truth
from .waiting import wait_for

_REFRESH_FAILED = frozenset({"Failed", "Cancelled", "RollbackSuccessful", "RollbackFailed"})


@dataclass(frozen=True)
class UpdatePolicy:
    """The parts of an UpdatePolicy attribute that the provider carries out."""

    refresh: Mapping[str, Any] | None
    rolling: Mapping[str, Any] | None
    replaces: bool
    ignores_unmodified_sizes: bool

    @classmethod
    def of(cls, context: ResourceContext) -> UpdatePolicy:
        """Read the policy of the resource.

        Raises:
            ResourceFailure: an unknown policy, or refresh and rolling update at once.
        """
        policy = context.attributes.get("UpdatePolicy", {})
        unknown = sorted(set(policy) - _POLICIES)
        if unknown:
            raise ResourceFailure(f"UpdatePolicy: unknown {', '.join(unknown)}; known are {', '.join(_POLICIES)}")
        refresh, rolling = policy.get("AutoScalingInstanceRefresh"), policy.get("AutoScalingRollingUpdate")
        if refresh is not None and rolling is not None:
            raise ResourceFailure(
                "UpdatePolicy: AutoScalingInstanceRefresh and AutoScalingRollingUpdate exclude each other"
            )
        replacing, scheduled = (policy.get(name, {}) for name in ("AutoScalingReplacingUpdate", _SCHEDULED))
        return cls(
            refresh=refresh,
            rolling=rolling,
            replaces=truth(replacing.get("WillReplace", False)),
            ignores_unmodified_sizes=truth(scheduled.get("IgnoreUnmodifiedGroupSizeProperties", False)),
        )

    def refuse_signals(self, context: ResourceContext) -> None:
        """Raise ResourceFailure when a policy waits for signals, which the local cloud does not count."""
        creation = context.attributes.get("CreationPolicy", {}).get("ResourceSignal", {})
        if int(creation.get("Count", 1 if creation else 0)) > 0:
            raise ResourceFailure("CreationPolicy.ResourceSignal: the local cloud counts no signals; drop it")
        if self.rolling is not None and truth(self.rolling.get("WaitOnResourceSignals", False)):
            raise ResourceFailure("UpdatePolicy: WaitOnResourceSignals: the local cloud counts no signals; drop it")

    def refuse_replacing(self, group: str) -> None:
        """Raise ResourceFailure when the policy wants a new group and the update came here all the same."""
        if self.replaces:
            raise ResourceFailure(f"{group}: AutoScalingReplacingUpdate wants a new group; it cannot change in place")


_SCHEDULED = "AutoScalingScheduledAction"
_POLICIES = frozenset(
    {"AutoScalingInstanceRefresh", "AutoScalingRollingUpdate", "AutoScalingReplacingUpdate", _SCHEDULED}
)


def replace_instances(at: Place, group: str, policy: UpdatePolicy, *, timeout_seconds: float) -> None:
    """Replace the running instances of `group` as the policy says; without one they are left alone.

    Raises:
        ResourceFailure: the refresh failed, or replacements did not come into service within `timeout_seconds`.
    """
    if policy.refresh is not None:
        _refresh(at, group, policy.refresh, timeout_seconds)
    elif policy.rolling is not None:
        _roll(at, group, policy.rolling, timeout_seconds)


def _refresh(at: Place, group: str, policy: Mapping[str, Any], timeout_seconds: float) -> None:
    if not _instances(at, group):
        return
    started = at.call("start_instance_refresh", AutoScalingGroupName=group, **policy)
    refresh_id = started["InstanceRefreshId"]

    def ended() -> Mapping[str, Any] | None:
        answer = at.call("describe_instance_refreshes", AutoScalingGroupName=group, InstanceRefreshIds=[refresh_id])
        refresh: Mapping[str, Any] = answer["InstanceRefreshes"][0]
        return refresh if refresh["Status"] in _REFRESH_FAILED | {"Successful"} else None

    refresh = wait_for(ended, f"instance refresh of {group}", timeout_seconds=timeout_seconds)
    if refresh["Status"] in _REFRESH_FAILED:
        reason = refresh.get("StatusReason", "no reason given")
        raise ResourceFailure(f"instance refresh {refresh_id} of {group}: {refresh['Status']}: {reason}")


def _roll(at: Place, group: str, policy: Mapping[str, Any], timeout_seconds: float) -> None:
    """Terminate batch after batch and wait for each to be replaced, with the policy's processes suspended."""
    unsupported = {"MinActiveInstancesPercent", "MinSuccessfulInstancesPercent", "PauseTime"} & {
        name for name, value in policy.items() if value not in (None, 0, 100, "PT0S")
    }
    if unsupported:
        raise ResourceFailure(f"AutoScalingRollingUpdate: the local cloud cannot do {', '.join(sorted(unsupported))}")
    old = _instances(at, group)
    kept = int(policy.get("MinInstancesInService", 0))
    if old and kept >= len(old):
        raise ResourceFailure(
            f"AutoScalingRollingUpdate: MinInstancesInService {kept} leaves none of {len(old)} instances to replace"
        )
    batch = min(int(policy.get("MaxBatchSize", 1)), max(len(old) - kept, 1))
    suspended = list(policy.get("SuspendProcesses") or [])
    if suspended:
        at.call("suspend_processes", AutoScalingGroupName=group, ScalingProcesses=suspended)
    try:
        for start in range(0, len(old), batch):
            _replace_batch(at, group, old[start : start + batch], len(old), timeout_seconds)
    finally:
        if suspended:
            at.call("resume_processes", AutoScalingGroupName=group, ScalingProcesses=suspended)


def _replace_batch(at: Place, group: str, batch: list[str], wanted: int, timeout_seconds: float) -> None:
    for instance in batch:
        at.call(
            "terminate_instance_in_auto_scaling_group",
            InstanceId=instance,
            ShouldDecrementDesiredCapacity=False,
        )

    def replaced() -> bool:
        serving = _instances(at, group, state="InService")
        return len(serving) >= wanted and not set(batch) & set(serving)

    wait_for(replaced, f"replacement of {', '.join(batch)}", timeout_seconds=timeout_seconds)


def _instances(at: Place, group: str, *, state: str | None = None) -> list[str]:
    groups = at.call("describe_auto_scaling_groups", AutoScalingGroupNames=[group])["AutoScalingGroups"]
    instances = [instance for item in groups for instance in item["Instances"]]
    return [item["InstanceId"] for item in instances if state in {None, item["LifecycleState"]}]
