"""Opens the engine of a deployment with a managed cluster."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from trainstack.clusters.eks import EksCluster
from trainstack.clusters.engine import ManagedEngine
from trainstack.clusters.hyperpod import HyperPodCluster, upload_scripts
from trainstack.clusters.pcs import PcsCluster
from trainstack.engines.engine import Engine
from trainstack.operate.deploying import deploy_stacks
from trainstack.session import Account

if TYPE_CHECKING:  # importing the configuration would double the start-up time of commands such as `status`
    from stacks.config import DeploymentConfig


def managed_engine(config: DeploymentConfig, file: Path, region: str | None) -> ManagedEngine:
    """Return the engine. A machine with Slurm's commands is part of the cluster, so it can reach the jobs.

    Raises:
        CommandError: The file is invalid.
    """
    account = Account(region or config.region)
    if config.engine == "pcs":
        cluster = PcsCluster(account.client("pcs"), config.name, str(file))
        return ManagedEngine(cluster, file, deploy_stacks, _slurm_jobs(config, file))
    if config.has_eks_stack:
        eks = EksCluster(account.client("eks"), config.name, account.region)
        return ManagedEngine(eks, file, deploy_stacks, _pods(config, file), deploys_with_jobs=True)
    upload = functools.partial(_upload, config, account)
    deploy = functools.partial(deploy_stacks, persistent=upload)
    hyperpod = HyperPodCluster(account.client("sagemaker"), config.name, has_shell=config.runs_slurm_jobs)
    if config.runs_slurm_jobs:
        return ManagedEngine(hyperpod, file, deploy, _slurm_jobs(config, file))
    return ManagedEngine(hyperpod, file, deploy, _pods(config, file), deploys_with_jobs=True)


def _pods(config: DeploymentConfig, file: Path) -> Engine:
    from trainstack.kubernetes.command import read_plan
    from trainstack.kubernetes.engine import KubernetesEngine

    return KubernetesEngine(read_plan(file, config), file)


def _upload(config: DeploymentConfig, account: Account) -> None:
    """Upload the life-cycle scripts that the instance groups refer to."""
    from stacks.artifacts.lifecycle import lifecycle_folder

    upload_scripts(
        account.client("s3"),
        account.client("cloudformation"),
        f"{config.name}-StorageStack",
        lifecycle_folder(config),
    )


def _slurm_jobs(config: DeploymentConfig, file: Path) -> Engine | None:
    if shutil.which("sbatch") is None:
        return None
    from trainstack.slurm.command import read_plan
    from trainstack.slurm.engine import SlurmEngine

    return SlurmEngine(read_plan(file, config), file)
