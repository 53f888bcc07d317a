"""`diff`: describe the effects of a deploy, with an exit code that pipelines can use as a gate."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from stacks.commands.progress import Progress
from stacks.errors import ConfigError, Problem


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "diff",
        help="describe how a deploy affects resources, nodes, data, permissions, network and costs",
        description="Synthesizes a deployment file and compares it with the deployed stacks, a git revision, or "
        "templates in a folder. The exit code is the highest that applies: 0 no changes, 10 safe, 20 nodes are "
        "replaced, 30 needs approval (permissions or network access broadened, or a change that the review does "
        "not recognize as safe), 40 data at risk. It is 2 for invalid input. The command "
        "is read-only. Comparing with the deployed stacks requires cloudformation:DescribeStacks and "
        "cloudformation:GetTemplate.",
    )
    parser.add_argument("config", type=Path, help="deployment file, such as config/demo.yaml")
    parser.add_argument(
        "--against",
        default="deployed",
        metavar="deployed|REVISION|FOLDER",
        help="base of the comparison: the deployed stacks (default), a git revision, or a folder of templates",
    )
    parser.add_argument(
        "--templates",
        type=Path,
        metavar="FOLDER",
        help="cloud assembly of the deployment file, to use instead of synthesizing it; its code is not executed",
    )
    parser.add_argument("--stack", metavar="NAME", help="review only this stack, such as PipelineStack")
    parser.add_argument(
        "-c",
        "--context",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="context value for the CDK app, such as allow-destroy=true",
    )
    parser.add_argument(
        "--exit-zero", action="store_true", help="exit with 0 regardless of the result, for use in make"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the review as JSON")
    form.add_argument("--markdown", action="store_true", help="print a pull request comment, starting with the verdict")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compare the stacks, print the review, and return the verdict's exit code."""
    # Imported here so that the other commands start faster without rich and the schemas.
    from rich.console import Console

    from stacks.changes.comparison import compare
    from stacks.changes.formats import print_review, to_json, to_markdown

    context = dict(_context(one) for one in options.context)
    with Progress() as progress:
        review = compare(
            options.config,
            options.against,
            context,
            progress,
            templates=options.templates,
            only=options.stack,
        )
    if options.json:
        print(json.dumps(to_json(review), indent=2))
    elif options.markdown:
        print(to_markdown(review), end="")
    else:
        print_review(review, Console(highlight=False))
    return 0 if options.exit_zero else int(review.level)


def _context(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigError("--context", [Problem("--context", text, "must be KEY=VALUE", "see `cdk deploy --context`")])
    return name, value
