"""The sections for clusters that AWS manages: PCS, HyperPod and EKS."""

from __future__ import annotations


def cluster_name(deployment: str) -> str:
    """Return the name of a deployment's cluster."""
    return f"trainstack-{deployment}"
