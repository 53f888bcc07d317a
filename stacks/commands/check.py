"""`check`: validate a deployment file, and on request ask the account whether it can be deployed."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import datetime, timezone
from pathlib import Path

from stacks.config import DeploymentConfig, load
from stacks.errors import ConfigError, Problem
from stacks.validators import warnings
from stacks.validators.capacity import expired_prices


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "check",
        help="validate a deployment file; exit code 2 when it is wrong",
        description="Validates a deployment file and prints every problem at once: path, value, rule, remedy. Errors "
        "give exit code 2; warnings are printed and stop nothing.",
    )
    parser.add_argument("config", type=Path, help="deployment file, such as config/demo.yaml")
    parser.add_argument("--json", action="store_true", help="print the problems as JSON")
    parser.add_argument(
        "--aws",
        action="store_true",
        help="also ask the account: quotas, offerings, reservation, spot placement score, and a dry run of the launch",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Check a file; return 0, or 2 when there is an error."""
    try:
        config = load(options.config)
        problems = [*warnings(config), *expired_prices(config, datetime.now(timezone.utc).date())]
        if options.aws:
            problems += _ask_the_account(config, options.config)
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
    types = ", ".join(config.capacity.instance_types)
    warned = f", {len(problems)} warnings" if problems else ""
    print(
        f"{options.config}: sound{warned}. {config.name}: {config.capacity.nodes} x ({types}), {config.capacity.market}"
    )
    return 0


def _ask_the_account(config: DeploymentConfig, path: Path) -> list[Problem]:
    from stacks.account import ask, synthesised  # boto3, which a plain check does without

    return ask(config, templates=lambda: synthesised(path), progress=lambda text: print(text, file=sys.stderr))
