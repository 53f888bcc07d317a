"""Reads and checks the parameters that describe a group, for both creating and updating it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from botocore.exceptions import ClientError

from localcloud.api import ApiError, Clients
from localcloud.compute.autoscaling.model import Group, GroupTag, Subnet

_KNOWN = frozenset(
    {"AutoScalingGroupName", "LaunchTemplate", "MixedInstancesPolicy", "LaunchConfigurationName", "InstanceId"}
    | {"MinSize", "MaxSize", "DesiredCapacity", "DefaultCooldown", "AvailabilityZones", "VPCZoneIdentifier"}
    | {"HealthCheckType", "HealthCheckGracePeriod", "PlacementGroup", "TerminationPolicies", "CapacityRebalance"}
    | {"NewInstancesProtectedFromScaleIn", "LifecycleHookSpecificationList", "Tags", "ServiceLinkedRoleARN"}
    | {"MaxInstanceLifetime", "DefaultInstanceWarmup", "DesiredCapacityType", "AvailabilityZoneDistribution"}
    | {"DeletionProtection", "InstanceMaintenancePolicy", "CapacityReservationSpecification"}
)
_EMPTY_LISTS = frozenset({"LoadBalancerNames", "TargetGroupARNs", "TrafficSources"})
TERMINATION_POLICIES = (
    "Default", "AllocationStrategy", "OldestLaunchTemplate", "OldestInstance", "NewestInstance",
    "ClosestToNextInstanceHour",
)  # fmt: skip
_RESERVATION_PREFERENCES = ("default", "none", "capacity-reservations-first", "capacity-reservations-only")
_DELETION_PROTECTIONS = ("none", "prevent-force-deletion", "prevent-all-deletion")
_SHORTEST_LIFETIME_SECONDS = 86400


def refuse_unknown(parameters: Mapping[str, Any]) -> None:
    """Refuse what the local cloud would otherwise ignore.

    Raises:
        ApiError: ValidationError that names all such parameters.
    """
    unknown = [
        name for name, value in parameters.items() if name not in _KNOWN and not (name in _EMPTY_LISTS and not value)
    ]
    policy = parameters.get("InstanceMaintenancePolicy") or {}
    if any(int(value) != -1 for value in policy.values()):
        unknown.append("InstanceMaintenancePolicy")
    if parameters.get("DesiredCapacityType", "units") != "units":
        unknown.append("DesiredCapacityType")
    if unknown:
        raise ApiError("ValidationError", f"{', '.join(sorted(unknown))}: not emulated by the local cloud; drop it")


def check_sizes(minimum: int, maximum: int, desired: int) -> None:
    """Check the sizes of a group against each other.

    Raises:
        ApiError: ValidationError.
    """
    if minimum < 0:
        raise ApiError("ValidationError", f"Min bound, {minimum}, must not be negative")
    if minimum > maximum:
        raise ApiError(
            "ValidationError", f"Max bound, {maximum}, must be greater than or equal to min bound, {minimum}"
        )
    if not minimum <= desired <= maximum:
        raise ApiError(
            "ValidationError",
            f"Desired capacity:{desired} must be between the specified min size:{minimum} and max size:{maximum}",
        )


def read_subnets(parameters: Mapping[str, Any], clients: Clients) -> tuple[list[Subnet], bool] | None:
    """Return the subnets that the parameters name, and whether they are the zones' default ones; None when none.

    Raises:
        ApiError: ValidationError for subnets or zones that are not there.
    """
    ec2 = clients.direct("ec2")
    zones: Sequence[str] = parameters.get("AvailabilityZones") or []
    wanted = [one.strip() for one in (parameters.get("VPCZoneIdentifier") or "").split(",") if one.strip()]
    if wanted:
        try:
            found = {one["SubnetId"]: one for one in ec2.describe_subnets(SubnetIds=wanted)["Subnets"]}
        except ClientError as error:
            raise ApiError("ValidationError", error.response["Error"]["Message"]) from error
        subnets = [Subnet(one, found[one]["AvailabilityZone"]) for one in wanted]
        if zones and set(zones) != {subnet.zone for subnet in subnets}:
            raise ApiError(
                "ValidationError", "The availability zones of the specified subnets and the Auto Scaling group do not "
                "match",
            )  # fmt: skip
        return subnets, False
    if not zones:
        return None
    filters = [{"Name": "default-for-az", "Values": ["true"]}, {"Name": "availability-zone", "Values": list(zones)}]
    default = [
        Subnet(one["SubnetId"], one["AvailabilityZone"]) for one in ec2.describe_subnets(Filters=filters)["Subnets"]
    ]
    if missing := set(zones) - {subnet.zone for subnet in default}:
        raise ApiError("ValidationError", f"No default subnet for availability zone: {', '.join(sorted(missing))}")
    return default, True


def apply_settings(group: Group, parameters: Mapping[str, Any]) -> None:
    """Set what the parameters say beside sizes, subnets, plan, tags and hooks; -1, 0 and "" unset as in the API.

    Raises:
        ApiError: ValidationError; the group is unchanged then.
    """
    _check_settings(parameters)
    if "DefaultCooldown" in parameters:
        group.cooldown_seconds = int(parameters["DefaultCooldown"])
    if "HealthCheckType" in parameters:
        group.health_check_type = parameters["HealthCheckType"]
    if "HealthCheckGracePeriod" in parameters:
        group.health_check_grace_seconds = int(parameters["HealthCheckGracePeriod"])
    if "PlacementGroup" in parameters:
        group.placement_group = parameters["PlacementGroup"] or None
    if "TerminationPolicies" in parameters:
        group.termination_policies = tuple(parameters["TerminationPolicies"]) or ("Default",)
    if "NewInstancesProtectedFromScaleIn" in parameters:
        group.protects_new_instances = bool(parameters["NewInstancesProtectedFromScaleIn"])
    if "CapacityRebalance" in parameters:
        group.rebalances_capacity = bool(parameters["CapacityRebalance"])
    if parameters.get("ServiceLinkedRoleARN"):
        group.service_role_arn = parameters["ServiceLinkedRoleARN"]
    if "MaxInstanceLifetime" in parameters:
        group.maximum_lifetime_seconds = int(parameters["MaxInstanceLifetime"]) or None
    if "DefaultInstanceWarmup" in parameters:
        warmup = int(parameters["DefaultInstanceWarmup"])
        group.default_warmup_seconds = None if warmup == -1 else warmup
    if "AvailabilityZoneDistribution" in parameters:
        strategy = parameters["AvailabilityZoneDistribution"].get("CapacityDistributionStrategy")
        group.balanced_only = strategy == "balanced-only"
    if "DeletionProtection" in parameters:
        group.deletion_protection = parameters["DeletionProtection"]
    if "CapacityReservationSpecification" in parameters:
        group.reservations = parameters["CapacityReservationSpecification"]


def _check_settings(parameters: Mapping[str, Any]) -> None:
    problems = []
    if parameters.get("HealthCheckType", "EC2") != "EC2":
        problems.append(
            f"HealthCheckType '{parameters['HealthCheckType']}' is not emulated by the local cloud; use EC2"
        )
    reserved = parameters.get("CapacityReservationSpecification", {})
    preference = reserved.get("CapacityReservationPreference", "default")
    if preference not in _RESERVATION_PREFERENCES:
        problems.append(
            f"CapacityReservationPreference '{preference}' is not one of {', '.join(_RESERVATION_PREFERENCES)}"
        )
    if preference in ("default", "none") and reserved.get("CapacityReservationTarget"):
        problems.append(f"CapacityReservationPreference '{preference}' takes no CapacityReservationTarget")
    for policy in parameters.get("TerminationPolicies", []):
        if policy not in TERMINATION_POLICIES:
            problems.append(f"Termination policy '{policy}' is not one of {', '.join(TERMINATION_POLICIES)}")
    lifetime = int(parameters.get("MaxInstanceLifetime", 0))
    if lifetime != 0 and lifetime < _SHORTEST_LIFETIME_SECONDS:
        problems.append(f"MaxInstanceLifetime {lifetime} must be 0 or at least {_SHORTEST_LIFETIME_SECONDS} seconds")
    for name, least in (("DefaultCooldown", 0), ("HealthCheckGracePeriod", 0), ("DefaultInstanceWarmup", -1)):
        if int(parameters.get(name, 0)) < least:
            problems.append(f"{name} {parameters[name]} must be at least {least}")
    strategy = (parameters.get("AvailabilityZoneDistribution") or {}).get("CapacityDistributionStrategy")
    if strategy not in (None, "balanced-best-effort", "balanced-only"):
        problems.append(f"CapacityDistributionStrategy '{strategy}' is not known")
    if parameters.get("DeletionProtection", "none") not in _DELETION_PROTECTIONS:
        problems.append(f"DeletionProtection must be one of {', '.join(_DELETION_PROTECTIONS)}")
    if problems:
        raise ApiError("ValidationError", "; ".join(problems))


def read_tags(parameters: Mapping[str, Any]) -> dict[str, GroupTag]:
    """Return the tags that the parameters give a group.

    Raises:
        ApiError: ValidationError for keys of the aws: prefix, except those that CloudFormation sets.
    """
    tags = {}
    for tag in parameters.get("Tags", []):
        key = tag["Key"]
        if key.startswith("aws:") and not key.startswith("aws:cloudformation:"):
            raise ApiError("ValidationError", f"Tag key '{key}': the prefix aws: is reserved")
        tags[key] = GroupTag(key, tag.get("Value", ""), bool(tag.get("PropagateAtLaunch", False)))
    return tags
