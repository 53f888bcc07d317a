"""Rules for `engine: pcs`.

Sources (2026-11): https://docs.aws.amazon.com/pcs/latest/APIReference/API_CreateCluster.html (sizes),
API_CreateQueue.html (names) and API_CreateComputeNodeGroup.html (purchase options) in the same guide, and
https://docs.aws.amazon.com/pcs/latest/userguide/working-with_networking_efa_create-cng.html (equal types)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from stacks.capacity.plan import known_types, layouts
from stacks.config import AMI_ID, DeploymentConfig
from stacks.config.clusters.pcs import PcsConfig
from stacks.errors import Problem
from stacks.validators.managed import available_gpus, partition_name, purchase_options, shared_folder

MAX_NODES: Mapping[str, int] = {"SMALL": 32, "MEDIUM": 512, "LARGE": 2048}
"""Nodes per cluster size."""
QUEUE_NAME = re.compile(r"(?!pcs_)[A-Za-z][A-Za-z0-9-]{2,24}")
MARKETS: Mapping[str, str] = {"spot": "SPOT", "on_demand": "ONDEMAND"}
"""PCS's purchase option for each supported market."""


def _section(config: DeploymentConfig) -> PcsConfig | None:
    return config.pcs if config.engine == "pcs" else None


def has_section(config: DeploymentConfig) -> Iterator[Problem]:
    """The engine needs its section."""
    if config.engine == "pcs" and config.pcs is None:
        yield Problem("pcs", None, "is missing, but engine is pcs", "add pcs: {size: SMALL}, or set engine: slurm")


def size(config: DeploymentConfig) -> Iterator[Problem]:
    """The controller supports the nodes of all groups. There is one group for each layout of network interfaces."""
    section = _section(config)
    if section is None:
        return
    count = config.capacity.nodes * max(1, len(layouts(config))) + (section.login_instance_type is not None)
    limit = MAX_NODES[section.size]
    if count > limit:
        rule = f"supports {limit} nodes, but the cluster has {count}, including the login node"
        remedy = "set a larger size" if section.size != "LARGE" else "lower capacity.nodes"
        yield Problem("pcs.size", section.size, rule, remedy)
    if section.always_on > config.capacity.nodes:
        rule = f"exceeds capacity.nodes, {config.capacity.nodes}"
        yield Problem("pcs.always_on", section.always_on, rule, "lower it, or raise capacity.nodes")


def queue(config: DeploymentConfig) -> Iterator[Problem]:
    """The partition is the cluster's only queue."""
    if config.engine == "pcs":
        rule = "must be the name of one queue: 3 to 25 letters, digits and hyphens, and a letter first"
        yield from partition_name(config, "the queue that PCS creates", QUEUE_NAME, rule)


def accounts(config: DeploymentConfig) -> Iterator[Problem]:
    """Accounts and qualities of service are records of Slurm's accounting."""
    section = _section(config)
    if section is None or config.slurm is None or section.accounting:
        return
    for key in ("account", "qos"):
        value = getattr(config.slurm, key)
        if value is not None:
            rule = "requires Slurm accounting, which the cluster does not have"
            yield Problem(f"slurm.{key}", value, rule, "remove it, or set pcs.accounting: true")


def directory(config: DeploymentConfig) -> Iterator[Problem]:
    """The jobs' folder is on the file system that the nodes mount."""
    if config.engine == "pcs":
        yield from shared_folder(config, None if config.storage.lustre is None else config.storage.lustre.mount)


def image(config: DeploymentConfig) -> Iterator[Problem]:
    """The image contains PCS's agent and Slurm, which AWS's deep learning images do not."""
    if config.engine == "pcs" and AMI_ID.match(config.node.ami) is None:
        rule = "must be the id of an image with PCS's agent and Slurm"
        remedy = "build one: https://docs.aws.amazon.com/pcs/latest/userguide/working-with_ami_custom.html"
        yield Problem("node.ami", config.node.ami, rule, remedy)


def types(config: DeploymentConfig) -> Iterator[Problem]:
    """The types of a node group have the same number of vCPUs, because Slurm describes all nodes with one line."""
    if config.engine != "pcs":
        return
    if not config.capacity.instance_types and config.capacity.auto is None:
        rule = "is empty, but PCS launches the nodes"
        yield Problem("capacity.instance_types", "[]", rule, "list types with the same number of vCPUs")
    counts = {one.name: one.vcpus for one in known_types(config)}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name}: {count}" for name, count in counts.items())
        rule = "have different numbers of vCPUs, but all nodes of a PCS node group must have the same"
        yield Problem("capacity.instance_types", listed, rule, "list types of one size")


def gres(config: DeploymentConfig) -> Iterator[Problem]:
    """The jobs request no more GPUs than a node has."""
    if config.engine == "pcs":
        yield from available_gpus(config)


def market(config: DeploymentConfig) -> Iterator[Problem]:
    """PCS buys Spot and On-Demand Instances for the node group, without a maximum price."""
    if config.engine == "pcs":
        yield from purchase_options(config, "the node groups of PCS", f"set {' or '.join(MARKETS)}")


RULES = (has_section, size, queue, accounts, directory, image, types, gres, market)
