"""Rules of the node section: what a gp3 volume can do, and when a peer counts as silent."""

from __future__ import annotations

from collections.abc import Iterator

from stacks.config import DeploymentConfig
from stacks.errors import Problem

# Source: https://docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html (2026-11).
IOPS_PER_GIB = 500
BASELINE_IOPS = 3000
MIB_PER_SECOND_PER_IOPS = 0.25


def volume(config: DeploymentConfig) -> Iterator[Problem]:
    """A gp3 volume's speed is bounded by its size, and its throughput by its operations."""
    root = config.node.root_volume
    if root.iops > max(BASELINE_IOPS, IOPS_PER_GIB * root.gib):
        rule = f"is more than {IOPS_PER_GIB} a GiB of {root.gib} GiB"
        yield Problem("node.root_volume.iops", root.iops, rule, "lower it, or raise gib")
    if root.throughput > root.iops * MIB_PER_SECOND_PER_IOPS:
        rule = f"is more than a quarter MiB/s for each of the {root.iops} operations a second"
        yield Problem("node.root_volume.throughput", root.throughput, rule, "lower it, or raise iops")


def silence(config: DeploymentConfig) -> Iterator[Problem]:
    """One late heart-beat must not look like a lost node."""
    supervise = config.node.supervise
    if supervise.heartbeat_timeout_seconds < 2 * supervise.heartbeat_seconds:
        rule = f"must be at least twice heartbeat_seconds {supervise.heartbeat_seconds}"
        path = "node.supervise.heartbeat_timeout_seconds"
        yield Problem(path, supervise.heartbeat_timeout_seconds, rule, "raise it, or beat more often")


RULES = (volume, silence)
