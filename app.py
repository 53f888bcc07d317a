"""The CDK app: one deployment file becomes its stacks. `cdk deploy TrainingStack -c config=config/demo.yaml`.

The CDK's own check of templates, which takes longer than all else here, is on if `CDK_VALIDATION=true`; the policy gate
always runs it (docs/adr/0007-templates-checked-by-the-gate.md).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import aws_cdk as cdk

from stacks.config import load
from stacks.deployment import add_stacks, environment
from stacks.errors import BundleError, ConfigError
from stacks.pipeline_stack import PipelineStack


def synthesise(app: cdk.App) -> None:
    """Synthesise the stacks of the deployment file that the context names.

    Raises:
        ConfigError: The file is wrong; with every problem in it.
        BundleError: The user's code cannot be shipped.
    """
    path = Path(str(app.node.get_context("config")))
    config = load(path)
    add_stacks(app, config, may_destroy=str(app.node.try_get_context("allow-destroy")).lower() == "true")
    if config.delivery.pipeline is not None or config.delivery.github is not None:
        PipelineStack(
            app,
            "PipelineStack",
            config=config,
            config_file=path,
            env=environment(config),
            stack_name=f"{config.name}-PipelineStack",
        )
    app.synth()


if __name__ == "__main__":
    try:
        synthesise(cdk.App(builtin_cloud_formation_validation=os.environ.get("CDK_VALIDATION") == "true"))
    except (BundleError, ConfigError) as error:
        sys.exit(str(error))
