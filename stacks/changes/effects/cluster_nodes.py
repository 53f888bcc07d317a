"""The nodes of managed clusters in the templates, and why their cost is unknown or incomplete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stacks.changes.templates.template_set import TemplateSet, resources_of_type
from stacks.changes.templates.values import mapping, mappings, number, text_of
from stacks.config.clusters.pcs import LOGIN

# The catalogue contains only EC2's prices. Source of the kinds of fees (2026-11): the pages below.
PCS_FEES = "PCS's fees for the controller, the nodes and accounting (https://aws.amazon.com/pcs/pricing/)"
HYPERPOD_FEES = (
    "the prices of HyperPod's instances, which AWS charges for with or without jobs "
    "(https://aws.amazon.com/sagemaker/ai/pricing/)"
)
EKS_FEES = (
    "the nodes that Karpenter launches for the manifests' pods, and the fee of Auto Mode for each of them "
    "(https://aws.amazon.com/eks/pricing/)"
)


@dataclass(frozen=True)
class ClusterNodes:
    """The nodes of a managed cluster that train.

    Attributes:
        region: The cluster's region, or "" if it is unknown.
        instance_types: The EC2 types that may be launched; none if the templates do not contain them.
        nodes: Largest number of nodes.
        is_spot: Whether the nodes are Spot Instances.
        login_type: EC2 type of the login node, or None.
        fees: The costs that the catalogue does not contain.
        text: The nodes as text.
    """

    region: str
    instance_types: tuple[str, ...]
    nodes: int
    is_spot: bool
    login_type: str | None
    fees: str
    text: str

    @property
    def spot_nodes(self) -> int:
        """The number of Spot Instances."""
        return self.nodes if self.is_spot else 0

    @property
    def on_demand_nodes(self) -> int:
        """The number of On-Demand Instances."""
        return self.nodes - self.spot_nodes


def cluster_nodes(templates: TemplateSet) -> ClusterNodes | None:
    """Return the nodes of the managed cluster, or None if the templates do not contain one."""
    for stack_id, _, definition in resources_of_type(
        templates, "AWS::PCS::Cluster", "AWS::SageMaker::Cluster", "AWS::EKS::Cluster"
    ):
        region = templates[stack_id].environment.rpartition("/")[2]
        if definition["Type"] == "AWS::PCS::Cluster":
            return _pcs(templates, region)
        if definition["Type"] == "AWS::EKS::Cluster":
            return ClusterNodes(region, (), 0, False, None, EKS_FEES, "the nodes of an EKS cluster")
        groups = mappings(mapping(definition.get("Properties")).get("InstanceGroups"))
        text = ", ".join(f"{_count(one.get('InstanceCount'))} x {text_of(one.get('InstanceType'))}" for one in groups)
        return ClusterNodes(region, (), 0, False, None, HYPERPOD_FEES, text)
    return None


def _pcs(templates: TemplateSet, region: str) -> ClusterNodes:
    """Return the nodes of a PCS cluster. Each layout of network interfaces has a group, and a run uses any of them."""
    found = [mapping(one.get("Properties")) for _, _, one in resources_of_type(templates, "AWS::PCS::ComputeNodeGroup")]
    login = [_types(one) for one in found if one.get("Name") == LOGIN]
    groups = [one for one in found if one.get("Name") != LOGIN]
    types = tuple(dict.fromkeys(name for one in groups for name in _types(one)))
    nodes = max((_count(mapping(one.get("ScalingConfiguration")).get("MaxInstanceCount")) for one in groups), default=0)
    is_spot = any(one.get("PurchaseOption") == "SPOT" for one in groups)
    text = f"{nodes} x {' or '.join(types)}, {'spot' if is_spot else 'on demand'}"
    return ClusterNodes(region, types, nodes, is_spot, login[0][0] if login and login[0] else None, PCS_FEES, text)


def _types(group: Mapping[str, Any]) -> list[str]:
    return [text_of(one.get("InstanceType")) for one in mappings(group.get("InstanceConfigs"))]


def _count(value: Any) -> int:
    return int(number(value, otherwise=0))
