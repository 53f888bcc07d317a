"""Inspect, deploy, deliver and destroy deployments. Unless noted, commands do not call AWS."""

from __future__ import annotations

import argparse
import sys

from stacks.commands import (
    ami,
    bundle,
    candidates,
    catalogue,
    check,
    deliver,
    deploy,
    destroy,
    diff,
    documents,
    execution_policy,
    policy,
)
from stacks.errors import ConfigError

COMMANDS = (
    check,
    bundle,
    diff,
    deploy,
    destroy,
    deliver,
    candidates,
    catalogue,
    ami,
    documents,
    policy,
    execution_policy,
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 for success, 1 if an AWS call failed, 2 for invalid input."""
    parser = argparse.ArgumentParser(prog="python -m stacks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for command in COMMANDS:
        command.add(commands)
    options = parser.parse_args(arguments)
    try:
        code: int = options.run(options)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return code


if __name__ == "__main__":
    sys.exit(main())
