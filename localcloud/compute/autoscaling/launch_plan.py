"""Converts LaunchTemplate and MixedInstancesPolicy parameters to a validated launch plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from localcloud.api import ApiError
from localcloud.compute.autoscaling.model import Distribution, LaunchPlan, Override, TemplateReference
from localcloud.compute.launch.resolver import LaunchResolver, LaunchTemplateVersion

ON_DEMAND_STRATEGIES = ("prioritized", "lowest-price")
SPOT_STRATEGIES = (
    "lowest-price", "capacity-optimized", "capacity-optimized-prioritized", "price-capacity-optimized",
)  # fmt: skip


def read_plan(parameters: Mapping[str, Any], resolver: LaunchResolver) -> LaunchPlan | None:
    """Return the launch plan defined by the parameters, or None if there are no launch parameters.

    Raises:
        ApiError: ValidationError for parameters that are invalid or not emulated.
    """
    template, policy = parameters.get("LaunchTemplate"), parameters.get("MixedInstancesPolicy")
    if parameters.get("LaunchConfigurationName") or parameters.get("InstanceId"):
        raise ApiError(
            "ValidationError",
            "LaunchConfigurationName and InstanceId are not emulated by the embedded cloud; use LaunchTemplate",
        )
    if template and policy:
        raise ApiError(
            "ValidationError",
            "Valid requests must contain either LaunchTemplate, LaunchConfigurationName, InstanceId or "
            "MixedInstancesPolicy parameter.",
        )
    if template:
        reference, _ = _reference(template, resolver)
        return LaunchPlan(reference)
    return _mixed(policy, resolver) if policy else None


def _mixed(policy: Mapping[str, Any], resolver: LaunchResolver) -> LaunchPlan:
    part = policy.get("LaunchTemplate") or {}
    if not part.get("LaunchTemplateSpecification"):
        raise ApiError(
            "ValidationError", "MixedInstancesPolicy: LaunchTemplate.LaunchTemplateSpecification is required"
        )
    reference, version = _reference(part["LaunchTemplateSpecification"], resolver)
    _refuse_spot_options(version)
    overrides = [_override(one, resolver) for one in part.get("Overrides", [])]
    types = [one.instance_type for one in overrides if one.instance_type]
    if repeated := sorted({one for one in types if types.count(one) > 1}):
        # Source: https://github.com/terraform-aws-modules/terraform-aws-eks/issues/368
        raise ApiError(
            "ValidationError",
            "Cannot add same instance type override more than once. Remove these duplicates from the request and try "
            f"again: [{', '.join(repeated)}]",
        )
    if not overrides and not version.data.get("InstanceType"):
        raise ApiError(
            "ValidationError", "You must specify an instance type in the launch template or in the overrides"
        )
    distribution = _distribution(policy.get("InstancesDistribution", {}))
    return LaunchPlan(reference, overrides, distribution, _shown(reference, overrides, distribution))


def _reference(
    parameter: Mapping[str, Any], resolver: LaunchResolver
) -> tuple[TemplateReference, LaunchTemplateVersion]:
    try:
        version = resolver.template(parameter)
    except ApiError as error:
        raise ApiError(
            "ValidationError", f"You must use a valid fully-formed launch template. {error.message}"
        ) from error
    asked = str(parameter.get("Version") or "$Default")
    return TemplateReference(version.template_id, version.name, asked), version


def _refuse_spot_options(version: LaunchTemplateVersion) -> None:
    if version.data.get("InstanceMarketOptions"):
        raise ApiError(
            "ValidationError",
            "Incompatible launch template: You cannot use a launch template that is set to request Spot Instances "
            "(InstanceMarketOptions) when you configure an Auto Scaling group with a mixed instances policy. Remove "
            "the option from the launch template.",
        )


def _override(parameter: Mapping[str, Any], resolver: LaunchResolver) -> Override:
    if unknown := set(parameter) - {"InstanceType", "LaunchTemplateSpecification"}:
        raise ApiError(
            "ValidationError",
            "MixedInstancesPolicy: the embedded cloud does not emulate overrides with "
            f"{', '.join(sorted(unknown))}; use InstanceType",
        )
    template = None
    if parameter.get("LaunchTemplateSpecification"):
        template, version = _reference(parameter["LaunchTemplateSpecification"], resolver)
        _refuse_spot_options(version)
    return Override(parameter.get("InstanceType"), template)


def _distribution(parameter: Mapping[str, Any]) -> Distribution:
    default = Distribution()
    found = Distribution(
        on_demand_allocation=parameter.get("OnDemandAllocationStrategy", default.on_demand_allocation),
        on_demand_base=int(parameter.get("OnDemandBaseCapacity", default.on_demand_base)),
        on_demand_percentage=int(parameter.get("OnDemandPercentageAboveBaseCapacity", default.on_demand_percentage)),
        spot_allocation=parameter.get("SpotAllocationStrategy", default.spot_allocation),
        spot_pools=int(parameter.get("SpotInstancePools", default.spot_pools)),
        spot_max_price=parameter.get("SpotMaxPrice") or None,
    )
    problems = []
    if found.on_demand_allocation not in ON_DEMAND_STRATEGIES:
        problems.append(
            f"OnDemandAllocationStrategy '{found.on_demand_allocation}' is not one of {ON_DEMAND_STRATEGIES}"
        )
    if found.spot_allocation not in SPOT_STRATEGIES:
        problems.append(f"SpotAllocationStrategy '{found.spot_allocation}' is not one of {SPOT_STRATEGIES}")
    if not 0 <= found.on_demand_percentage <= 100:
        problems.append(f"OnDemandPercentageAboveBaseCapacity {found.on_demand_percentage} must be from 0 to 100")
    if found.on_demand_base < 0:
        problems.append(f"OnDemandBaseCapacity {found.on_demand_base} must not be negative")
    if not 1 <= found.spot_pools <= 20:
        problems.append(f"SpotInstancePools {found.spot_pools} must be from 1 to 20")
    if "SpotInstancePools" in parameter and found.spot_allocation != "lowest-price":
        problems.append("SpotInstancePools requires SpotAllocationStrategy lowest-price")
    if problems:
        raise ApiError("ValidationError", "; ".join(problems))
    return found


def _shown(reference: TemplateReference, overrides: Sequence[Override], distribution: Distribution) -> dict[str, Any]:
    shown_overrides = []
    for override in overrides:
        one: dict[str, Any] = {}
        if override.instance_type is not None:
            one["InstanceType"] = override.instance_type
        if override.template is not None:
            one["LaunchTemplateSpecification"] = override.template.as_shown()
        shown_overrides.append(one)
    shown_distribution: dict[str, Any] = {
        "OnDemandAllocationStrategy": distribution.on_demand_allocation,
        "OnDemandBaseCapacity": distribution.on_demand_base,
        "OnDemandPercentageAboveBaseCapacity": distribution.on_demand_percentage,
        "SpotAllocationStrategy": distribution.spot_allocation,
    }
    if distribution.spot_allocation == "lowest-price":
        shown_distribution["SpotInstancePools"] = distribution.spot_pools
    if distribution.spot_max_price is not None:
        shown_distribution["SpotMaxPrice"] = distribution.spot_max_price
    return {
        "LaunchTemplate": {"LaunchTemplateSpecification": reference.as_shown(), "Overrides": shown_overrides},
        "InstancesDistribution": shown_distribution,
    }
