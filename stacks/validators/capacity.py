"""Rules of the capacity section against the catalogue of instance types."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from stacks.config import DeploymentConfig
from stacks.errors import Problem
from stacks.instance_types import PRICES_EXPIRE_AFTER_DAYS, InstanceType, catalogue

# Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/placement-strategies.html
SPREAD_MACHINES_A_ZONE = 7


def _known(config: DeploymentConfig) -> list[InstanceType]:
    types = catalogue().types
    return [types[name] for name in config.capacity.instance_types if name in types]


def one_choice(config: DeploymentConfig) -> Iterator[Problem]:
    """Types are listed, or chosen from what the work needs."""
    capacity = config.capacity
    if not capacity.instance_types and capacity.auto is None:
        rule = "names no type, and there is no capacity.auto that says what the work needs"
        yield Problem("capacity.instance_types", [], rule, "list at least one; `python -m stacks catalogue` has them")
    auto = capacity.auto
    if auto is None:
        return
    if auto.gpu_memory_gib is not None and auto.parameters_million is not None:
        rule = "both say how much memory a GPU needs"
        remedy = "drop gpu_memory_gib: it is computed from parameters_million"
        yield Problem("capacity.auto.gpu_memory_gib", auto.gpu_memory_gib, rule, remedy)
    if not auto.gpus and (auto.gpu_memory_gib is not None or auto.parameters_million is not None):
        yield Problem("capacity.auto.gpus", 0, "no GPU, but memory of one is asked for", "raise gpus, or drop it")


def known_types(config: DeploymentConfig) -> Iterator[Problem]:
    """Every type must be in the catalogue, once."""
    listed = config.capacity.instance_types
    for index, name in enumerate(listed):
        where = f"capacity.instance_types.{index}"
        if name not in catalogue().types:
            yield Problem(where, name, "is not in the catalogue", "`python -m stacks catalogue` lists the known types")
        elif (prices := catalogue().regions.get(config.region)) and name not in prices.types:
            there = [region for region, one in catalogue().regions.items() if name in one.types]
            rule = f"is not offered in {config.region}"
            remedy = f"take another type or region; offered in {', '.join(there) or 'none known'}"
            yield Problem(where, name, rule, remedy)
        if name in listed[:index]:
            yield Problem(where, name, "stands twice", "keep one")
    if len(listed) == 1 and config.capacity.market == "spot":
        rule = "is a single type, so one spot pool a zone: when it runs dry the run waits"
        yield Problem("capacity.instance_types", listed[0], rule, "add types of the same GPU", "warning")


def one_kind(config: DeploymentConfig) -> Iterator[Problem]:
    """A gang is as fast as its slowest member, and its ranks must be as many on every node."""
    kinds = {(one.gpus, one.gpu) for one in _known(config)}
    if len(kinds) > 1 and config.capacity.nodes > 1:
        names = ", ".join(f"{one.name} ({one.gpus} x {one.gpu or 'no GPU'})" for one in _known(config))
        rule = "types of one gang must have the same GPU and as many of them"
        yield Problem("capacity.instance_types", names, rule, "list types of one kind")
    if len({one.gpus for one in _known(config)}) > 1 and config.capacity.nodes == 1:
        names = ", ".join(f"{one.name} ({one.gpus})" for one in _known(config))
        rule = "types must have the same number of GPUs, which decides the number of processes"
        yield Problem("capacity.instance_types", names, rule, "list types with as many GPUs")


def placement(config: DeploymentConfig) -> Iterator[Problem]:
    """What each kind of placement group holds."""
    capacity = config.capacity
    if capacity.placement == "cluster":
        for one in _known(config):
            if not one.cluster_placement:
                rule = "does not go into a cluster placement group"
                yield Problem("capacity.placement", one.name, rule, "drop the type, or say placement: none")
        if capacity.zone_policy == "any" and len(config.network.subnet_zones) > 1:
            rule = "a cluster placement group lies in one zone"
            yield Problem("capacity.zone_policy", "any", rule, "one_at_a_time, or leave it out")
    if capacity.placement != "partition" and capacity.partitions is not None:
        rule = f"has a meaning for placement: partition only, not {capacity.placement}"
        yield Problem("capacity.partitions", capacity.partitions, rule, "drop it, or change placement")
    most = SPREAD_MACHINES_A_ZONE * len(config.network.subnet_zones)
    if capacity.placement == "spread" and capacity.nodes > most:
        rule = f"a spread placement group holds {SPREAD_MACHINES_A_ZONE} machines a zone, {most} in all"
        yield Problem("capacity.nodes", capacity.nodes, rule, "lower it, add zones, or placement: partition")


def one_zone(config: DeploymentConfig) -> Iterator[Problem]:
    """Storage of one zone is out of reach of machines elsewhere."""
    if config.capacity.zone_policy != "any":
        return
    checkpoints, shared = config.storage.checkpoint_volume, config.storage.shared_volume
    if checkpoints is not None and checkpoints.other_zones == "without":
        rule = f"machines outside zone {checkpoints.zone} cannot attach storage.checkpoint_volume"
        remedy = "one_at_a_time, or leave it out; or storage.checkpoint_volume.other_zones: restore"
        yield Problem("capacity.zone_policy", "any", rule, remedy)
    if shared is not None:
        rule = f"machines outside zone {shared.zone} cannot attach storage.shared_volume"
        yield Problem("capacity.zone_policy", "any", rule, "one_at_a_time, or leave it out")


def gang(config: DeploymentConfig) -> Iterator[Problem]:
    """The smallest gang and the on-demand base are parts of the whole."""
    capacity = config.capacity
    if capacity.min_nodes is not None and capacity.min_nodes > capacity.nodes:
        rule = f"is more than capacity.nodes {capacity.nodes}"
        yield Problem("capacity.min_nodes", capacity.min_nodes, rule, "lower it, or raise nodes")
    if capacity.on_demand_base > capacity.nodes:
        rule = f"is more than capacity.nodes {capacity.nodes}"
        yield Problem("capacity.on_demand_base", capacity.on_demand_base, rule, "lower it")
    if capacity.on_demand_base and capacity.market != "spot":
        yield Problem(
            "capacity.on_demand_base", capacity.on_demand_base, "has a meaning for market: spot only", "drop it"
        )


def price(config: DeploymentConfig) -> Iterator[Problem]:
    """A maximum price below the spot price gets no machine; one without spot has no meaning."""
    limit = config.capacity.max_price_usd
    if limit is None:
        return
    if config.capacity.market != "spot":
        yield Problem("capacity.max_price_usd", limit, "has a meaning for market: spot only", "drop it")
        return
    prices = catalogue().regions.get(config.region)
    for name in config.capacity.instance_types:
        spot = prices.usd_per_hour(name, "spot") if prices else None
        if prices and spot is not None and limit < spot:
            rule = f"is below the spot price to plan with for {name} ({spot}, {prices.sources['spot'].date})"
            yield Problem("capacity.max_price_usd", limit, rule, "raise it, drop it, or drop the type")


RULES = (one_choice, known_types, one_kind, placement, one_zone, gang, price)


def expired_prices(config: DeploymentConfig, today: date) -> Iterator[Problem]:
    """Tell of prices that are too old to plan with; not in RULES, since its answer changes by the day."""
    prices = catalogue().regions.get(config.region)
    if prices is None:
        return
    oldest = min(prices.sources.values(), key=lambda source: source.date).date
    days = (today - oldest).days
    if days > PRICES_EXPIRE_AFTER_DAYS:
        rule = f"its oldest prices are of {oldest}, {days} days ago: AWS may ask others now"
        remedy = f"`python -m stacks catalogue refresh --regions {config.region}`"
        yield Problem("region", config.region, rule, remedy, "warning")
