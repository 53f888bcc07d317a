"""Deploys a file with the CDK CLI, which assumes the bootstrap roles itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from stacks.changes.templates.deployed import other_deployments
from stacks.config import DeploymentConfig
from stacks.delivery.failed_create import end_protection
from stacks.delivery.sessions import deploy_session
from stacks.errors import DeployError

CDK = Path("node_modules/.bin/cdk")
QUIET = {"AWS_CDK_DISABLE_VERSION_CHECK": "true", "CDK_DISABLE_CLI_TELEMETRY": "true"}


def deploy(config: DeploymentConfig, file: Path, *, cdk: Path = CDK) -> None:
    """Deploy the stacks in a file without confirmation. The CDK writes to this program's standard output and error.

    Raises:
        DeployError: The deploy failed, or the CDK is not installed.
        AccountError: The bootstrap's deploy role cannot be assumed.
    """
    prepare(config)
    # The PipelineStack is excluded because a deploying role must not change its own permissions.
    options = ["--require-approval", "never", "--concurrency", "2", "--ci", "--progress", "events"]
    run_cdk(config, file, ["deploy", *config.stacks, *options], cdk=cdk, is_interactive=False)


def deploy_interactively(
    config: DeploymentConfig, file: Path, stacks: Sequence[str], *, cdk: Path = CDK, is_approved: bool = False
) -> None:
    """Deploy stacks (default: all stacks in the file). Unless approved, the CDK prompts before it broadens permissions.

    Raises:
        DeployError: The deploy failed, or the CDK is not installed.
        AccountError: The bootstrap's deploy role cannot be assumed.
    """
    prepare(config)
    options = ["--require-approval", "never", "--concurrency", "2", "--ci", "--progress", "events"]
    arguments = ["deploy", *(stacks or ["--all"]), *(options if is_approved else [])]
    run_cdk(config, file, arguments, cdk=cdk, is_interactive=not is_approved)


def prepare(config: DeploymentConfig) -> None:
    """Report a deploy that would create an additional deployment, and prepare failed stacks for another attempt.

    Raises:
        DeployError: A stack whose creation failed cannot be created again.
        AccountError: The bootstrap's deploy role cannot be assumed.
    """
    try:
        client = deploy_session(config).client("cloudformation")
        for note in (*other_deployments(client, config.name), *end_protection(client, config.stack_names)):
            print(note, flush=True)
    except (BotoCoreError, ClientError) as error:
        raise DeployError(f"{config.name}: cannot read its stacks ({error})") from error


def run_cdk(
    config: DeploymentConfig, file: Path, arguments: Sequence[str], *, cdk: Path = CDK, is_interactive: bool
) -> None:
    """Run a CDK command for a deployment file.

    Raises:
        DeployError: The command failed, or the CDK is not installed.
    """
    try:
        done = subprocess.run(
            [str(cdk), *arguments, "--context", f"config={file}"],
            env={**os.environ, **QUIET, "AWS_REGION": config.region},
            stdin=None if is_interactive else subprocess.DEVNULL,
        )
    except FileNotFoundError as error:
        raise DeployError(f"{cdk}: not found; run `make install` to install the CDK CLI") from error
    if done.returncode != 0:
        verb = arguments[0]
        raise DeployError(f"{file}: the {verb} failed (code {done.returncode}); failed stacks were rolled back")
