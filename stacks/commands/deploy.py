"""`deploy`: deploy a file from a terminal."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "deploy",
        help="deploy a file with the CDK CLI, which prompts before it broadens permissions",
        description="Runs `cdk deploy`, but first disables termination protection on empty stacks whose "
        "creation failed, which plain `cdk deploy` cannot do. The exit code is 1 if AWS or the deploy failed.",
    )
    parser.add_argument("config", type=Path, help="deployment file, such as config/demo.yaml")
    parser.add_argument("stacks", nargs="*", metavar="STACK", help="stacks, such as TrainingStack (default: all)")
    parser.add_argument("--yes", action="store_true", help="deploy without a prompt, even without a terminal")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    # Imported here so that the other commands start faster without boto3.
    from stacks.artifacts.wheelhouse import DIRECTORY
    from stacks.artifacts.wheelhouse.making import build_locked
    from stacks.artifacts.wheelhouse.resolving import WheelhouseError
    from stacks.delivery.deploy import deploy_interactively
    from stacks.delivery.sessions import AccountError
    from stacks.errors import DeployError
    from stacks.loading import load

    try:
        config = load(options.config)
        build_locked(options.config, DIRECTORY, lambda text: print(text, file=sys.stderr))
        deploy_interactively(config, options.config, options.stacks, is_approved=options.yes)
    except (AccountError, DeployError, WheelhouseError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
