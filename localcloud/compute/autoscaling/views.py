"""Groups, instances, hooks and refreshes as Auto Scaling's describe calls show them (boto3's shapes)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from localcloud.api import ApiError
from localcloud.compute.autoscaling.model import Group, Hook, LaunchPlan, Member, Refresh


def moment(unix_seconds: float) -> datetime:
    """Return a time in the form that the gateway serialises."""
    return datetime.fromtimestamp(unix_seconds, timezone.utc)


def page(items: Sequence[Any], parameters: Mapping[str, Any], name: str, most: int = 100) -> dict[str, Any]:
    """Return one page of a listing under `name`, with the token of the next one.

    Raises:
        ApiError: InvalidNextToken.
    """
    token = parameters.get("NextToken")
    if token is not None and not str(token).isdigit():
        raise ApiError("InvalidNextToken", f"The token '{token}' is invalid.")
    start, size = int(token or 0), min(int(parameters.get("MaxRecords", most)), most)
    answer: dict[str, Any] = {name: list(items[start : start + size])}
    if start + size < len(items):
        answer["NextToken"] = str(start + size)
    return answer


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
    """Return one group."""
    view: dict[str, Any] = {
        "AutoScalingGroupName": group.name, "AutoScalingGroupARN": group.arn,
        "MinSize": group.minimum, "MaxSize": group.maximum, "DesiredCapacity": group.desired,
        "DefaultCooldown": group.cooldown_seconds,
        "AvailabilityZones": sorted({subnet.zone for subnet in group.subnets}),
        "LoadBalancerNames": [], "TargetGroupARNs": [], "TrafficSources": [],
        "HealthCheckType": group.health_check_type, "HealthCheckGracePeriod": group.health_check_grace_seconds,
        "Instances": [member_view(one) for one in group.members.values()] if with_instances else [],
        "CreatedTime": moment(group.created),
        "SuspendedProcesses": [
            {"ProcessName": name, "SuspensionReason": why} for name, why in sorted(group.suspended.items())
        ],
        "VPCZoneIdentifier": ",".join(one.subnet_id for one in group.subnets) if not group.uses_default_subnets else "",
        "EnabledMetrics": [],
        "Tags": tag_list(group), "TerminationPolicies": list(group.termination_policies),
        "NewInstancesProtectedFromScaleIn": group.protects_new_instances,
        "ServiceLinkedRoleARN": group.service_role_arn, "CapacityRebalance": group.rebalances_capacity,
        "DesiredCapacityType": "units", "DeletionProtection": group.deletion_protection,
        "AvailabilityZoneDistribution": {
            "CapacityDistributionStrategy": "balanced-only" if group.balanced_only else "balanced-best-effort"
        },
    }  # fmt: skip
    view |= plan_view(group.plan)
    optional = {
        "PlacementGroup": group.placement_group, "DefaultInstanceWarmup": group.default_warmup_seconds,
        "MaxInstanceLifetime": group.maximum_lifetime_seconds,
        "CapacityReservationSpecification": dict(group.reservations) or None,
        "Status": "Delete in progress" if group.is_deleting else None,
    }  # fmt: skip
    return view | {name: value for name, value in optional.items() if value is not None}


def plan_view(plan: LaunchPlan) -> dict[str, Any]:
    """Return what is launched, under LaunchTemplate or MixedInstancesPolicy."""
    if plan.shown_policy is not None:
        return {"MixedInstancesPolicy": dict(plan.shown_policy)}
    return {"LaunchTemplate": plan.template.as_shown()}


def member_view(member: Member, group: Group | None = None) -> dict[str, Any]:
    """Return one instance, with its group when that is given (DescribeAutoScalingInstances)."""
    view: dict[str, Any] = {
        "InstanceId": member.instance_id, "InstanceType": member.instance_type, "AvailabilityZone": member.zone,
        "LifecycleState": member.state,
        "HealthStatus": member.health if group is None else member.health.upper(),
        "ProtectedFromScaleIn": member.is_protected,
    }  # fmt: skip
    if member.template.template_id:
        view["LaunchTemplate"] = member.template.as_shown()
    if member.weight != 1:
        view["WeightedCapacity"] = str(member.weight)
    return view if group is None else view | {"AutoScalingGroupName": group.name}


def hook_view(hook: Hook, group_name: str) -> dict[str, Any]:
    """Return one lifecycle hook."""
    view = {
        "LifecycleHookName": hook.name, "AutoScalingGroupName": group_name,
        "LifecycleTransition": hook.transition, "HeartbeatTimeout": hook.heartbeat_seconds,
        "GlobalTimeout": hook.global_seconds, "DefaultResult": hook.default_result,
        "NotificationMetadata": hook.notification_metadata, "NotificationTargetARN": hook.target_arn,
        "RoleARN": hook.role_arn,
    }  # fmt: skip
    return {name: value for name, value in view.items() if value is not None}


def refresh_view(refresh: Refresh, group: Group) -> dict[str, Any]:
    """Return one instance refresh."""
    left = len(refresh.to_replace)
    done = 100 if refresh.status == "Successful" else 100 * (refresh.total - left) // max(refresh.total, 1)
    view: dict[str, Any] = {
        "InstanceRefreshId": refresh.refresh_id, "AutoScalingGroupName": group.name, "Status": refresh.status,
        "StartTime": moment(refresh.started), "Preferences": dict(refresh.preferences), "Strategy": "Rolling",
        "PercentageComplete": done if refresh.total else (100 if refresh.status == "Successful" else 0),
        "InstancesToUpdate": left,
    }  # fmt: skip
    if refresh.reason:
        view["StatusReason"] = refresh.reason
    if refresh.ended is not None:
        view["EndTime"] = moment(refresh.ended)
    if refresh.desired_configuration is not None:
        view["DesiredConfiguration"] = dict(refresh.desired_configuration)
    return view
