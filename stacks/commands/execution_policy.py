"""`execution-policy`: write the policies for CloudFormation's execution role that replace AdministratorAccess."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from stacks.constructs.cdk_bootstrap_roles import project_qualifier
from stacks.execution_policy.boundary import execution_boundary
from stacks.execution_policy.documents import Deployments, Document, PolicyTooLarge, documents, size_characters
from stacks.execution_policy.needed import needed
from stacks.loading import read


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "execution-policy",
        help="write the policies that replace AdministratorAccess in `cdk bootstrap`",
        description="Writes the policies and the permissions boundary for CloudFormation's execution role. The "
        "policies are derived from the resource type schemas for the given deployment files. See docs/runbook.md for "
        "the commands that install them in an account.",
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
    fleets = []
    for path in configs:
        config = read(path)
        if config.engine == "fleet":
            fleets.append(config)
        else:
            rule = "covers only fleets" if config.stacks else "needs no permissions: it has no stacks"
            print(f"{path}: engine {config.engine}: {rule}", file=sys.stderr)
    if not fleets:
        return 2
    deployments = Deployments.of(fleets, qualifier=project_qualifier())
    try:
        policies = documents(found, deployments)
    except PolicyTooLarge as error:
        print(error, file=sys.stderr)
        return 2
    named: dict[str, Document] = {f"execution-policy-{number}": one for number, one in enumerate(policies, start=1)}
    named["execution-boundary"] = execution_boundary(list(found), deployments)
    if options.output is not None:
        for stale in options.output.glob("execution-policy-*.json"):
            stale.unlink()  # a smaller policy can be split into fewer documents
    for name, document in named.items():
        if options.output is None:
            print(json.dumps(document, indent=1))
            continue
        path = options.output / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"{path}: {size_characters(document)} characters, {len(document['Statement'])} statements")
    return 0
