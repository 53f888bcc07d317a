"""The `pcs` section: the Slurm cluster of AWS Parallel Computing Service (PCS) that `engine: pcs` creates.

Source of the fields and their limits (2026-11): https://docs.aws.amazon.com/pcs/latest/APIReference/API_CreateCluster.html
and API_CreateComputeNodeGroup.html in the same guide.
"""

from __future__ import annotations

from typing import Literal

from stacks.config.setting import Section, setting

NODES, LOGIN = "nodes", "login"
"""Names of the node groups. With several layouts of network interfaces, the others are nodes-1, nodes-2 and so on."""


class PcsConfig(Section):
    """The cluster, its login node and its compute nodes. Required by `engine: pcs`."""

    size: Literal["SMALL", "MEDIUM", "LARGE"] = setting(
        "Size of the controller: at most 32 nodes and 256 jobs, 512 nodes and 8,192 jobs, or 2,048 nodes and 16,384 "
        "jobs.",
        edit="replaces the cluster",
        default="SMALL",
    )
    slurm_version: Literal["24.11", "25.05", "25.11", "26.05"] = setting(
        "Version of Slurm. The image must contain the same version.", edit="in place", default="25.11"
    )
    login_instance_type: str | None = setting(
        "Instance type of the login node, which runs on demand all the time; `null`: no login node. Commands then run "
        "on another machine with Slurm's commands and the shared file system.",
        edit="in place",
        default="m7i.large",
        pattern=r"^[a-z0-9-]+\.[a-z0-9-]+$",
    )
    idle_minutes: int = setting(
        "Minutes after which PCS terminates a node without jobs.", edit="in place", default=10, ge=1, le=10080
    )
    always_on: int = setting(
        "Number of nodes that also run without jobs. `0`: the cluster scales to zero nodes.",
        edit="in place",
        default=0,
        ge=0,
        le=2048,
    )
    accounting: bool = setting(
        "Keep a record of finished jobs (`sacct`). AWS charges per hour, depending on `size`, and for stored records.",
        edit="in place",
        default=False,
    )
