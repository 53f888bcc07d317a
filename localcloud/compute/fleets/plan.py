"""Validates CreateFleet and RequestSpotFleet requests and converts them to a common plan.

Spot Fleet's values are converted to EC2 Fleet's spelling so that one reconciler can handle both kinds of fleet. All
problems in a request are reported together. `pools` checks the launch templates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from localcloud.api import ApiError
from localcloud.compute.fleets.model import Kind, Plan, Pool, Rebalance, Targets

# AWS has more strategies; no template of this project uses them.
SPOT_STRATEGIES = ("lowest-price", "capacity-optimized", "price-capacity-optimized")
ON_DEMAND_STRATEGIES = ("lowest-price", "prioritized")
_SPOT_FLEET_STRATEGIES = {
    "lowestPrice": "lowest-price", "capacityOptimized": "capacity-optimized",
    "priceCapacityOptimized": "price-capacity-optimized", "prioritized": "prioritized",
}  # fmt: skip
_DELAY_SECONDS = (120, 7200)
# The embedded cloud rejects these options because it does not emulate them.
_REFUSED = {
    "ec2": ("ReservedCapacityOptions", "ValidFrom", "ValidUntil", "TerminateInstancesWithExpiration"),
    "spot": (
        *("LaunchSpecifications", "LoadBalancersConfig", "ValidFrom", "ValidUntil", "InstancePoolsToUseCount"),
        *("TerminateInstancesWithExpiration", "SpotMaxTotalPrice", "OnDemandMaxTotalPrice"),
    ),
}
_REFUSED_MARKET_OPTIONS = (
    *("SingleInstanceType", "SingleAvailabilityZone", "CapacityReservationOptions"),
    *("MinTargetCapacity", "InstancePoolsToUseCount", "MaxTotalPrice"),
)


@dataclass
class _Checks:
    """Collects the problems in a request."""

    kind: Kind
    problems: list[str] = field(default_factory=list)

    def one_of(self, name: str, value: str, allowed: Sequence[str]) -> None:
        if value not in allowed:
            self.problems.append(f"{name} '{value}' is not emulated; use one of {', '.join(allowed)}")

    def finish(self) -> None:
        if self.problems:
            code = "InvalidFleetConfig" if self.kind == "ec2" else "InvalidSpotFleetRequestConfig"
            raise ApiError(code, "; ".join(self.problems))


def ec2_fleet_plan(request: Mapping[str, Any], pools: Sequence[Pool]) -> Plan:
    """Return the plan for a CreateFleet request.

    Raises:
        ApiError: InvalidFleetConfig, which lists all problems.
    """
    checks = _Checks("ec2")
    checks.one_of("Type", str(request.get("Type", "maintain")), ("maintain",))
    spot, on_demand = request.get("SpotOptions") or {}, request.get("OnDemandOptions") or {}
    _refuse(checks, request, "ec2")
    for name, options in (("SpotOptions", spot), ("OnDemandOptions", on_demand)):
        checks.problems += [
            f"{name}.{one} is not emulated by the embedded cloud" for one in _REFUSED_MARKET_OPTIONS if options.get(one)
        ]
    if spot.get("InstanceInterruptionBehavior", "terminate") != "terminate":
        checks.problems.append("SpotOptions.InstanceInterruptionBehavior is not emulated; use terminate")
    tags = request.get("TagSpecifications", [])
    if any(one.get("ResourceType") != "fleet" for one in tags):
        checks.problems.append("TagSpecifications: a fleet of type maintain supports resource type fleet only")
    plan = Plan(
        kind="ec2",
        targets=read_targets(request["TargetCapacitySpecification"]),
        pools=pools,
        spot_strategy=spot.get("AllocationStrategy", "lowest-price"),
        on_demand_strategy=on_demand.get("AllocationStrategy", "lowest-price"),
        replaces_unhealthy=bool(request.get("ReplaceUnhealthyInstances")),
        terminates_excess=request.get("ExcessCapacityTerminationPolicy", "termination") == "termination",
        rebalance=_rebalance(checks, (spot.get("MaintenanceStrategies") or {}).get("CapacityRebalance")),
    )  # fmt: skip
    _check_plan(checks, plan)
    return plan


def spot_fleet_plan(config: Mapping[str, Any], pools: Sequence[Pool]) -> Plan:
    """Return the plan for a SpotFleetRequestConfig.

    Raises:
        ApiError: InvalidSpotFleetRequestConfig, which lists all problems.
    """
    checks = _Checks("spot")
    checks.one_of("Type", str(config.get("Type", "maintain")), ("maintain",))
    _refuse(checks, config, "spot")
    if config.get("InstanceInterruptionBehavior", "terminate") != "terminate":
        checks.problems.append("InstanceInterruptionBehavior is not emulated; use terminate")
    spot, on_demand = config.get("AllocationStrategy", "lowestPrice"), config.get("OnDemandAllocationStrategy")
    total, base = int(config["TargetCapacity"]), int(config.get("OnDemandTargetCapacity", 0))
    policy = config.get("ExcessCapacityTerminationPolicy", "default")
    checks.one_of("ExcessCapacityTerminationPolicy", policy, ("default", "noTermination"))
    if base > total:
        checks.problems.append(f"OnDemandTargetCapacity {base} exceeds TargetCapacity {total}")
    maintenance = (config.get("SpotMaintenanceStrategies") or {}).get("CapacityRebalance")
    plan = Plan(
        kind="spot",
        targets=Targets(total, base, max(0, total - base)),
        pools=pools,
        spot_strategy=_SPOT_FLEET_STRATEGIES.get(spot, spot),
        on_demand_strategy=_SPOT_FLEET_STRATEGIES.get(on_demand or "lowestPrice", str(on_demand)),
        replaces_unhealthy=bool(config.get("ReplaceUnhealthyInstances")),
        terminates_excess=policy == "default",
        rebalance=_rebalance(checks, maintenance),
    )  # fmt: skip
    _check_plan(checks, plan)
    return plan


def read_targets(target: Mapping[str, Any]) -> Targets:
    """Return the targets from a TargetCapacitySpecification. The default type applies to the rest of the total.

    Raises:
        ApiError: InvalidTargetCapacitySpecification if the total is less than the sum of its parts.
    """
    on_demand, spot = int(target.get("OnDemandTargetCapacity") or 0), int(target.get("SpotTargetCapacity") or 0)
    total = int(target["TotalTargetCapacity"])
    rest = total - on_demand - spot
    if rest < 0:
        raise ApiError("InvalidTargetCapacitySpecification", "TotalTargetCapacity is less than the sum of its parts")
    if target.get("DefaultTargetCapacityType", "on-demand") == "spot":
        return Targets(total, on_demand, spot + rest)
    return Targets(total, on_demand + rest, spot)


def _check_plan(checks: _Checks, plan: Plan) -> None:
    checks.one_of("spot AllocationStrategy", plan.spot_strategy, SPOT_STRATEGIES)
    checks.one_of("on-demand AllocationStrategy", plan.on_demand_strategy, ON_DEMAND_STRATEGIES)
    if plan.targets.total < 0:
        checks.problems.append(f"target capacity {plan.targets.total} is negative")
    checks.finish()


def _refuse(checks: _Checks, request: Mapping[str, Any], kind: Kind) -> None:
    checks.problems += [f"{one} is not emulated by the embedded cloud" for one in _REFUSED[kind] if request.get(one)]


def _rebalance(checks: _Checks, options: Mapping[str, Any] | None) -> Rebalance | None:
    if not options:
        return None
    strategy, delay = options.get("ReplacementStrategy", "launch"), options.get("TerminationDelay")
    checks.one_of("ReplacementStrategy", strategy, ("launch", "launch-before-terminate"))
    if (strategy == "launch-before-terminate") != (delay is not None):
        checks.problems.append("TerminationDelay requires ReplacementStrategy launch-before-terminate, and vice versa")
    if delay is not None and not _DELAY_SECONDS[0] <= int(delay) <= _DELAY_SECONDS[1]:
        checks.problems.append(f"TerminationDelay {delay} must be from {_DELAY_SECONDS[0]} to {_DELAY_SECONDS[1]}")
    return Rebalance(None if delay is None else int(delay))
