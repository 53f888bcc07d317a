"""`diff`: what a deploy of a file would do, in words, with an exit code to gate a pipeline by."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from stacks.errors import ConfigError, Problem


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "diff",
        help="say what a deploy would do: resources, nodes, data, rights, network, costs",
        description="Synthesises a deployment file and compares it with what is deployed, with a git revision, or with "
        "templates in a folder. Exit codes: 0 nothing changes, 10 safe, 20 nodes are replaced, 30 rights or network "
        "are broadened, 40 data is at risk (the highest counts); 2 for an input that is wrong. Nothing is changed: "
        "`deployed` takes cloudformation:DescribeStacks and cloudformation:GetTemplate.",
    )
    parser.add_argument("config", type=Path, help="deployment file, such as config/demo.yaml")
    parser.add_argument(
        "--against",
        default="deployed",
        metavar="deployed|REVISION|FOLDER",
        help="what to compare with: the deployed stacks (default), a git revision, or a folder of templates (cdk.out)",
    )
    parser.add_argument(
        "-c",
        "--context",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="context of the deploy, as for cdk: allow-destroy=true",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="all of it, for programs")
    form.add_argument("--markdown", action="store_true", help="one comment for a pull request, the verdict first")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compare, print, and return the exit code of the verdict."""
    # Here, so that the other commands do not wait for rich and the schemas to load.
    from rich.console import Console

    from stacks.changes.comparison import compare
    from stacks.changes.formats import print_review, to_json, to_markdown

    context = dict(_context(one) for one in options.context)
    review = compare(
        options.config, options.against, context, progress=lambda text: print(f"{text} ...", file=sys.stderr)
    )
    if options.json:
        print(json.dumps(to_json(review), indent=2))
    elif options.markdown:
        print(to_markdown(review), end="")
    else:
        print_review(review, Console(highlight=False))
    return int(review.level)


def _context(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigError("--context", [Problem("--context", text, "must be KEY=VALUE", "see `cdk deploy --context`")])
    return name, value
