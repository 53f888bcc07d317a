"""Rules for the eks section.

Sources (2026-11): https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html (two zones) and
https://docs.aws.amazon.com/eks/latest/userguide/create-node-pool.html
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from stacks.config import DeploymentConfig
from stacks.errors import Problem

MIN_ZONES = 2


def zones(config: DeploymentConfig) -> Iterator[Problem]:
    """The cluster's controllers have interfaces in two zones."""
    if config.has_eks_stack and len(config.network.subnet_zones) < MIN_ZONES:
        rule = f"must contain at least {MIN_ZONES} zones, which EKS requires"
        yield Problem("network.zones", ", ".join(config.network.subnet_zones), rule, "add a zone")


def nodes(config: DeploymentConfig) -> Iterator[Problem]:
    """Auto Mode's node pool launches the nodes of the pods' instance types and market."""
    if not config.has_eks_stack or config.kubernetes is None or config.eks is None:
        return
    if config.kubernetes.provisioner != "karpenter":
        rule = "must be karpenter, which Auto Mode contains"
        yield Problem("kubernetes.provisioner", config.kubernetes.provisioner, rule, "set karpenter")
    if not config.capacity.instance_types and config.capacity.auto is None:
        rule = "is empty, but the node pool launches these types"
        yield Problem("capacity.instance_types", "[]", rule, "list types")
    if config.eks.max_nodes is not None and config.eks.max_nodes < config.capacity.nodes:
        rule = f"is below capacity.nodes, {config.capacity.nodes}"
        yield Problem("eks.max_nodes", config.eks.max_nodes, rule, "raise it")


def identity(config: DeploymentConfig) -> Iterator[Problem]:
    """The stack creates the pods' role, and associates it with their service account by Pod Identity."""
    if not config.has_eks_stack or config.kubernetes is None:
        return
    if config.kubernetes.role_arn is not None:
        rule = "is the role for IRSA, but the stack creates a role and a Pod Identity association"
        yield Problem("kubernetes.role_arn", config.kubernetes.role_arn, rule, "remove it")
    if config.kubernetes.service_account == "default":
        rule = "is used by all pods of the namespace, which would get the role"
        yield Problem("kubernetes.service_account", "default", rule, "set another name, such as trainer")


def access(config: DeploymentConfig) -> Iterator[Problem]:
    """Administrators are IAM identities. Address ranges are valid and do not include the internet."""
    section = config.eks if config.has_eks_stack else None
    if section is None:
        return
    for index, arn in enumerate(section.admins):
        if ":iam::" not in arn or not any(kind in arn for kind in (":role/", ":user/")):
            yield Problem(f"eks.admins.{index}", arn, "must be the ARN of an IAM role or user", "correct it")
    for index, text in enumerate(section.public_access_cidrs):
        try:
            network = ipaddress.IPv4Network(text)
        except ValueError as error:
            yield Problem(f"eks.public_access_cidrs.{index}", text, f"is not an address range ({error})", "correct it")
            continue
        if network.prefixlen == 0:
            rule = "opens the Kubernetes API to the internet"
            yield Problem(f"eks.public_access_cidrs.{index}", text, rule, "list your own ranges")


RULES = (zones, nodes, identity, access)
