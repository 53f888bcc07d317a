"""The placement group: how close together, or how far apart, the nodes are."""

from __future__ import annotations

from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from stacks.config import DeploymentConfig

# Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/placement-strategies.html
MOST_PARTITIONS = 7


def placement_group(scope: Construct, config: DeploymentConfig) -> ec2.CfnPlacementGroup | None:
    """Return the group that `capacity.placement` asks for, None for none.

    A spread group puts each node on a rack of its own: seven a zone at most, which a validator holds.
    """
    capacity = config.capacity
    if capacity.placement == "none":
        return None
    return ec2.CfnPlacementGroup(
        scope,
        "Placement",
        strategy=capacity.placement,
        partition_count=(capacity.partitions or MOST_PARTITIONS) if capacity.placement == "partition" else None,
        spread_level="rack" if capacity.placement == "spread" else None,
    )
