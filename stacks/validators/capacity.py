"""Rules of the capacity section against the catalogue of instance types."""

from __future__ import annotations

from collections.abc import Iterator

from stacks.config import DeploymentConfig
from stacks.errors import Problem
from stacks.instance_types import InstanceType, catalogue


def _known(config: DeploymentConfig) -> list[InstanceType]:
    types = catalogue().types
    return [types[name] for name in config.capacity.instance_types if name in types]


def one_choice(config: DeploymentConfig) -> Iterator[Problem]:
    """Types are listed, or chosen from what the work needs."""
    capacity = config.capacity
    if not capacity.instance_types and capacity.auto is None:
        rule = "names no type, and there is no capacity.auto that says what the work needs"
        yield Problem("capacity.instance_types", [], rule, "list at least one; `python -m stacks catalogue` has them")


def known_types(config: DeploymentConfig) -> Iterator[Problem]:
    """Every type must be in the catalogue, once."""
    listed = config.capacity.instance_types
    for index, name in enumerate(listed):
        where = f"capacity.instance_types.{index}"
        if name not in catalogue().types:
            yield Problem(where, name, "is not in the catalogue", "`python -m stacks catalogue` lists the known types")
        if name in listed[:index]:
            yield Problem(where, name, "stands twice", "keep one")


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
    """Cluster placement needs types that support it."""
    if config.capacity.placement != "cluster":
        return
    for one in _known(config):
        if not one.cluster_placement:
            rule = "does not go into a cluster placement group"
            yield Problem("capacity.placement", one.name, rule, "drop the type, or say placement: none")


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
    for one in _known(config):
        if limit < one.spot_usd:
            rule = f"is below the spot price to plan with for {one.name} ({one.spot_usd}, {catalogue().date})"
            yield Problem("capacity.max_price_usd", limit, rule, "raise it, drop it, or drop the type")


RULES = (one_choice, known_types, one_kind, placement, gang, price)
