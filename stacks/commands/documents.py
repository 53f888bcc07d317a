"""`docs`, `schema` and `preflight`: print the key reference, the JSON schema, and the table of preflight checks."""

from __future__ import annotations

import argparse

from stacks.config.reference import configuration_page, json_schema


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the commands."""
    docs = commands.add_parser("docs", help="print docs/configuration.md: keys, defaults, and effects of edits")
    docs.set_defaults(run=_docs)
    schema = commands.add_parser("schema", help="print docs/deployment.schema.json, the schema for editors")
    schema.set_defaults(run=_schema)
    preflight = commands.add_parser("preflight", help="print docs/preflight.md: the checks of `check --aws`")
    preflight.set_defaults(run=_preflight)


def _docs(_: argparse.Namespace) -> int:
    print(configuration_page(), end="")
    return 0


def _schema(_: argparse.Namespace) -> int:
    print(json_schema(), end="")
    return 0


def _preflight(_: argparse.Namespace) -> int:
    from stacks.account.questions import page  # imports the CDK and boto3, which other commands do not need

    print(page(), end="")
    return 0
