"""`docs` and `schema`: what a deployment file may hold, for people and for editors."""

from __future__ import annotations

import argparse

from stacks.reference import configuration_page, json_schema


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the commands."""
    docs = commands.add_parser("docs", help="print docs/configuration.md: every key, its default, what an edit does")
    docs.set_defaults(run=_docs)
    schema = commands.add_parser("schema", help="print docs/deployment.schema.json, with which editors complete keys")
    schema.set_defaults(run=_schema)


def _docs(_: argparse.Namespace) -> int:
    print(configuration_page(), end="")
    return 0


def _schema(_: argparse.Namespace) -> int:
    print(json_schema(), end="")
    return 0
