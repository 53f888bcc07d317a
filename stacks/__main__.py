"""`python -m stacks`: look at deployments without CDK and without AWS."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from stacks.config import load
from stacks.errors import ConfigError
from stacks.instance_types import catalogue
from stacks.reference import configuration_page


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code: 0, or 2 for a deployment file that is wrong."""
    parser = argparse.ArgumentParser(prog="python -m stacks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="validate a deployment file; exit code 2 when it is wrong")
    check.add_argument("config", type=Path, help="deployment file, such as config/demo.yaml")
    show = commands.add_parser("catalogue", help="print the instance types and their prices")
    show.add_argument("--json", action="store_true", help="the prices, for programs")
    commands.add_parser("docs", help="print docs/configuration.md: every key, its default, and what an edit does")
    options = parser.parse_args(arguments)
    if options.command == "check":
        return _check(options.config)
    if options.command == "catalogue":
        return _catalogue(options.json)
    print(configuration_page(), end="")
    return 0


def _check(path: Path) -> int:
    try:
        config = load(path)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    types = ", ".join(config.capacity.instance_types)
    print(f"{path}: sound. {config.name}: {config.capacity.nodes} x ({types}), {config.capacity.market}")
    return 0


def _catalogue(as_json: bool) -> int:
    known = catalogue()
    if as_json:
        print(json.dumps(known.prices(), indent=2))
        return 0
    print(f"{known.region}, {known.currency} per hour, {known.date}. {known.source}")
    print(f"{'type':<16}{'GPUs':>10}{'GPU GiB':>9}{'vCPUs':>7}{'GiB':>6}{'EFA':>5}{'on demand':>11}{'spot':>9}")
    for one in known.types.values():
        gpu = f"{one.gpus} {one.gpu}" if one.gpus else "-"
        facts = f"{one.gpu_memory_gib:>9}{one.vcpus:>7}{one.memory_gib:>6}{one.efa_interfaces:>5}"
        print(f"{one.name:<16}{gpu:>10}{facts}{one.on_demand_usd:>11.4f}{one.spot_usd:>9.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
