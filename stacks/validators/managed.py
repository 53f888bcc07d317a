"""Rules for the clusters that AWS manages, and problems that their engines have in common."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from stacks.capacity.plan import gpus, known_types
from stacks.config import DeploymentConfig
from stacks.errors import Problem

ENGINE_OF: Mapping[str, str] = {"pcs": "pcs", "hyperpod": "hyperpod", "eks": "kubernetes"}
"""The engine that uses each section."""
MARKETS = ("spot", "on_demand")


def engine_of_section(config: DeploymentConfig) -> Iterator[Problem]:
    """Each section has an effect with one engine only."""
    for section, engine in ENGINE_OF.items():
        if getattr(config, section) is not None and config.engine != engine:
            remedy = f"set engine: {engine}, or remove the section"
            yield Problem(section, "set", f"has no effect with engine: {config.engine}", remedy, "warning")


def partition_name(config: DeploymentConfig, named: str, pattern: re.Pattern[str], rule: str) -> Iterator[Problem]:
    """Yield a problem unless `slurm.partition`, which names `named`, matches a pattern."""
    name = "" if config.slurm is None else config.slurm.partition
    if name is None:
        yield Problem("slurm.partition", None, f"is missing: it names {named}", "set it, such as gpu")
    elif name and pattern.fullmatch(name) is None:
        yield Problem("slurm.partition", name, rule, "correct it, such as gpu")


def available_gpus(config: DeploymentConfig) -> Iterator[Problem]:
    """Yield a problem if the jobs request more GPUs than a node has."""
    gres = None if config.slurm is None else config.slurm.gres
    available = min((one.gpus for one in known_types(config)), default=None)
    if gres is not None and available is not None and gpus(config) > available:
        rule = f"requests more GPUs than a node has, {available}"
        yield Problem("slurm.gres", gres, rule, "correct it, or remove it")


def purchase_options(config: DeploymentConfig, groups: str, remedy: str) -> Iterator[Problem]:
    """Yield a problem for each purchase option that the service's groups of nodes do not support.

    Args:
        groups: Name of the groups.
        remedy: How to correct the market.
    """
    capacity = config.capacity
    if capacity.market not in MARKETS:
        rule = f"is not supported with engine: {config.engine}"
        yield Problem("capacity.market", capacity.market, rule, remedy)
    rule = f"is not supported by {groups}"
    if capacity.max_price_usd is not None:
        yield Problem("capacity.max_price_usd", capacity.max_price_usd, rule, "remove it")
    if capacity.reservation is not None:
        yield Problem("capacity.reservation", "set", rule, "remove it")


def shared_folder(config: DeploymentConfig, mount: str | None) -> Iterator[Problem]:
    """Yield a problem if `slurm.directory` is not on the shared file system, which is mounted at `mount`."""
    if mount is None:
        rule = f"is missing: engine {config.engine} needs a file system that all nodes share"
        yield Problem("storage.lustre", None, rule, "add storage.lustre: {zone: a}")
        return
    folder = None if config.slurm is None else config.slurm.directory
    if folder is not None and PurePosixPath(mount) not in PurePosixPath(folder).parents:
        rule = f"must be below storage.lustre.mount, {mount}, which all nodes share"
        yield Problem("slurm.directory", folder, rule, f"set {mount.rstrip('/')}/{config.name}")


def unsupported_storage(config: DeploymentConfig) -> Iterator[Problem]:
    """The nodes of a managed cluster attach no volumes of the stacks, and pipelines do not deploy the cluster."""
    rule = f"is supported only by the nodes of a fleet, not with engine: {config.engine}"
    for key in ("dataset_volume", "checkpoint_volume", "shared_volume"):
        if getattr(config.storage, key) is not None:
            yield Problem(f"storage.{key}", "set", rule, "remove it, and use storage.lustre")
    for key in ("pipeline", "github"):
        if getattr(config.delivery, key) is not None:
            yield Problem(f"delivery.{key}", "set", rule, "remove it, and run `trainstack up`")
