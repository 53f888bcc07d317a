"""`deliver`: what carries a merged change, the same from a workflow, from the pipeline in AWS and from a laptop."""

from __future__ import annotations

import argparse
from pathlib import Path

from stacks.delivery.review import DEPLOYED, WORDS


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "deliver",
        help="check, compare, gate, deploy, look for drift: what workflows and pipelines run",
        description="Exit codes: 0 done; 1 AWS or the deploy failed; 2 an input is wrong; 3 the gate stopped a deploy, "
        "or there is drift.",
    )
    actions = parser.add_subparsers(dest="action", required=True)
    _action(actions, "check", "validate deployment files; every problem of all of them")
    diff = _action(actions, "diff", "say what deploys would do, as a comment for a review")
    diff.add_argument("--against", default=DEPLOYED, help="deployed, a git revision, or a folder (default: deployed)")
    diff.add_argument("--output", type=Path, metavar="FILE", help="file for the comment (default: print it)")
    gate = _action(actions, "gate", "say what deploys would do, and whether a person must agree first")
    gate.add_argument(
        "--output", type=Path, metavar="FILE", help="file that gets verdict=, code= and summary= appended"
    )
    carry = _action(actions, "deploy", "deploy one file after the other; stop at what a person must agree to")
    carry.add_argument(
        "--approved",
        type=int,
        default=0,
        choices=WORDS,
        metavar="CODE",
        help="exit code of `stacks diff` that a person has agreed to: a worse change is stopped still",
    )
    for one in (gate, carry):
        one.add_argument(
            "--approve-from",
            type=int,
            default=30,
            choices=[code for code in WORDS if code],
            metavar="CODE",
            help="exit code of `stacks diff` from which a person must agree: 10, 20, 30 or 40 (default: 30)",
        )
    _action(actions, "drift", "compare what is there with the deployed templates; exit code 3 when it differs")


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, words: str
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=words)
    parser.add_argument("configs", nargs="+", type=Path, metavar="CONFIG", help="deployment files, in order")
    parser.set_defaults(run=_run)
    return parser


def _run(options: argparse.Namespace) -> int:
    # Here, so that the other commands do not wait for boto3 to load.
    from stacks.delivery.actions import perform

    return perform(options)
