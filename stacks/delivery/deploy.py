"""Deploying a file by the CDK's command line, which takes on the roles of the bootstrap itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from stacks.config import STACKS, DeploymentConfig

CDK = Path("node_modules/.bin/cdk")
QUIET = {"AWS_CDK_DISABLE_VERSION_CHECK": "true", "CDK_DISABLE_CLI_TELEMETRY": "true"}


class DeployError(RuntimeError):
    """The deploy failed; CloudFormation has put the stack back that failed, and the CDK has said why."""


def deploy(config: DeploymentConfig, file: Path, *, cdk: Path = CDK) -> None:
    """Deploy the stacks of a file; what the CDK says goes where this program's output goes.

    Raises:
        DeployError: It failed, or there is no CDK.
    """
    # Not the PipelineStack: who deploys does not change what it may.
    command = [str(cdk), "deploy", *STACKS, "--require-approval", "never", "--concurrency", "2"]
    try:
        done = subprocess.run(
            [*command, "--ci", "--progress", "events", "--context", f"config={file}"],
            env={**os.environ, **QUIET, "AWS_REGION": config.region},
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError as error:
        raise DeployError(f"{cdk}: is not there; `make install` installs the CDK's command line") from error
    if done.returncode != 0:
        raise DeployError(f"{file}: the deploy failed (code {done.returncode}); stacks that failed were put back")
