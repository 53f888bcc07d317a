"""`execution-policy`: what CloudFormation's execution role needs, in place of AdministratorAccess."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from stacks.config import read
from stacks.execution_policy.ceiling import ceiling
from stacks.execution_policy.documents import Deployments, Document, PolicyTooLarge, documents, size_characters
from stacks.execution_policy.needed import needed


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "execution-policy",
        help="write the policies for `cdk bootstrap` in place of AdministratorAccess",
        description="Writes the policies of CloudFormation's execution role for the deployments of these files, from "
        "the schemas of the resource types, and the boundary that goes over the role. docs/runbook.md has the commands "
        "that put them into an account.",
    )
    parser.add_argument(
        "configs", nargs="*", type=Path, metavar="CONFIG", help="deployment files (default: all in config/)"
    )
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="folder for the documents (default: print them)")
    parser.add_argument("--explain", action="store_true", help="print each permission and the handlers that need it")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    found = needed()
    if options.explain:
        for action, handlers in found.items():
            print(f"{action}: {', '.join(sorted(handlers))}")
        return 0
    configs = options.configs or sorted(Path("config").rglob("*.yaml"))
    deployments = Deployments.of(read(path) for path in configs)
    try:
        policies = documents(found, deployments)
    except PolicyTooLarge as error:
        print(error, file=sys.stderr)
        return 2
    named: dict[str, Document] = {f"execution-policy-{number}": one for number, one in enumerate(policies, start=1)}
    named["execution-boundary"] = ceiling(list(found), deployments)
    if options.output is not None:
        for stale in options.output.glob("execution-policy-*.json"):
            stale.unlink()  # fewer deployments may need fewer documents
    for name, document in named.items():
        if options.output is None:
            print(json.dumps(document, indent=1))
            continue
        path = options.output / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"{path}: {size_characters(document)} characters, {len(document['Statement'])} statements")
    return 0
