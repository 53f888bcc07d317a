"""Rules for the capacity section, checked against the instance type catalogue."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from stacks.capacity.catalogue import PRICES_EXPIRE_AFTER_DAYS, catalogue
from stacks.capacity.plan import known_types, one_zone_at_a_time, zone_candidates
from stacks.config import DeploymentConfig
from stacks.errors import Problem

# Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/placement-strategies.html
SPREAD_INSTANCES_PER_ZONE = 7


def types_given_once(config: DeploymentConfig) -> Iterator[Problem]:
    """Instance types are either listed explicitly or chosen by `auto`."""
    capacity = config.capacity
    if not capacity.instance_types and capacity.auto is None:
        rule = "must list a type, because capacity.auto is not set"
        yield Problem("capacity.instance_types", [], rule, "list at least one; see `python -m stacks catalogue`")
    auto = capacity.auto
    if auto is None:
        return
    if auto.gpu_memory_gib is not None and auto.parameters_million is not None:
        rule = "sets the GPU memory, which parameters_million also determines"
        remedy = "remove gpu_memory_gib: it is computed from parameters_million"
        yield Problem("capacity.auto.gpu_memory_gib", auto.gpu_memory_gib, rule, remedy)
    if not auto.gpus and (auto.gpu_memory_gib is not None or auto.parameters_million is not None):
        yield Problem("capacity.auto.gpus", 0, "must be at least 1 if GPU memory is required", "raise it")


def types_are_known(config: DeploymentConfig) -> Iterator[Problem]:
    """Every type is in the catalogue, is offered in the region, and is listed once."""
    listed = config.capacity.instance_types
    for index, name in enumerate(listed):
        path = f"capacity.instance_types.{index}"
        if name not in catalogue().types:
            remedy = f"`python -m stacks catalogue` lists the known types; `catalogue refresh --add {name}` adds it"
            yield Problem(path, name, "is not in the catalogue", remedy)
        elif (prices := catalogue().regions.get(config.region)) and name not in prices.types:
            elsewhere = catalogue().regions_with(name)
            rule = f"is not offered in {config.region}"
            if elsewhere:
                yield Problem(path, name, rule, f"use another type, or a region that offers it: {', '.join(elsewhere)}")
            else:
                remedy = f"`python -m stacks catalogue refresh --regions {config.region}` adds offerings and prices"
                yield Problem(path, name, "has no known offerings or prices", remedy, "warning")
        if name in listed[:index]:
            yield Problem(path, name, "is listed twice", "keep one")
    if len(listed) == 1 and config.capacity.market == "spot":
        rule = "is the only type, so each zone has only one spot pool; if that pool is empty, the run waits"
        yield Problem("capacity.instance_types", listed[0], rule, "add types with the same GPU", "warning")


def one_gpu_model(config: DeploymentConfig) -> Iterator[Problem]:
    """All types have the same GPU model and count.

    A gang is only as fast as its slowest member, and every node runs the same number of ranks.
    """
    kinds = {(one.gpus, one.gpu) for one in known_types(config)}
    if len(kinds) > 1 and config.capacity.nodes > 1:
        names = ", ".join(f"{one.name} ({one.gpus} x {one.gpu or 'no GPU'})" for one in known_types(config))
        rule = "instance types must have the same GPU model and count"
        yield Problem("capacity.instance_types", names, rule, "keep only types with one GPU model and count")
    if len({one.gpus for one in known_types(config)}) > 1 and config.capacity.nodes == 1:
        names = ", ".join(f"{one.name} ({one.gpus})" for one in known_types(config))
        rule = "instance types must have the same number of GPUs, which determines the number of processes"
        yield Problem("capacity.instance_types", names, rule, "keep only types with the same number of GPUs")


def placement(config: DeploymentConfig) -> Iterator[Problem]:
    """The fleet stays within the limits of its placement strategy."""
    capacity = config.capacity
    if capacity.placement == "cluster":
        for one in known_types(config):
            if not one.cluster_placement:
                rule = "does not support cluster placement groups"
                yield Problem("capacity.placement", one.name, rule, "remove the type, or set placement: none")
        if capacity.zone_policy == "any" and len(config.network.subnet_zones) > 1:
            rule = "a cluster placement group cannot span zones"
            yield Problem("capacity.zone_policy", "any", rule, "set one_at_a_time, or remove the key")
    if capacity.placement != "partition" and capacity.partitions is not None:
        rule = f"applies only to placement: partition, not to {capacity.placement}"
        yield Problem("capacity.partitions", capacity.partitions, rule, "remove it, or change placement")
    limit = SPREAD_INSTANCES_PER_ZONE * len(config.network.subnet_zones)
    if capacity.placement == "spread" and capacity.nodes > limit:
        rule = f"a spread placement group holds {SPREAD_INSTANCES_PER_ZONE} instances per zone, {limit} in total"
        yield Problem("capacity.nodes", capacity.nodes, rule, "lower it, add zones, or set placement: partition")


def zonal_storage(config: DeploymentConfig) -> Iterator[Problem]:
    """The fleet stays in the same zone as zonal storage, which instances in other zones cannot attach."""
    if config.capacity.zone_policy != "any":
        return
    checkpoints, shared = config.storage.checkpoint_volume, config.storage.shared_volume
    if checkpoints is not None and checkpoints.other_zones == "without":
        rule = f"instances outside zone {checkpoints.zone} cannot attach storage.checkpoint_volume"
        remedy = "set one_at_a_time, remove the key, or set storage.checkpoint_volume.other_zones: restore"
        yield Problem("capacity.zone_policy", "any", rule, remedy)
    if shared is not None:
        rule = f"instances outside zone {shared.zone} cannot attach storage.shared_volume"
        yield Problem("capacity.zone_policy", "any", rule, "set one_at_a_time, or remove the key")


def choice_of_zones(config: DeploymentConfig) -> Iterator[Problem]:
    """The run controller ranks zones only if it chooses the zone of spot instances, and no storage is zonal."""
    chosen, storage = config.capacity.choose, config.storage
    if chosen == "order":
        return
    path = "capacity.choose"
    if config.capacity.market != "spot":
        yield Problem(path, chosen, "applies only to market: spot", "remove it, or set market: spot")
    if storage.checkpoint_volume is not None or storage.shared_volume is not None or storage.lustre is not None:
        rule = "ignores the zone of storage.checkpoint_volume, storage.shared_volume or storage.lustre"
        yield Problem(path, chosen, rule, "remove it, or remove the zonal storage")
    elif not one_zone_at_a_time(config):
        rule = "applies only if each attempt uses one zone; otherwise capacity.allocation_strategy chooses the pools"
        yield Problem(path, chosen, rule, "set capacity.zone_policy: one_at_a_time, or remove it")
    elif len(zone_candidates(config)) < 2:
        yield Problem(path, chosen, "has only one zone to choose from", "add zones to network.zones, or remove it")


def gang(config: DeploymentConfig) -> Iterator[Problem]:
    """Neither the smallest gang nor the on-demand base exceeds the number of nodes."""
    capacity = config.capacity
    if capacity.min_nodes is not None and capacity.min_nodes > capacity.nodes:
        rule = f"must be at most capacity.nodes, {capacity.nodes}"
        yield Problem("capacity.min_nodes", capacity.min_nodes, rule, "lower it, or raise nodes")
    if capacity.on_demand_base > capacity.nodes:
        rule = f"must be at most capacity.nodes, {capacity.nodes}"
        yield Problem("capacity.on_demand_base", capacity.on_demand_base, rule, "lower it")
    if capacity.on_demand_base and capacity.market != "spot":
        yield Problem("capacity.on_demand_base", capacity.on_demand_base, "applies only to market: spot", "remove it")


def price(config: DeploymentConfig) -> Iterator[Problem]:
    """The maximum price is at least the spot price, because a request with a lower price is never fulfilled."""
    limit = config.capacity.max_price_usd
    if limit is None:
        return
    if config.capacity.market != "spot":
        yield Problem("capacity.max_price_usd", limit, "applies only to market: spot", "remove it")
        return
    prices = catalogue().regions.get(config.region)
    for name in config.capacity.instance_types:
        spot = prices.usd_per_hour(name, "spot") if prices else None
        if prices and spot is not None and limit < spot:
            rule = f"is below the catalogue's spot price of {name} ({spot} USD, {prices.sources['spot'].date})"
            yield Problem("capacity.max_price_usd", limit, rule, "raise it, remove it, or remove the type")


RULES = (types_given_once, types_are_known, one_gpu_model, placement, zonal_storage, choice_of_zones, gang, price)


def expired_prices(config: DeploymentConfig, today: date) -> Iterator[Problem]:
    """Warn about outdated prices. This rule is not in RULES because the result depends on the current date."""
    prices = catalogue().regions.get(config.region)
    if prices is None:
        return
    oldest = min(prices.sources.values(), key=lambda source: source.date).date
    days = (today - oldest).days
    if days > PRICES_EXPIRE_AFTER_DAYS:
        rule = f"its oldest prices date from {oldest}, {days} days ago, and may be outdated"
        remedy = f"run `python -m stacks catalogue refresh --regions {config.region}`"
        yield Problem("region", config.region, rule, remedy, "warning")
