"""A fleet's pools and their launch parameters. A pool combines a launch template, an instance type and a location."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from localcloud.api import ApiError
from localcloud.compute.capacity import Market
from localcloud.compute.fleets.model import Kind, Pool
from localcloud.compute.launch.resolver import LaunchResolver, LaunchTemplateVersion

# AWS supports more keys; no template of this project uses them.
_OVERRIDES = {
    "ec2": frozenset({"InstanceType", "MaxPrice", "SubnetId", "Priority"}),
    "spot": frozenset({"InstanceType", "SubnetId", "Priority"}),
}
_MIN_PRIORITY = float("inf")


def read_pools(
    configs: Sequence[Mapping[str, Any]], kind: Kind, resolver: LaunchResolver, max_price: str | None = None
) -> list[Pool]:
    """Return the pools defined by LaunchTemplateConfigs.

    Args:
        max_price: Maximum spot price for pools that do not define one, in USD per hour.

    Raises:
        ApiError: There are no configurations, a template is missing or invalid, or an override is not emulated.
    """
    code = "InvalidFleetConfig" if kind == "ec2" else "InvalidSpotFleetRequestConfig"
    pools = list(_read(configs, kind, code, resolver, max_price))
    if not pools:
        raise ApiError(code, "LaunchTemplateConfigs: at least one launch template is required")
    return pools


def _read(
    configs: Sequence[Mapping[str, Any]], kind: Kind, code: str, resolver: LaunchResolver, max_price: str | None
) -> Iterator[Pool]:
    for config in configs:
        template = config.get("LaunchTemplateSpecification") or {}
        version = resolver.template(template)
        if version.data.get("InstanceMarketOptions", {}).get("MarketType") == "spot":
            raise ApiError(
                code,
                f"Launch template {version.template_id} requests Spot Instances (InstanceMarketOptions). In a fleet, "
                "the target capacity determines the market. Remove the option from the launch template.",
            )
        places: set[tuple[Any, ...]] = set()
        for override in config.get("Overrides") or [{}]:
            if unknown := sorted(set(override) - _OVERRIDES[kind]):
                raise ApiError(code, f"Overrides: {', '.join(unknown)} is not emulated; use InstanceType and SubnetId")
            pool = _pool(template, version, override, code, resolver, max_price)
            place = pool.instance_type, pool.zone
            if kind == "ec2" and place in places:
                # Source: https://github.com/github-aws-runners/terraform-aws-github-runner/issues/5297
                raise ApiError(code, "The fleet configuration contains duplicate instance pools.")
            places.add(place)
            yield pool


def _pool(
    template: Mapping[str, Any], version: LaunchTemplateVersion, override: Mapping[str, Any], code: str,
    resolver: LaunchResolver, max_price: str | None,
) -> Pool:  # fmt: skip
    data = version.data
    instance_type = override.get("InstanceType") or data.get("InstanceType")
    if not instance_type:
        raise ApiError(code, f"Launch template {version.template_id}: no instance type in the template or the override")
    resolver.types.facts(instance_type)
    interfaces = data.get("NetworkInterfaces") or [{}]
    subnet = override.get("SubnetId") or data.get("SubnetId") or interfaces[0].get("SubnetId")
    price = override.get("MaxPrice") or max_price
    return Pool(
        template=dict(template),
        instance_type=instance_type,
        zone=resolver.zone_of(subnet) if subnet else None,
        subnet_id=override.get("SubnetId"),
        priority=float(override["Priority"]) if override.get("Priority") is not None else _MIN_PRIORITY,
        max_usd_per_hour=float(price) if price else None,
    )


def launch_parameters(pool: Pool, market: Market, tags: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the RunInstances parameters for a launch in a pool."""
    parameters: dict[str, Any] = {
        "LaunchTemplate": dict(pool.template), "TagSpecifications": list(tags), "InstanceType": pool.instance_type
    }  # fmt: skip
    if pool.subnet_id:
        parameters["SubnetId"] = pool.subnet_id
    if market == "spot":
        options: dict[str, Any] = {"MarketType": "spot"}
        if pool.max_usd_per_hour is not None:
            options["SpotOptions"] = {"MaxPrice": f"{pool.max_usd_per_hour:g}"}
        parameters["InstanceMarketOptions"] = options
    return parameters
