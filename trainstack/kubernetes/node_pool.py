"""The manifests with which EKS Auto Mode launches the nodes of a run: a node class and a node pool.

Sources (2026-11): https://docs.aws.amazon.com/eks/latest/userguide/create-node-class.html,
https://docs.aws.amazon.com/eks/latest/userguide/create-node-pool.html and
https://karpenter.sh/docs/concepts/nodepools/
"""

from __future__ import annotations

from typing import Any

from stacks.capacity.plan import gpus
from stacks.config.clusters import cluster_name
from stacks.config.clusters.eks import NODE_CLASS, NODE_POOL, node_role_name
from stacks.config.deployment_tag import DEPLOYMENT_TAG
from stacks.config.network import isolated_subnet
from stacks.validators.kubernetes import INSTANCE_TYPE_LABEL, MARKET_LABELS
from trainstack.kubernetes.plan import Plan

GROUP = "eks.amazonaws.com"
MAX_AGE = "504h"
"""Age at which a node is replaced: 21 days, the longest lifetime in Auto Mode. Its pods save first. Source (2026-11):
https://docs.aws.amazon.com/eks/latest/userguide/automode.html"""
IMAGE_GIB = 60
"""Part of a node's disk for images and logs, in addition to the pod's own disk."""


def node_manifests(plan: Plan) -> list[dict[str, Any]]:
    """Return the node class and the node pool of a deployment with an eks section; without it, nothing."""
    return [_class(plan), _pool(plan)] if plan.config.has_eks_stack else []


def _class(plan: Plan) -> dict[str, Any]:
    config = plan.config
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "NodeClass",
        "metadata": {"name": NODE_CLASS},
        "spec": {
            "role": node_role_name(config.name, config.region),
            "subnetSelectorTerms": _subnets(plan),
            "securityGroupSelectorTerms": [{"tags": {"aws:eks:cluster-name": cluster_name(config.name)}}],
            "ephemeralStorage": {"size": f"{plan.section.scratch_gib + IMAGE_GIB}Gi"},
            "tags": {**config.tags, DEPLOYMENT_TAG: config.name},
        },
    }


def _subnets(plan: Plan) -> list[dict[str, Any]]:
    """Return one term for each of the nodes' subnets: not for the subnet of a NAT gateway."""
    network = plan.config.network
    if network.existing is not None:
        return [{"id": subnet.id} for subnet in network.existing.subnets]
    stack = f"{plan.config.name}-NetworkStack"
    names = [isolated_subnet(letter) for letter in network.subnet_zones]
    return [{"tags": {"aws:cloudformation:stack-name": stack, "aws:cloudformation:logical-id": name}} for name in names]


def _pool(plan: Plan) -> dict[str, Any]:
    """Return a node pool that has no nodes without pods. `max_nodes` limits its GPUs."""
    config, section = plan.config, plan.config.eks
    assert section is not None, "checked by the caller"
    label, values = MARKET_LABELS["karpenter"]
    requirements = [
        {"key": label, "operator": "In", "values": [values[config.capacity.market]]},
        {"key": INSTANCE_TYPE_LABEL, "operator": "In", "values": list(config.capacity.instance_types)},
    ]
    spec: dict[str, Any] = {
        "nodeClassRef": {"group": GROUP, "kind": "NodeClass", "name": NODE_CLASS},
        "requirements": requirements,
        "expireAfter": MAX_AGE,
    }
    pool: dict[str, Any] = {
        "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": f"{section.idle_minutes}m"},
        "template": {"spec": spec},
    }
    if count := gpus(config):
        spec["taints"] = [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]
        pool["limits"] = {"nvidia.com/gpu": str(count * (section.max_nodes or 2 * config.capacity.nodes))}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": NODE_POOL},
        "spec": pool,
    }
