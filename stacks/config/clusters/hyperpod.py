"""The `hyperpod` section: the SageMaker HyperPod cluster that `engine: hyperpod` creates.

Source of the fields and their limits (2026-11):
https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateCluster.html
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stacks.config.setting import Section, setting

CONTROLLER, LOGIN = "controller", "login"
"""Names of the instance groups with Slurm. The group COMPUTE of the life-cycle scripts trains."""
ML_TYPE = r"^ml\.[a-z0-9-]+\.[a-z0-9-]+$"


class HyperPodConfig(Section):
    """The cluster and its instance groups. Required by `engine: hyperpod`."""

    orchestrator: Literal["slurm", "eks"] = setting(
        "Scheduler of the cluster. `slurm`: HyperPod sets up Slurm, and the `slurm` section describes the jobs. `eks`: "
        "the nodes join an existing EKS cluster, and the `kubernetes` section describes the pods.",
        edit="replaces the cluster",
        default="slurm",
    )
    eks_cluster_arn: str | None = setting(
        "EKS cluster whose pods the nodes run (`orchestrator: eks` only). It is in the VPC of `network.existing`.",
        edit="replaces the cluster",
        default=None,
        pattern=r"^arn:aws[a-z-]*:eks:[a-z0-9-]+:\d{12}:cluster/[0-9A-Za-z][A-Za-z0-9_-]{0,99}$",
    )
    security_group_ids: list[Annotated[str, Field(pattern=r"^sg-[0-9a-f]{8,17}$")]] = setting(
        "Additional security groups of the nodes, such as the EKS cluster's (`orchestrator: eks` only).",
        edit="replaces the cluster",
        default=[],
        max_length=4,
    )
    controller_instance_type: str = setting(
        "Instance type of Slurm's controller (`orchestrator: slurm` only).",
        edit="replaces nodes",
        default="ml.m5.xlarge",
        pattern=ML_TYPE,
    )
    login_instance_type: str | None = setting(
        "Instance type of the login node (`orchestrator: slurm` only); `null`: no login node, so commands run on the "
        "controller.",
        edit="in place",
        default="ml.m5.xlarge",
        pattern=ML_TYPE,
    )
    node_recovery: bool = setting(
        "Let HyperPod reboot or replace nodes with faults. Jobs of Slurm then continue on the new node "
        "(`srun --auto-resume=1`).",
        edit="in place",
        default=True,
    )
    deep_health_checks: list[Literal["InstanceStress", "InstanceConnectivity"]] = setting(
        "Checks of new nodes before they accept jobs, which can take more than an hour.",
        edit="in place",
        default=[],
        max_length=2,
    )
    training_plan_arn: str | None = setting(
        "Training plan with reserved capacity for the nodes; `null`: none.",
        edit="replaces nodes",
        default=None,
        pattern=r"^arn:aws[a-z-]*:sagemaker:[a-z0-9-]+:\d{12}:training-plan/[A-Za-z0-9-]{1,64}$",
    )
    threads_per_core: int = setting("Threads per core of the nodes.", edit="replaces nodes", default=1, ge=1, le=2)
    volume_gib: int = setting(
        "Size, GiB, of each node's volume at /opt/sagemaker.", edit="replaces nodes", default=500, ge=1, le=16384
    )
