"""Reads and checks the parameters of CreateAutoScalingGroup and UpdateAutoScalingGroup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from localcloud.api import ApiError, Clients
from localcloud.compute.autoscaling.model import Group, GroupTag, Subnet

_KNOWN = frozenset(
    {"AutoScalingGroupName", "LaunchTemplate", "MixedInstancesPolicy", "LaunchConfigurationName", "InstanceId"}
    | {"MinSize", "MaxSize", "DesiredCapacity", "VPCZoneIdentifier", "CapacityRebalance", "Tags"}
    | {"LifecycleHookSpecificationList", "MaxInstanceLifetime", "CapacityReservationSpecification"}
)
_RESERVATION_PREFERENCES = ("default", "none", "capacity-reservations-first", "capacity-reservations-only")
_MIN_LIFETIME_SECONDS = 86400


def refuse_unknown(parameters: Mapping[str, Any]) -> None:
    """Reject parameters that the embedded cloud does not emulate.

    Raises:
        ApiError: ValidationError that lists all such parameters.
    """
    if unknown := parameters.keys() - _KNOWN:
        raise ApiError("ValidationError", f"parameters not emulated: {', '.join(sorted(unknown))}; remove them")


def check_sizes(minimum: int, maximum: int, desired: int) -> None:
    """Check that a group's sizes are consistent.

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


def read_subnets(parameters: Mapping[str, Any], clients: Clients) -> list[Subnet] | None:
    """Return the subnets named in the parameters, or None if there are none.

    Raises:
        ApiError: ValidationError for subnets that do not exist.
    """
    wanted = [one.strip() for one in (parameters.get("VPCZoneIdentifier") or "").split(",") if one.strip()]
    if not wanted:
        return None
    try:
        answer = clients.direct("ec2").describe_subnets(SubnetIds=wanted)
    except ClientError as error:
        raise ApiError("ValidationError", error.response["Error"]["Message"]) from error
    found = {one["SubnetId"]: one for one in answer["Subnets"]}
    return [Subnet(one, found[one]["AvailabilityZone"]) for one in wanted]


def apply_settings(group: Group, parameters: Mapping[str, Any]) -> None:
    """Apply all parameters except sizes, subnets, plan, tags and hooks. A MaxInstanceLifetime of 0 removes the limit.

    Raises:
        ApiError: ValidationError for invalid settings. The group remains unchanged.
    """
    _check_settings(parameters)
    if "CapacityRebalance" in parameters:
        group.rebalances_capacity = bool(parameters["CapacityRebalance"])
    if "MaxInstanceLifetime" in parameters:
        group.maximum_lifetime_seconds = int(parameters["MaxInstanceLifetime"]) or None
    if "CapacityReservationSpecification" in parameters:
        group.reservations = parameters["CapacityReservationSpecification"]


def _check_settings(parameters: Mapping[str, Any]) -> None:
    problems = []
    reserved = parameters.get("CapacityReservationSpecification", {})
    preference = reserved.get("CapacityReservationPreference", "default")
    if preference not in _RESERVATION_PREFERENCES:
        problems.append(
            f"CapacityReservationPreference '{preference}' is not one of {', '.join(_RESERVATION_PREFERENCES)}"
        )
    if preference in ("default", "none") and reserved.get("CapacityReservationTarget"):
        problems.append(f"CapacityReservationPreference '{preference}' does not allow a CapacityReservationTarget")
    lifetime = int(parameters.get("MaxInstanceLifetime", 0))
    if lifetime != 0 and lifetime < _MIN_LIFETIME_SECONDS:
        problems.append(f"MaxInstanceLifetime {lifetime} must be 0 or at least {_MIN_LIFETIME_SECONDS} seconds")
    if problems:
        raise ApiError("ValidationError", "; ".join(problems))


def read_tags(parameters: Mapping[str, Any]) -> dict[str, GroupTag]:
    """Return the group tags in the parameters.

    Raises:
        ApiError: ValidationError for keys that start with aws:, except CloudFormation's keys.
    """
    tags = {}
    for tag in parameters.get("Tags", []):
        key = tag["Key"]
        if key.startswith("aws:") and not key.startswith("aws:cloudformation:"):
            raise ApiError("ValidationError", f"Tag key '{key}': the prefix aws: is reserved")
        tags[key] = GroupTag(key, tag.get("Value", ""), bool(tag.get("PropagateAtLaunch", False)))
    return tags
