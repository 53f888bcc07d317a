"""The nodes' placement group."""

from __future__ import annotations

from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from stacks.config import DeploymentConfig

# Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/placement-strategies.html
MAX_PARTITIONS = 7


def placement_group(scope: Construct, config: DeploymentConfig) -> ec2.CfnPlacementGroup | None:
    """Return the group for `capacity.placement`, or None if there is none.

    A spread group puts each node on a separate rack and holds at most seven nodes per zone, which a validator enforces.
    """
    capacity = config.capacity
    if capacity.placement == "none":
        return None
    return ec2.CfnPlacementGroup(
        scope,
        "Placement",
        strategy=capacity.placement,
        partition_count=(capacity.partitions or MAX_PARTITIONS) if capacity.placement == "partition" else None,
        spread_level="rack" if capacity.placement == "spread" else None,
    )
