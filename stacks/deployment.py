"""Creates a deployment file's stacks in an app or a pipeline stage, with the same templates in both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import Stack
from constructs import Construct

from stacks.artifacts import wheelhouse
from stacks.artifacts.bundles import BUNDLES
from stacks.config import WORKFLOW_STACK, DeploymentConfig
from stacks.config.slots import slots_of
from stacks.constructs.observability.log_encryption import LogEncryption
from stacks.constructs.permissions_boundary import PermissionsBoundary, deployment_statements, network_statements
from stacks.constructs.workflow.workflow_stack import Buckets, WorkflowStack
from stacks.errors import ConfigError, Problem
from stacks.loading import load
from stacks.network_stack import NetworkStack
from stacks.observability_stack import ObservabilityStack
from stacks.pipeline_stack import PipelineStack
from stacks.run_stacks.eks_stack import EksStack
from stacks.run_stacks.hyperpod_stack import HyperPodStack
from stacks.run_stacks.pcs_stack import PcsStack
from stacks.run_stacks.training_stack import TrainingStack
from stacks.storage_stack import StorageStack
from stacks.validators import warnings


def synthesise(app: cdk.App) -> None:
    """Synthesize the stacks for the deployment file that the context key `config` names.

    Raises:
        ConfigError: The file is invalid.
        BundleError: The user code cannot be bundled.
    """
    path = Path(str(app.node.get_context("config")))
    config = load(path)
    if not config.stacks:
        problem = Problem("engine", config.engine, "has no stacks", f"submit the run with `trainstack up {path}`")
        raise ConfigError(str(path), [problem])
    may_destroy, is_idle = _is_set(app, "allow-destroy"), _is_set(app, "idle-network")
    add = add_stacks if config.engine == "fleet" else add_cluster_stacks
    add(app, config, may_destroy=may_destroy, is_idle=is_idle)
    if config.delivery.pipeline is not None or config.delivery.github is not None:
        PipelineStack(
            app,
            "PipelineStack",
            config=config,
            config_file=path,
            add_stacks=lambda stage, one: add_stacks(stage, one, may_destroy=False),
            env=environment(config),
            stack_name=f"{config.name}-PipelineStack",
        )
    app.synth()


def _is_set(app: cdk.App, key: str) -> bool:
    return str(app.node.try_get_context(key)).lower() == "true"


def environment(config: DeploymentConfig) -> cdk.Environment:
    """Return a deployment's target account and region.

    CDK_DEFAULT_ACCOUNT is never used, so a file produces the same templates for every user.
    """
    return cdk.Environment(account=config.account, region=config.region)


def add_stacks(scope: Construct, config: DeploymentConfig, *, may_destroy: bool, is_idle: bool = False) -> None:
    """Add a deployment's stacks to an app or a stage.

    Args:
        scope: The app or stage.
        config: The deployment that `load` returned.
        may_destroy: Whether `storage.deletion: destroy` may delete data. Data is deleted only if both allow it.
        is_idle: Whether to omit the parts of the network that are billed and that only nodes need.
    """
    env = environment(config)
    network, storage = _persistent_stacks(scope, config, may_destroy=may_destroy, is_idle=is_idle)
    slots = slots_of(config)
    trainings = [
        TrainingStack(
            scope,
            slot.stack,
            config=slot.config,
            network=network,
            storage=storage,
            bundle_directory=BUNDLES,
            wheelhouse_directory=wheelhouse.DIRECTORY,
            owns_run_parameter=slot.owns_run_parameter,
            env=env,
            stack_name=f"{config.name}-{slot.stack}",
        )
        for slot in slots
    ]
    workflows = _workflows(scope, config, storage, trainings)
    observability = ObservabilityStack(
        scope,
        "ObservabilityStack",
        config=config,
        storage=storage,
        trainings=trainings,
        bundle_directory=BUNDLES,
        env=env,
        stack_name=f"{config.name}-ObservabilityStack",
    )
    _finish(scope, config, network, storage, *trainings, *workflows, observability)


def add_cluster_stacks(scope: Construct, config: DeploymentConfig, *, may_destroy: bool, is_idle: bool = False) -> None:
    """Add the three stacks of a managed cluster to an app. The arguments are those of `add_stacks`."""
    network, storage = _persistent_stacks(scope, config, may_destroy=may_destroy, is_idle=is_idle)
    id_ = config.stacks[-1]
    stack = {"PcsStack": PcsStack, "HyperPodStack": HyperPodStack, "EksStack": EksStack}[id_]
    cluster = stack(
        scope,
        id_,
        config=config,
        network=network,
        storage=storage,
        env=environment(config),
        stack_name=f"{config.name}-{id_}",
    )
    _finish(scope, config, network, storage, cluster)


def _persistent_stacks(
    scope: Construct, config: DeploymentConfig, *, may_destroy: bool, is_idle: bool
) -> tuple[NetworkStack, StorageStack]:
    """Add the stacks with the network and the data."""
    env = environment(config)
    network = NetworkStack(
        scope, "NetworkStack", config=config, is_idle=is_idle, env=env, stack_name=f"{config.name}-NetworkStack"
    )
    storage = StorageStack(
        scope,
        "StorageStack",
        config=config,
        network=network,
        may_destroy=may_destroy,
        env=env,
        stack_name=f"{config.name}-StorageStack",
        termination_protection=not may_destroy and config.storage.deletion == "retain",
    )
    return network, storage


def _finish(
    scope: Construct, config: DeploymentConfig, network: NetworkStack, storage: StorageStack, *others: Stack
) -> None:
    """Apply the permissions boundaries, the log encryption, the tags and the warnings. The first stack has nodes."""
    PermissionsBoundary(
        network,
        "PermissionsBoundary",
        config=config,
        suffix="network-boundary",
        statements=network_statements(network),
    ).apply(network)
    PermissionsBoundary(
        storage,
        "PermissionsBoundary",
        config=config,
        suffix="boundary",
        statements=deployment_statements(storage, config),
    ).apply(storage, *others)
    LogEncryption(storage.key).apply((storage, *others))
    for key, value in config.tags.items():
        cdk.Tags.of(scope).add(key, value)
    for warning in warnings(config):
        cdk.Annotations.of(others[0]).add_warning_v2(f"trainstack:{warning.path}", str(warning))


def _workflows(
    scope: Construct, config: DeploymentConfig, storage: StorageStack, trainings: Sequence[TrainingStack]
) -> list[WorkflowStack]:
    """Return the stack of the deployment's pipeline, or an empty list."""
    if config.pipeline is None:
        return []
    stack = WorkflowStack(
        scope,
        WORKFLOW_STACK,
        config=config,
        buckets=Buckets(storage.datasets, storage.checkpoints, storage.control),
        key=storage.key,
        bundle_directory=BUNDLES,
        env=environment(config),
        stack_name=f"{config.name}-{WORKFLOW_STACK}",
    )
    for training in trainings:  # the members' fleets exist before the first execution, and until the last one has ended
        stack.add_stack_dependency(training)
    return [stack]
