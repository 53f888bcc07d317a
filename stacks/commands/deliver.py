"""`deliver`: deliver merged changes with the same commands in a workflow, in the AWS pipeline and on a laptop."""

from __future__ import annotations

import argparse
from pathlib import Path

from stacks.delivery.review import DEPLOYED, MEANINGS


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "deliver",
        help="check, diff, gate, deploy, and detect drift, as workflows and pipelines do",
        description="Exit codes: 0 success; 1 AWS or the deploy failed; 2 invalid input; 3 the gate stopped a deploy "
        "or drift was detected.",
    )
    actions = parser.add_subparsers(dest="action", required=True)
    _action(actions, "check", "validate deployment files and print all problems")
    diff = _action(actions, "diff", "write a review comment that describes the effects of the deploys")
    diff.add_argument("--against", default=DEPLOYED, help="deployed, a git revision, or a folder (default: deployed)")
    diff.add_argument("--output", type=Path, metavar="FILE", help="file for the comment (default: print it)")
    gate = _action(actions, "gate", "describe the effects of the deploys and decide whether they need approval")
    gate.add_argument(
        "--output", type=Path, metavar="FILE", help="file to which verdict=, code= and summary= are appended"
    )
    gate.add_argument("--stack", metavar="NAME", help="review only this stack, such as PipelineStack")
    for one in (diff, gate):
        one.add_argument(
            "--templates",
            type=Path,
            metavar="FOLDER",
            help="folder that contains the cloud assembly of each CONFIG as FOLDER/NAME. The files and templates are "
            "treated as data: no code next to them is executed",
        )
    deploy = _action(actions, "deploy", "deploy the files in order, stopping at the first change that needs approval")
    deploy.add_argument(
        "--approved",
        type=int,
        default=0,
        choices=MEANINGS,
        metavar="CODE",
        help="approved exit code of `stacks diff`; a change with a higher code still stops the deploys",
    )
    for one in (gate, deploy):
        one.add_argument(
            "--approve-from",
            type=int,
            default=30,
            choices=[code for code in MEANINGS if code],
            metavar="CODE",
            help="lowest exit code of `stacks diff` that requires approval: 10, 20, 30 or 40 (default: 30)",
        )
    _action(actions, "drift", "compare resources with the deployed templates; exit code 3 if they differ")


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, description: str
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=description)
    parser.add_argument("configs", nargs="+", type=Path, metavar="CONFIG", help="deployment files, in deploy order")
    parser.set_defaults(run=_run)
    return parser


def _run(options: argparse.Namespace) -> int:
    # Imported here so that the other commands start faster without boto3.
    from stacks.delivery.actions import perform

    return perform(options)
