"""The stacks of a deployment file, in an app or in a stage of a pipeline: the templates are the same in both."""

from __future__ import annotations

from pathlib import Path

import aws_cdk as cdk
from constructs import Construct

from stacks import wheelhouse
from stacks.config import DeploymentConfig
from stacks.constructs.log_encryption import LogEncryption
from stacks.constructs.permissions_boundary import PermissionsBoundary
from stacks.network_stack import NetworkStack
from stacks.observability_stack import ObservabilityStack
from stacks.storage_stack import StorageStack
from stacks.training_stack import TrainingStack
from stacks.validators import warnings

BUNDLES = Path("build/bundles")


def environment(config: DeploymentConfig) -> cdk.Environment:
    """Return where a deployment goes.

    Not CDK_DEFAULT_ACCOUNT: the same file gives the same templates, whoever synthesises.
    """
    return cdk.Environment(account=config.account, region=config.region)


def add_stacks(scope: Construct, config: DeploymentConfig, *, may_destroy: bool) -> None:
    """Add the four stacks of a deployment to an app or a stage.

    Args:
        scope: The app, or a stage of one.
        config: The deployment, as `load` returns it.
        may_destroy: The second of the two keys with which data goes when the stacks do.
    """
    where = environment(config)

    def name(stack: str) -> str:
        return f"{config.name}-{stack}"

    network = NetworkStack(scope, "NetworkStack", config=config, env=where, stack_name=name("NetworkStack"))
    storage = StorageStack(
        scope,
        "StorageStack",
        config=config,
        network=network,
        may_destroy=may_destroy,
        bundle_directory=BUNDLES,
        env=where,
        stack_name=name("StorageStack"),
        termination_protection=not may_destroy and config.storage.deletion == "retain",
    )
    training = TrainingStack(
        scope,
        "TrainingStack",
        config=config,
        network=network,
        storage=storage,
        bundle_directory=BUNDLES,
        wheelhouse_directory=wheelhouse.DIRECTORY,
        env=where,
        stack_name=name("TrainingStack"),
    )
    observability = ObservabilityStack(
        scope,
        "ObservabilityStack",
        config=config,
        training=training,
        env=where,
        stack_name=name("ObservabilityStack"),
    )
    boundary = PermissionsBoundary(network, "PermissionsBoundary", config=config)
    boundary.apply((network, storage, training, observability))
    LogEncryption(storage.key).apply((storage, training, observability))
    for key, value in config.tags.items():
        cdk.Tags.of(scope).add(key, value)
    for warning in warnings(config):
        cdk.Annotations.of(training).add_warning_v2(f"trainstack:{warning.path}", str(warning))
