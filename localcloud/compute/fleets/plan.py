"""From the requests of CreateFleet and RequestSpotFleet to one checked plan.

Spot Fleet's words are translated to EC2 Fleet's, so that one keeper serves both. Every problem of a request is told at
once. Not here: whether launch templates and what they refer to exist (`pools`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from localcloud.api import ApiError
from localcloud.compute.fleets.model import Kind, Plan, Pool, Rebalance, Targets
from localcloud.compute.moments import unix_seconds

SPOT_STRATEGIES = (
    "lowest-price", "diversified", "capacity-optimized", "capacity-optimized-prioritized", "price-capacity-optimized",
)  # fmt: skip
ON_DEMAND_STRATEGIES = ("lowest-price", "prioritized")
_SPOT_FLEET_WORDS = {
    "lowestPrice": "lowest-price", "diversified": "diversified", "capacityOptimized": "capacity-optimized",
    "capacityOptimizedPrioritized": "capacity-optimized-prioritized", "priceCapacityOptimized":
    "price-capacity-optimized", "prioritized": "prioritized",
}  # fmt: skip
_DELAY_SECONDS = (120, 7200)
# Options that are not emulated: refused rather than ignored.
_REFUSED = {
    "ec2": ("ReservedCapacityOptions",),
    "spot": ("LaunchSpecifications", "LoadBalancersConfig"),
}
_REFUSED_MARKET_OPTIONS = ("SingleInstanceType", "SingleAvailabilityZone", "CapacityReservationOptions")


@dataclass
class _Checks:
    """Gathers what is wrong with a request."""

    kind: Kind
    problems: list[str] = field(default_factory=list)

    def one_of(self, name: str, value: str, allowed: Sequence[str]) -> None:
        if value not in allowed:
            self.problems.append(f"{name} '{value}' is not one of {', '.join(allowed)}")

    def finish(self) -> None:
        if self.problems:
            code = "InvalidFleetConfig" if self.kind == "ec2" else "InvalidSpotFleetRequestConfig"
            raise ApiError(code, "; ".join(self.problems))


def ec2_fleet_plan(request: Mapping[str, Any], pools: Sequence[Pool]) -> Plan:
    """Return the plan of a CreateFleet request.

    Raises:
        ApiError: InvalidFleetConfig with all that is wrong.
    """
    checks = _Checks("ec2")
    fleet_type = str(request.get("Type", "maintain"))
    checks.one_of("Type", fleet_type, ("maintain", "request", "instant"))
    spot, on_demand = request.get("SpotOptions") or {}, request.get("OnDemandOptions") or {}
    _refuse(checks, request, "ec2")
    for name, options in (("SpotOptions", spot), ("OnDemandOptions", on_demand)):
        checks.problems += [
            f"{name}.{one} is not emulated by the local cloud" for one in _REFUSED_MARKET_OPTIONS if options.get(one)
        ]
        if options.get("MinTargetCapacity") and fleet_type != "instant":
            checks.problems.append(f"{name}.MinTargetCapacity is supported for fleets of type instant only")
    if spot.get("InstanceInterruptionBehavior", "terminate") != "terminate":
        checks.problems.append("SpotOptions.InstanceInterruptionBehavior is not emulated; use terminate")
    tags = request.get("TagSpecifications", [])
    if fleet_type != "instant" and any(one.get("ResourceType") != "fleet" for one in tags):
        checks.problems.append("TagSpecifications: fleets of this type tag themselves only (resource type fleet)")
    plan = Plan(
        kind="ec2",
        fleet_type=fleet_type,  # type: ignore[arg-type]  # checked above
        targets=read_targets(request["TargetCapacitySpecification"]),
        pools=pools,
        spot_strategy=spot.get("AllocationStrategy", "lowest-price"),
        on_demand_strategy=on_demand.get("AllocationStrategy", "lowest-price"),
        spot_pools=int(spot.get("InstancePoolsToUseCount", 1)),
        max_total_price={"spot": _price(spot), "on-demand": _price(on_demand)},
        least={
            "spot": int(spot.get("MinTargetCapacity", 0)), "on-demand": int(on_demand.get("MinTargetCapacity", 0))
        },
        replaces_unhealthy=bool(request.get("ReplaceUnhealthyInstances")),
        terminates_excess=request.get("ExcessCapacityTerminationPolicy", "termination") == "termination",
        terminates_on_expiry=bool(request.get("TerminateInstancesWithExpiration")),
        valid_from=_unix(request.get("ValidFrom")),
        valid_until=_unix(request.get("ValidUntil")),
        rebalance=_rebalance(checks, (spot.get("MaintenanceStrategies") or {}).get("CapacityRebalance"), fleet_type),
        instance_tags=[one for one in tags if one.get("ResourceType") == "instance"],
    )  # fmt: skip
    _check_plan(checks, plan, "InstancePoolsToUseCount" in spot)
    return plan


def spot_fleet_plan(config: Mapping[str, Any], pools: Sequence[Pool]) -> Plan:
    """Return the plan of a SpotFleetRequestConfig.

    Raises:
        ApiError: InvalidSpotFleetRequestConfig with all that is wrong.
    """
    checks = _Checks("spot")
    fleet_type = str(config.get("Type", "maintain"))
    checks.one_of("Type", fleet_type, ("maintain", "request"))
    _refuse(checks, config, "spot")
    if config.get("InstanceInterruptionBehavior", "terminate") != "terminate":
        checks.problems.append("InstanceInterruptionBehavior is not emulated; use terminate")
    spot, on_demand = config.get("AllocationStrategy", "lowestPrice"), config.get("OnDemandAllocationStrategy")
    total, base = int(config["TargetCapacity"]), int(config.get("OnDemandTargetCapacity", 0))
    policy = config.get("ExcessCapacityTerminationPolicy", "default")
    checks.one_of("ExcessCapacityTerminationPolicy", policy, ("default", "noTermination"))
    if base > total:
        checks.problems.append(f"OnDemandTargetCapacity {base} is above TargetCapacity {total}")
    maintenance = (config.get("SpotMaintenanceStrategies") or {}).get("CapacityRebalance")
    plan = Plan(
        kind="spot",
        fleet_type=fleet_type,  # type: ignore[arg-type]  # checked above
        targets=Targets(total, base, max(0, total - base)),
        pools=pools,
        spot_strategy=_SPOT_FLEET_WORDS.get(spot, spot),
        on_demand_strategy=_SPOT_FLEET_WORDS.get(on_demand or "lowestPrice", str(on_demand)),
        spot_pools=int(config.get("InstancePoolsToUseCount", 1)),
        max_total_price={
            "spot": _number(config.get("SpotMaxTotalPrice")), "on-demand": _number(config.get("OnDemandMaxTotalPrice"))
        },
        least={"spot": 0, "on-demand": 0},
        replaces_unhealthy=bool(config.get("ReplaceUnhealthyInstances")),
        terminates_excess=policy == "default",
        terminates_on_expiry=bool(config.get("TerminateInstancesWithExpiration")),
        valid_from=_unix(config.get("ValidFrom")),
        valid_until=_unix(config.get("ValidUntil")),
        rebalance=_rebalance(checks, maintenance, fleet_type),
        instance_tags=(),
    )  # fmt: skip
    _check_plan(checks, plan, "InstancePoolsToUseCount" in config)
    return plan


def read_targets(target: Mapping[str, Any]) -> Targets:
    """Return the targets of a TargetCapacitySpecification; what no part names is of the default type.

    Raises:
        ApiError: InvalidTargetCapacitySpecification when the total is below the sum of its parts.
    """
    on_demand, spot = int(target.get("OnDemandTargetCapacity") or 0), int(target.get("SpotTargetCapacity") or 0)
    total = int(target["TotalTargetCapacity"])
    rest = total - on_demand - spot
    if rest < 0:
        raise ApiError("InvalidTargetCapacitySpecification", "TotalTargetCapacity is below the sum of its parts")
    if target.get("DefaultTargetCapacityType", "on-demand") == "spot":
        return Targets(total, on_demand, spot + rest)
    return Targets(total, on_demand + rest, spot)


def _check_plan(checks: _Checks, plan: Plan, names_pools: bool) -> None:
    checks.one_of("spot AllocationStrategy", plan.spot_strategy, SPOT_STRATEGIES)
    checks.one_of("on-demand AllocationStrategy", plan.on_demand_strategy, ON_DEMAND_STRATEGIES)
    if names_pools and plan.spot_strategy != "lowest-price":
        checks.problems.append("InstancePoolsToUseCount can be used with the lowest-price strategy only")
    if plan.targets.total < 0:
        checks.problems.append(f"target capacity {plan.targets.total} is negative")
    if plan.valid_from is not None and plan.valid_until is not None and plan.valid_from >= plan.valid_until:
        checks.problems.append("ValidFrom is not before ValidUntil")
    checks.finish()


def _refuse(checks: _Checks, request: Mapping[str, Any], kind: Kind) -> None:
    checks.problems += [f"{one} is not emulated by the local cloud" for one in _REFUSED[kind] if request.get(one)]


def _rebalance(checks: _Checks, options: Mapping[str, Any] | None, fleet_type: str) -> Rebalance | None:
    if not options:
        return None
    strategy, delay = options.get("ReplacementStrategy", "launch"), options.get("TerminationDelay")
    checks.one_of("ReplacementStrategy", strategy, ("launch", "launch-before-terminate"))
    if fleet_type != "maintain":
        checks.problems.append("CapacityRebalance is for fleets of type maintain only")
    if (strategy == "launch-before-terminate") != (delay is not None):
        checks.problems.append(
            "TerminationDelay goes with ReplacementStrategy launch-before-terminate, and only with it"
        )
    if delay is not None and not _DELAY_SECONDS[0] <= int(delay) <= _DELAY_SECONDS[1]:
        checks.problems.append(f"TerminationDelay {delay} must be from {_DELAY_SECONDS[0]} to {_DELAY_SECONDS[1]}")
    return Rebalance(None if delay is None else int(delay))


def _price(options: Mapping[str, Any]) -> float | None:
    return _number(options.get("MaxTotalPrice"))


def _number(text: str | None) -> float | None:
    return float(text) if text else None


def _unix(moment: datetime | None) -> float | None:
    return None if moment is None else unix_seconds(moment)
