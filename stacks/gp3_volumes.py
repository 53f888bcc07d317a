"""What a gp3 volume can do: rules that root and data volumes share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from stacks.config import DeploymentConfig
from stacks.errors import Problem
from stacks.instance_types import catalogue

# Source (2026-11): https://docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html
IOPS_PER_GIB = 500
BASELINE_IOPS = 3000
BASELINE_MIB_PER_SECOND = 125
MIB_PER_SECOND_PER_IOPS = 0.25
MIB_PER_SECOND_PER_MBIT = 1e6 / 8 / 2**20


class Gp3(Protocol):
    """The keys of a gp3 volume."""

    @property
    def gib(self) -> int:
        """Size, GiB."""

    @property
    def iops(self) -> int:
        """Operations a second."""

    @property
    def throughput(self) -> int:
        """MiB/s."""


def gp3(config: DeploymentConfig, path: str, volume: Gp3) -> Iterator[Problem]:
    """A gp3 volume's speed is bounded by its size, its throughput by its operations, and both by the machine."""
    if volume.iops > max(BASELINE_IOPS, IOPS_PER_GIB * volume.gib):
        rule = f"is more than {IOPS_PER_GIB} a GiB of {volume.gib} GiB"
        yield Problem(f"{path}.iops", volume.iops, rule, "lower it, or raise gib")
    if volume.throughput > volume.iops * MIB_PER_SECOND_PER_IOPS:
        rule = f"is more than a quarter MiB/s for each of the {volume.iops} operations a second"
        yield Problem(f"{path}.throughput", volume.throughput, rule, "lower it, or raise iops")
    known = catalogue().types
    types = [known[name] for name in config.capacity.instance_types if name in known]
    slow = min(types, key=lambda one: one.ebs_mbps, default=None)
    if slow is None or volume.throughput <= BASELINE_MIB_PER_SECOND:
        return
    reachable = slow.ebs_mbps * MIB_PER_SECOND_PER_MBIT
    if volume.throughput > reachable:
        rule = f"is more than {slow.name} has to EBS as a baseline ({reachable:.0f} MiB/s), and is paid all the same"
        remedy = "lower it, or take larger types"
        yield Problem(f"{path}.throughput", volume.throughput, rule, remedy, "warning")
