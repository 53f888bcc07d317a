"""`catalogue`: print what is known of instance types and prices, or ask AWS anew."""

from __future__ import annotations

import argparse
import json
import sys

from stacks.instance_types import CATALOGUE_PATH, DEFAULT_REGION, PURCHASES, catalogue


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser("catalogue", help="print the instance types and their prices, or ask AWS anew")
    parser.add_argument("--region", default=DEFAULT_REGION, help="whose prices (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="the prices, for programs")
    parser.set_defaults(run=show)
    actions = parser.add_subparsers(dest="action")
    again = actions.add_parser(
        "refresh",
        help="rebuild facts and prices of the catalogued types from EC2 and Price List calls",
        description="Asks EC2 and the Price List with your credentials (rights: ec2:DescribeInstanceTypes, "
        "ec2:DescribeInstanceTypeOfferings, ec2:DescribeSpotPriceHistory, pricing:GetProducts, "
        "savingsplans:DescribeSavingsPlansOfferingRates), prints what changes, and writes the catalogue.",
    )
    again.add_argument("--regions", nargs="+", default=sorted(catalogue().regions), metavar="REGION")
    again.add_argument("--add", nargs="+", default=[], metavar="TYPE", help="types to take up besides")
    again.add_argument("--dry-run", action="store_true", help="print what would change, write nothing")
    again.set_defaults(run=_refresh)


def show(options: argparse.Namespace) -> int:
    """Print the catalogue of a region."""
    known = catalogue()
    if options.region not in known.regions:
        print(
            f"{options.region}: no prices are known; known are those of {', '.join(sorted(known.regions))}. "
            f"`python -m stacks catalogue refresh --regions {options.region}` asks AWS for them",
            file=sys.stderr,
        )
        return 2
    if options.json:
        print(json.dumps(known.prices(options.region), indent=2))
        return 0
    prices = known.regions[options.region]
    print(f"{options.region}, {known.currency} per hour of a machine")
    print(f"  facts: {known.facts.date}, {known.facts.source}")
    for way, origin in prices.sources.items():
        print(f"  {way}: {origin.date}, {origin.source}")
    heads = "".join(f"{way.replace('_', ' '):>13}" for way in PURCHASES)
    head = f"{'type':<17}{'GPUs':>8}{'GPU GiB':>9}{'vCPUs':>6}{'GiB':>6}{'NVMe GB':>9}{'EFA':>4}{'EBS Mbit/s':>11}"
    print(head + heads)
    for name in prices.types:
        one = known.types[name]
        gpu = f"{one.gpus} {one.gpu}" if one.gpus else "-"
        figures = (prices.usd_per_hour(name, way) for way in PURCHASES)
        paid = "".join(f"{'-' if figure is None else format(figure, '.4f'):>13}" for figure in figures)
        print(
            f"{name:<17}{gpu:>8}{one.gpu_memory_gib:>9.1f}{one.vcpus:>6}{one.memory_gib:>6}{one.nvme_gb:>9}"
            f"{one.efa_interfaces:>4}{one.ebs_mbps:>11}{paid}"
        )
    return 0


def _refresh(options: argparse.Namespace) -> int:
    from stacks.catalogue_refresh import RefreshError, refresh  # boto3, which the other commands do without

    try:
        changes = refresh(
            CATALOGUE_PATH,
            regions=options.regions,
            added_types=options.add,
            dry_run=options.dry_run,
            progress=lambda text: print(text, file=sys.stderr),
        )
    except RefreshError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(changes) if changes else "nothing changes")
    print(f"{len(changes)} changes" + (", none written (dry run)" if options.dry_run else f": {CATALOGUE_PATH}"))
    return 0
