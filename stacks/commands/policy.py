"""`policy`: what cfn-lint, cdk-nag and checkov say of the templates of the deployment files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

CHECKOV = Path("build/checkov-venv/bin/checkov")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "policy", help="run cfn-lint, cdk-nag and checkov over the templates; exit code 1 on any finding"
    )
    parser.add_argument(
        "configs", nargs="*", type=Path, metavar="CONFIG", help="deployment files (default: all in config/)"
    )
    parser.add_argument(
        "--checkov", type=Path, default=CHECKOV, metavar="PROGRAM", help=f"checkov's program (default: {CHECKOV})"
    )
    parser.add_argument("--build", type=Path, default=Path("build/policy"), help="folder for the templates")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    # Here, so that the other commands do not wait for the CDK and its checkers to load.
    from stacks.policy.checkov import CheckovError
    from stacks.policy.gate import run_gate

    configs = options.configs or sorted(Path("config").rglob("*.yaml"))
    try:
        return 0 if run_gate(configs, options.build, options.checkov) else 1
    except CheckovError as error:
        print(error, file=sys.stderr)
        return 2
