"""Converts groups, instances, hooks and refreshes to the format of Auto Scaling's Describe calls in boto3."""

from __future__ import annotations

from functools import partial
from typing import Any

from localcloud.compute import describe
from localcloud.compute.autoscaling.model import Group, Hook, LaunchPlan, Member, Refresh
from localcloud.compute.describe import timestamp

page = partial(describe.page, limit=100, size="MaxRecords")


def tag_list(group: Group) -> list[dict[str, Any]]:
    """Return a group's tags."""
    return [
        {
            "ResourceId": group.name, "ResourceType": "auto-scaling-group", "Key": tag.key, "Value": tag.value,
            "PropagateAtLaunch": tag.propagates,
        }
        for tag in sorted(group.tags.values(), key=lambda one: one.key)
    ]  # fmt: skip


def group_view(group: Group, *, with_instances: bool = True) -> dict[str, Any]:
    """Return a group's description."""
    view: dict[str, Any] = {
        "AutoScalingGroupName": group.name, "AutoScalingGroupARN": group.arn,
        "MinSize": group.minimum, "MaxSize": group.maximum, "DesiredCapacity": group.desired,
        "DefaultCooldown": 300,
        "AvailabilityZones": sorted({subnet.zone for subnet in group.subnets}),
        "LoadBalancerNames": [], "TargetGroupARNs": [], "TrafficSources": [],
        "HealthCheckType": "EC2", "HealthCheckGracePeriod": 0,
        "Instances": [member_view(one) for one in group.members.values()] if with_instances else [],
        "CreatedTime": timestamp(group.created),
        "SuspendedProcesses": [], "EnabledMetrics": [], "Tags": tag_list(group),
        "VPCZoneIdentifier": ",".join(one.subnet_id for one in group.subnets),
        "TerminationPolicies": ["Default"], "NewInstancesProtectedFromScaleIn": False,
        "CapacityRebalance": group.rebalances_capacity, "DesiredCapacityType": "units", "DeletionProtection": "none",
        "AvailabilityZoneDistribution": {"CapacityDistributionStrategy": "balanced-best-effort"},
    }  # fmt: skip
    view |= plan_view(group.plan)
    optional = {
        "MaxInstanceLifetime": group.maximum_lifetime_seconds,
        "CapacityReservationSpecification": dict(group.reservations) or None,
        "Status": "Delete in progress" if group.is_deleting else None,
    }  # fmt: skip
    return view | {name: value for name, value in optional.items() if value is not None}


def plan_view(plan: LaunchPlan) -> dict[str, Any]:
    """Return the launch plan under LaunchTemplate or MixedInstancesPolicy."""
    if plan.shown_policy is not None:
        return {"MixedInstancesPolicy": dict(plan.shown_policy)}
    return {"LaunchTemplate": plan.template.as_shown()}


def member_view(member: Member, group: Group | None = None) -> dict[str, Any]:
    """Return an instance's description. DescribeAutoScalingInstances also passes its group."""
    view: dict[str, Any] = {
        "InstanceId": member.instance_id, "InstanceType": member.instance_type, "AvailabilityZone": member.zone,
        "LifecycleState": member.state,
        "HealthStatus": member.health if group is None else member.health.upper(),
        "ProtectedFromScaleIn": False,
    }  # fmt: skip
    if member.template.template_id:
        view["LaunchTemplate"] = member.template.as_shown()
    return view if group is None else view | {"AutoScalingGroupName": group.name}


def hook_view(hook: Hook, group_name: str) -> dict[str, Any]:
    """Return a lifecycle hook's description."""
    return {
        "LifecycleHookName": hook.name, "AutoScalingGroupName": group_name,
        "LifecycleTransition": hook.transition, "HeartbeatTimeout": hook.heartbeat_seconds,
        "GlobalTimeout": hook.global_seconds, "DefaultResult": hook.default_result,
    }  # fmt: skip


def refresh_view(refresh: Refresh, group: Group) -> dict[str, Any]:
    """Return an instance refresh's description."""
    left = len(refresh.to_replace)
    done = 100 if refresh.status == "Successful" else 100 * (refresh.total - left) // max(refresh.total, 1)
    view: dict[str, Any] = {
        "InstanceRefreshId": refresh.refresh_id, "AutoScalingGroupName": group.name, "Status": refresh.status,
        "StartTime": timestamp(refresh.started), "Preferences": dict(refresh.preferences), "Strategy": "Rolling",
        "PercentageComplete": done if refresh.total else (100 if refresh.status == "Successful" else 0),
        "InstancesToUpdate": left,
    }  # fmt: skip
    if refresh.ended is not None:
        view["EndTime"] = timestamp(refresh.ended)
    return view
