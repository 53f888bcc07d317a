"""DeploymentConfig: every key in a deployment file, with its unit, its default, and what editing it changes on deploy.

Each section has a module, which contains only models. `stacks.loading` reads files, and `stacks.validators` contains
the rules that involve several sections.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from bootstrap.documents.desired_state import desired_parameter
from stacks.config.capacity import CapacityConfig
from stacks.config.clusters.eks import EksConfig
from stacks.config.clusters.hyperpod import HyperPodConfig
from stacks.config.clusters.pcs import PcsConfig
from stacks.config.delivery import DeliveryConfig
from stacks.config.image import ImageConfig
from stacks.config.kubernetes import KubernetesConfig
from stacks.config.limits import LimitsConfig
from stacks.config.network import NetworkConfig
from stacks.config.node import AMI_ID, NodeConfig
from stacks.config.observability import BudgetConfig, ObservabilityConfig
from stacks.config.pipeline import PipelineConfig
from stacks.config.run import RunConfig
from stacks.config.setting import Edit, Section, section, setting
from stacks.config.slurm import SlurmConfig
from stacks.config.storage import StorageConfig
from stacks.functions.zombie_watch.stack_names import TRAINING_STACK

__all__ = [
    "AMI_ID",
    "TRAINING_STACK",
    "WORKFLOW_STACK",
    "DeploymentConfig",
    "Edit",
    "Engine",
    "stack_of",
]

WORKFLOW_STACK = "WorkflowStack"
"""The stack of a pipeline."""
Engine = Literal["fleet", "slurm", "kubernetes", "pcs", "hyperpod"]
_PERSISTENT_STACKS = ("NetworkStack", "StorageStack")
_CLUSTER_STACKS: Mapping[Engine, str] = {"pcs": "PcsStack", "hyperpod": "HyperPodStack", "kubernetes": "EksStack"}
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,23}$")]


def stack_of(suffix: str) -> str:
    """Return the construct id of the stack of a slot. `suffix` is "" for the first slot."""
    return f"{TRAINING_STACK}-{suffix}" if suffix else TRAINING_STACK


class DeploymentConfig(Section):
    """One deployment, described by one YAML file."""

    name: Name = setting(
        "Deployment name, used as a prefix for stacks, log groups and parameters.", edit="creates a second deployment"
    )
    region: str = setting(
        "AWS region.", edit="creates a second deployment", default="us-east-1", pattern=r"^[a-z]{2}(-[a-z]+)+-\d$"
    )
    account: str | None = setting(
        "AWS account id; `null`: the account that the credentials belong to.",
        edit="creates a second deployment",
        default=None,
        pattern=r"^\d{12}$",
    )
    tags: dict[str, str] = setting(
        "Tags to set on every resource, for cost reports.", edit="replaces nodes", default={}
    )
    engine: Engine = setting(
        "System that runs the training. `fleet`: instances in your AWS account, managed by the stacks. `slurm`: jobs "
        "on a Slurm cluster, described by the `slurm` section; docs/slurm.md lists the keys that then have no effect. "
        "`kubernetes`: pods in a Kubernetes cluster, described by the `kubernetes` section (docs/kubernetes.md). "
        "`pcs`: jobs on a Slurm cluster of AWS Parallel Computing Service, which the stacks create and the `pcs` and "
        "`slurm` sections describe. `hyperpod`: jobs or pods on a SageMaker HyperPod cluster, which the stacks create "
        "and the `hyperpod` and `slurm` or `kubernetes` sections describe (docs/managed-clusters.md).",
        edit="creates a second deployment",
        default="fleet",
    )
    slurm: SlurmConfig | None = section(
        "The jobs on a Slurm cluster; required by `engine: slurm`, `pcs`, and `hyperpod` with Slurm, and has no effect "
        "on a fleet.",
        edit="applies to new jobs",
    )
    kubernetes: KubernetesConfig | None = section(
        "The pods in a Kubernetes cluster; required by `engine: kubernetes` and by `hyperpod` with EKS, and has no "
        "effect with other engines.",
        edit="applies to new pods",
    )
    pcs: PcsConfig | None = section(
        "The cluster of AWS Parallel Computing Service; required by `engine: pcs`, and has no effect with other "
        "engines.",
        edit="creates a second deployment",
    )
    hyperpod: HyperPodConfig | None = section(
        "The SageMaker HyperPod cluster; required by `engine: hyperpod`, and has no effect with other engines.",
        edit="creates a second deployment",
    )
    eks: EksConfig | None = section(
        "An EKS cluster that the stacks create for `engine: kubernetes`; `null`: the cluster already exists.",
        edit="creates a second deployment",
    )
    image: ImageConfig | None = section(
        "The container image that `trainstack image build` builds for Slurm and Kubernetes (docs/container-images.md). "
        "The nodes of a fleet do not run containers.",
        edit="requires a new image",
    )
    network: NetworkConfig = NetworkConfig()
    storage: StorageConfig = StorageConfig()
    capacity: CapacityConfig
    node: NodeConfig = NodeConfig()
    training: RunConfig
    pipeline: PipelineConfig | None = section(
        "Steps that prepare data, train, evaluate and export (docs/pipelines.md). A deploy then starts no run; "
        "`trainstack pipeline run` starts the steps. `null`: a deploy starts the run that `training` describes.",
        edit="repeats steps",
    )
    observability: ObservabilityConfig = ObservabilityConfig()
    limits: LimitsConfig = LimitsConfig()
    budget: BudgetConfig = BudgetConfig()
    delivery: DeliveryConfig = DeliveryConfig()

    @property
    def shared_suffixes(self) -> list[str]:
        """Ends of the names of the fleets with the deployment's capacity; "" for the first one."""
        return ["", *(str(number) for number in range(2, self.capacity.slots + 1))]

    @property
    def step_capacities(self) -> dict[str, CapacityConfig]:
        """The capacity of each fleet that belongs to a step of the pipeline, by the end of the fleet's name."""
        steps = {} if self.pipeline is None else self.pipeline.steps
        return {end: step.capacity for name, step in steps.items() if step.capacity for end in step.suffixes(name)}

    @property
    def slot_suffixes(self) -> list[str]:
        """Ends of the names of the fleets, in creation order; "" for the first one."""
        return [*self.shared_suffixes, *self.step_capacities]

    @property
    def stacks(self) -> tuple[str, ...]:
        """Construct ids of the stacks, in creation order. Each slot of a fleet has a TrainingStack."""
        if self.engine == "fleet":
            workflow = () if self.pipeline is None else (WORKFLOW_STACK,)
            return (*_PERSISTENT_STACKS, *map(stack_of, self.slot_suffixes), *workflow, "ObservabilityStack")
        if self.engine == "slurm" or (self.engine == "kubernetes" and not self.has_eks_stack):
            return ()
        return (*_PERSISTENT_STACKS, _CLUSTER_STACKS[self.engine])

    @property
    def stack_names(self) -> tuple[str, ...]:
        """Names of the stacks in CloudFormation."""
        return tuple(f"{self.name}-{stack}" for stack in self.stacks)

    @property
    def has_eks_stack(self) -> bool:
        """Whether the stacks create the EKS cluster of the pods."""
        return self.engine == "kubernetes" and self.eks is not None

    @property
    def runs_slurm_jobs(self) -> bool:
        """Whether the run consists of Slurm jobs, which the `slurm` section describes."""
        return self.engine in ("slurm", "pcs") or (self.engine == "hyperpod" and not self.runs_pods)

    @property
    def runs_pods(self) -> bool:
        """Whether the run consists of pods, which the `kubernetes` section describes."""
        on_eks = self.engine == "hyperpod" and self.hyperpod is not None and self.hyperpod.orchestrator == "eks"
        return self.engine == "kubernetes" or on_eks

    @property
    def run_parameter(self) -> str:
        """Name of the SSM parameter with the run document."""
        return f"/trainstack/{self.name}/run"

    @property
    def desired_parameter(self) -> str:
        """Name of the SSM parameter with the desired state, which no template contains."""
        return desired_parameter(self.name)

    @property
    def log_group(self) -> str:
        """Name of the log group for node events."""
        return f"/trainstack/{self.name}"
