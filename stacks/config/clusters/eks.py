"""The `eks` section: an EKS cluster that the stacks create for `engine: kubernetes`.

Source of the fields (2026-11): https://docs.aws.amazon.com/eks/latest/userguide/automode-get-started-cli.html and
https://docs.aws.amazon.com/eks/latest/APIReference/API_CreateCluster.html
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from stacks.config.setting import Arn, Section, setting

NODE_CLASS = NODE_POOL = "trainstack-gpu"
"""Names of the node class and the node pool."""


def node_role_name(deployment: str, region: str) -> str:
    """Return the name of the nodes' role, which the node class refers to."""
    return f"{deployment}-{region}-eks-node"


class EksConfig(Section):
    """An EKS cluster in Auto Mode, whose own Karpenter launches the nodes for pods and removes empty ones."""

    version: str = setting(
        "Version of Kubernetes.", edit="in place", default="1.35", pattern=r"^1\.(3[1-9]|[4-9][0-9])$"
    )
    admins: list[Arn] = setting(
        "IAM roles and users that administer the cluster; at least the one with which you run `kubectl`.",
        edit="in place",
        min_length=1,
        max_length=20,
    )
    public_access_cidrs: list[Annotated[str, Field(pattern=r"^(\d{1,3}\.){3}\d{1,3}/\d{1,2}$")]] = setting(
        "Address ranges from which the Kubernetes API is accessible; `[]`: only from the VPC.",
        edit="in place",
        default=[],
        max_length=40,
    )
    addons: list[Annotated[str, Field(pattern=r"^[a-z][a-z0-9-_]{0,99}$")]] = setting(
        "EKS add-ons to install, such as `metrics-server`. Auto Mode already contains the network plugin, DNS, Pod "
        "Identity, and the device plugins for GPUs and EFA.",
        edit="in place",
        default=[],
        max_length=20,
    )
    idle_minutes: int = setting(
        "Minutes after which a node without pods is removed.", edit="applies to new pods", default=5, ge=1, le=10080
    )
    max_nodes: int | None = setting(
        "Maximum number of nodes; `null`: twice `capacity.nodes`, so that replacements start before the old nodes end.",
        edit="applies to new pods",
        default=None,
        ge=1,
        le=1000,
    )
