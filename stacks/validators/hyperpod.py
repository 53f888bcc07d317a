"""Rules for `engine: hyperpod`.

Sources (2026-11): https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterInstanceGroupSpecification.html
(types, capacity), API_ClusterSlurmConfig.html (partitions) in the same guide, and
https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-eks-prerequisites.html (network)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from stacks.capacity.plan import gpus
from stacks.config import DeploymentConfig
from stacks.config.clusters.hyperpod import HyperPodConfig
from stacks.errors import Problem
from stacks.validators.managed import MARKETS, available_gpus, partition_name, purchase_options, shared_folder

PARTITION_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")


@cache
def hyperpod_types() -> frozenset[str]:
    """Return the instance types that HyperPod supports, from the API's model."""
    import botocore.session  # a slow import that few files need

    model = botocore.session.get_session().get_service_model("sagemaker")
    return frozenset(model.shape_for("ClusterInstanceType").enum)


def _section(config: DeploymentConfig) -> HyperPodConfig | None:
    return config.hyperpod if config.engine == "hyperpod" else None


def has_section(config: DeploymentConfig) -> Iterator[Problem]:
    """The engine needs its section."""
    if config.engine == "hyperpod" and config.hyperpod is None:
        remedy = "add hyperpod: {orchestrator: slurm}, or set another engine"
        yield Problem("hyperpod", None, "is missing, but engine is hyperpod", remedy)


def orchestrator(config: DeploymentConfig) -> Iterator[Problem]:
    """An EKS cluster exists before the nodes join it, in the same VPC. Slurm's keys do not apply to it."""
    section = _section(config)
    if section is None:
        return
    if section.orchestrator == "slurm":
        for key in ("eks_cluster_arn", "security_group_ids"):
            value = getattr(section, key)
            if value:
                yield Problem(f"hyperpod.{key}", value, "applies only to orchestrator: eks", "remove it")
        return
    if section.eks_cluster_arn is None:
        rule = "is missing, but the orchestrator is eks"
        yield Problem("hyperpod.eks_cluster_arn", None, rule, "set the ARN of your EKS cluster")
    elif section.eks_cluster_arn.split(":")[3] != config.region:
        rule = f"is in another region than the deployment, {config.region}"
        yield Problem("hyperpod.eks_cluster_arn", section.eks_cluster_arn, rule, "correct it, or set region")
    if not section.security_group_ids:
        rule = "is empty, so the nodes cannot reach the EKS cluster"
        yield Problem("hyperpod.security_group_ids", "[]", rule, "list the EKS cluster's security group")
    if config.network.existing is None:
        rule = "is missing: the nodes run in the VPC of the EKS cluster"
        yield Problem("network.existing", None, rule, "name the VPC and its subnets")


def slurm_jobs(config: DeploymentConfig) -> Iterator[Problem]:
    """Slurm's jobs use one partition and a folder on the file system that HyperPod mounts on all nodes."""
    if _section(config) is None or not config.runs_slurm_jobs:
        return
    lustre = config.storage.lustre
    yield from shared_folder(config, None if lustre is None else lustre.mount)
    rule = "must be the name of one partition: letters, digits and single hyphens between them"
    yield from partition_name(config, "the partition of the nodes", PARTITION_NAME, rule)
    yield from available_gpus(config)


def types(config: DeploymentConfig) -> Iterator[Problem]:
    """HyperPod supports the types. An instance group has one type."""
    section = _section(config)
    if section is None:
        return
    listed = config.capacity.instance_types
    if len(listed) != 1:
        rule = "must contain one type, because an instance group has one type"
        yield Problem("capacity.instance_types", ", ".join(listed) or "[]", rule, "list one type, such as p5.48xlarge")
    found = [("capacity.instance_types.0", f"ml.{name}") for name in listed[:1]]
    if section.orchestrator == "slurm":
        found.append(("hyperpod.controller_instance_type", section.controller_instance_type))
        if section.login_instance_type is not None:
            found.append(("hyperpod.login_instance_type", section.login_instance_type))
    for path, name in found:
        if name not in hyperpod_types():
            yield Problem(path, name, "is not a type of HyperPod", f"see the types in {API_PAGE}")


API_PAGE = "https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterInstanceGroupSpecification.html"


def market(config: DeploymentConfig) -> Iterator[Problem]:
    """HyperPod launches Spot or on-demand nodes, or the nodes of a training plan, without a maximum price."""
    section = _section(config)
    if section is None:
        return
    remedy = f"set {' or '.join(MARKETS)}; hyperpod.training_plan_arn uses reserved capacity"
    yield from purchase_options(config, "the instance groups of HyperPod", remedy)
    if section.training_plan_arn is not None and config.capacity.market == "spot":
        rule = "reserves capacity, but capacity.market is spot"
        yield Problem("hyperpod.training_plan_arn", section.training_plan_arn, rule, "set capacity.market: on_demand")


def health_checks(config: DeploymentConfig) -> Iterator[Problem]:
    """Deep health checks test GPUs and the network between nodes. Each is listed once."""
    section = _section(config)
    checks = section.deep_health_checks if section is not None else []
    if len(set(checks)) < len(checks):
        yield Problem("hyperpod.deep_health_checks", ", ".join(checks), "lists a check twice", "list it once")
    if checks and not gpus(config):
        rule = "test GPUs, which the nodes do not have"
        yield Problem("hyperpod.deep_health_checks", ", ".join(checks), rule, "remove them")
    if "InstanceConnectivity" in checks and config.capacity.nodes == 1:
        rule = "tests the network between nodes, but there is only one"
        yield Problem("hyperpod.deep_health_checks", "InstanceConnectivity", rule, "remove it")


RULES = (has_section, orchestrator, slurm_jobs, types, market, health_checks)
