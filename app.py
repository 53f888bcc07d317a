"""The CDK app: one deployment file becomes four stacks. `cdk deploy TrainingStack -c config=config/demo.yaml`."""

from __future__ import annotations

import sys
from pathlib import Path

import aws_cdk as cdk

from stacks.config import load
from stacks.constructs.log_encryption import LogEncryption
from stacks.constructs.permissions_boundary import PermissionsBoundary
from stacks.errors import BundleError, ConfigError
from stacks.network_stack import NetworkStack
from stacks.observability_stack import ObservabilityStack
from stacks.storage_stack import StorageStack
from stacks.training_stack import TrainingStack
from stacks.validators import warnings

BUNDLES = Path("build/bundles")


def synthesise(app: cdk.App) -> None:
    """Synthesise the stacks of the deployment file that the context names.

    Raises:
        ConfigError: The file is wrong; with every problem in it.
        BundleError: The user's code cannot be shipped.
    """
    path = Path(str(app.node.get_context("config")))
    config = load(path)
    # Not CDK_DEFAULT_ACCOUNT: the same file gives the same templates, whoever synthesises.
    environment = cdk.Environment(account=config.account, region=config.region)
    may_destroy = str(app.node.try_get_context("allow-destroy")).lower() == "true"

    def name(stack: str) -> str:
        return f"{config.name}-{stack}"

    network = NetworkStack(app, "NetworkStack", config=config, env=environment, stack_name=name("NetworkStack"))
    storage = StorageStack(
        app,
        "StorageStack",
        config=config,
        network=network,
        may_destroy=may_destroy,
        bundle_directory=BUNDLES,
        env=environment,
        stack_name=name("StorageStack"),
        termination_protection=not may_destroy and config.storage.deletion == "retain",
    )
    training = TrainingStack(
        app,
        "TrainingStack",
        config=config,
        network=network,
        storage=storage,
        bundle_directory=BUNDLES,
        env=environment,
        stack_name=name("TrainingStack"),
    )
    observability = ObservabilityStack(
        app,
        "ObservabilityStack",
        config=config,
        training=training,
        env=environment,
        stack_name=name("ObservabilityStack"),
    )
    boundary = PermissionsBoundary(network, "PermissionsBoundary", config=config)
    boundary.apply((network, storage, training, observability))
    LogEncryption(storage.key).apply((storage, training, observability))
    for key, value in config.tags.items():
        cdk.Tags.of(app).add(key, value)
    for warning in warnings(config):
        cdk.Annotations.of(training).add_warning_v2(f"trainstack:{warning.path}", str(warning))
    app.synth()


if __name__ == "__main__":
    try:
        synthesise(cdk.App())
    except (BundleError, ConfigError) as error:
        sys.exit(str(error))
