"""`check`: validate a deployment file and, with --aws, check the account as well."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from stacks.capacity.plan import gpus
from stacks.config import DeploymentConfig
from stacks.errors import ConfigError, Problem
from stacks.loading import load
from stacks.validators import warnings
from stacks.validators.capacity import expired_prices


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "check",
        help="validate a deployment file (exit code 2 if it has errors)",
        description="Validates a deployment file and prints all problems at once, each with its path, value, rule and "
        "remedy. The exit code is 2 if there are errors. Warnings do not affect it.",
    )
    parser.add_argument("config", type=Path, help="deployment file, such as config/demo.yaml")
    parser.add_argument("--json", action="store_true", help="print the problems as JSON")
    parser.add_argument(
        "--aws",
        action="store_true",
        help="also check whether the deployment can run in the account (docs/preflight.md), and dry-run a launch",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Check a file. Return 0, or 2 if the file has errors."""
    try:
        config = load(options.config)
        problems = [*warnings(config), *_expired(config)]
        if options.aws:
            problems += _account_problems(config, options.config)
    except ConfigError as error:
        if not options.json:
            raise
        config, problems = None, error.problems
    errors = [problem for problem in problems if problem.severity == "error"]
    if options.json:
        print(json.dumps({"file": str(options.config), "problems": [one.to_json() for one in problems]}, indent=2))
        return 2 if errors else 0
    for problem in problems:
        print(f"{problem.severity}: {problem}", file=sys.stderr)
    if errors or config is None:
        return 2
    warned = f", {len(problems)} warnings" if problems else ""
    print(f"{options.config}: valid{warned}. {config.name}: {_nodes(config)}")
    print(f"checkpoints: {config.training.config.describe_checkpoint_interval()}")
    return 0


def _expired(config: DeploymentConfig) -> list[Problem]:
    return [] if config.engine != "fleet" else list(expired_prices(config, datetime.now(UTC).date()))


def _nodes(config: DeploymentConfig) -> str:
    """Return a description of the nodes or pods on which the run trains."""
    types = ", ".join(config.capacity.instance_types)
    if config.runs_slurm_jobs:
        cluster = "a Slurm cluster" if config.engine == "slurm" else "a Slurm cluster that the stacks create"
        return f"{config.capacity.nodes} nodes x {gpus(config)} GPUs, jobs on {cluster}"
    if config.runs_pods:
        return f"{config.capacity.nodes} pods x {gpus(config)} GPUs in a Kubernetes cluster"
    return f"{config.capacity.nodes} x ({types}), {config.capacity.market}"


def _account_problems(config: DeploymentConfig, path: Path) -> list[Problem]:
    from stacks.account import account_problems, synthesised  # imports boto3, which a check without --aws does not need

    return account_problems(
        config, templates=lambda: synthesised(path), progress=lambda text: print(text, file=sys.stderr)
    )
