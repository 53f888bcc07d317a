"""A configuration of AWS ParallelCluster with a queue for a plan's jobs.

Sources (2026-11): https://docs.aws.amazon.com/parallelcluster/latest/ug/cluster-configuration-file-v3.html, and for the
names of queues and the settings of file systems, the pages `Scheduling-v3.html` and `SharedStorage-v3.html` there.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

import botocore.session
import yaml

from stacks.capacity.plan import fabric
from trainstack.session import INVALID, CommandError
from trainstack.slurm.plan import Plan

CAPACITY_TYPES = {"spot": "SPOT", "on_demand": "ONDEMAND"}
QUEUE_NAME = re.compile(r"[a-z][a-z0-9-]{0,24}")
DEFAULT_QUEUE = "gpu"


def cluster_text(plan: Plan, subnet: str, head_node_type: str, file_system: str | None) -> str:
    """Return the configuration as YAML, with the commands that use it as comments.

    It sets no tag of a deployment, which ParallelCluster would copy to all resources (source (2026-11): the page
    `Tags-v3.html` there). Without a stack of the deployment, `zombies` would find the nodes.

    Args:
        plan: The plan of the jobs.
        subnet: Subnet of all nodes.
        head_node_type: Instance type of the head node.
        file_system: Id of an existing FSx for Lustre file system; None: ParallelCluster creates one and keeps it.

    Raises:
        CommandError: ParallelCluster does not support the plan.
    """
    name = plan.config.name
    head = [
        f"# A cluster of AWS ParallelCluster for the jobs of {name}:",
        f"#   pcluster create-cluster --cluster-name {name} --cluster-configuration THIS_FILE",
        "# Then, on the head node, `trainstack up FILE` submits the job script:",
        f"#   {plan.script}",
    ]
    document = _cluster(plan, subnet, head_node_type, file_system)
    return "\n".join(head) + "\n" + yaml.safe_dump(document, sort_keys=False, width=120)


def _cluster(plan: Plan, subnet: str, head_node_type: str, file_system: str | None) -> dict[str, Any]:
    _check(plan)
    partition = botocore.session.get_session().get_partition_for_region(plan.config.region)
    return {
        "Region": plan.config.region,
        "Image": {"Os": "alinux2023"},
        "Imds": {"ImdsSupport": "v2.0"},
        "HeadNode": {
            "InstanceType": head_node_type,
            "Networking": {"SubnetId": subnet},
            "LocalStorage": {"RootVolume": {"Encrypted": True}},
            "Iam": {
                "AdditionalIamPolicies": [{"Policy": f"arn:{partition}:iam::aws:policy/AmazonSSMManagedInstanceCore"}]
            },
        },
        "Scheduling": {"Scheduler": "slurm", "SlurmQueues": [_queue(plan, subnet)]},
        "SharedStorage": [_shared_storage(plan, file_system)],
    }


def _check(plan: Plan) -> None:
    """Check what ParallelCluster would reject, in terms of the deployment file."""
    problems = []
    capacity, partition = plan.config.capacity, plan.slurm.partition
    if not capacity.instance_types:
        problems.append("capacity.instance_types: []: is empty, but ParallelCluster launches the nodes; list types")
    if capacity.market not in CAPACITY_TYPES:
        remedy = f"set {' or '.join(CAPACITY_TYPES)}"
        problems.append(f"capacity.market: {capacity.market!r}: is not supported by this command; {remedy}")
    if partition is not None and QUEUE_NAME.fullmatch(partition) is None:
        rule = "must be the name of a queue: at most 25 lower-case letters, digits and hyphens, and a letter first"
        problems.append(f"slurm.partition: {partition!r}: {rule}; correct it")
    if len(_mount(plan).parts) < 2:
        rule = "must be a folder on the shared file system, such as /fsx/my-run"
        problems.append(f"slurm.directory: {plan.slurm.directory!r}: {rule}; correct it")
    if problems:
        raise CommandError(INVALID, "\n".join(problems))


def _mount(plan: Plan) -> PurePosixPath:
    """Return the mount point of the shared file system: the first folder of `slurm.directory`, if it has a second."""
    parts = PurePosixPath(plan.slurm.directory).parts
    return PurePosixPath(*parts[:2]) if len(parts) > 2 else PurePosixPath("/")


def _queue(plan: Plan, subnet: str) -> dict[str, Any]:
    capacity = plan.config.capacity
    has_efa = fabric(plan.config) == "efa"
    networking: dict[str, Any] = {"SubnetIds": [subnet]}
    if has_efa or capacity.placement == "cluster":
        networking["PlacementGroup"] = {"Enabled": True}
    nodes: dict[str, Any] = {
        "Name": "nodes",
        "Instances": [{"InstanceType": name} for name in capacity.instance_types],
        "MinCount": 0,
        "MaxCount": capacity.nodes,
    }
    if has_efa:
        nodes["Efa"] = {"Enabled": True}
    queue: dict[str, Any] = {
        "Name": plan.slurm.partition or DEFAULT_QUEUE,
        "CapacityType": CAPACITY_TYPES[capacity.market],
        "JobExclusiveAllocation": plan.slurm.exclusive,
        "ComputeSettings": {"LocalStorage": {"RootVolume": {"Encrypted": True}}},
        "Networking": networking,
        "ComputeResources": [nodes],
    }
    if plan.gres is not None and plan.slurm.health_check:
        queue["HealthChecks"] = {"Gpu": {"Enabled": True}}
    return queue


def _shared_storage(plan: Plan, file_system: str | None) -> dict[str, Any]:
    settings: dict[str, Any] = {"FileSystemId": file_system}
    if file_system is None:
        settings = {
            "StorageCapacity": 1200,
            "DeploymentType": "PERSISTENT_2",
            "PerUnitStorageThroughput": 250,
            "DataCompressionType": "LZ4",
            "DeletionPolicy": "Retain",
        }
    return {"MountDir": str(_mount(plan)), "Name": "shared", "StorageType": "FsxLustre", "FsxLustreSettings": settings}
