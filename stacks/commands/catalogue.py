"""`catalogue`: print instance types and prices, or refresh them from AWS."""

from __future__ import annotations

import argparse
import json
import sys

from stacks.capacity.catalogue import DEFAULT_REGION, PURCHASES, catalogue


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser("catalogue", help="print instance types and prices, or refresh them from AWS")
    parser.add_argument("--region", default=DEFAULT_REGION, help="region to print prices for (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the prices as JSON")
    parser.set_defaults(run=show)
    actions = parser.add_subparsers(dest="action")
    refresh = actions.add_parser(
        "refresh",
        help="update the facts and prices of catalogued types from EC2 and the Price List",
        description="Queries EC2 and the Price List with your credentials. Required permissions: "
        "ec2:DescribeInstanceTypes, "
        "ec2:DescribeInstanceTypeOfferings, ec2:DescribeSpotPriceHistory, pricing:GetProducts, "
        "savingsplans:DescribeSavingsPlansOfferingRates. Prints the changes and writes the catalogue. For new "
        "families, add the quotas and NVLinks to hardware/hardware.json by hand. Also reads 90 days of spot "
        "prices, and the interruption frequencies of the Spot Instance Advisor, which `candidates --plan` uses.",
    )
    refresh.add_argument("--regions", nargs="+", default=sorted(catalogue().regions), metavar="REGION")
    refresh.add_argument("--add", nargs="+", default=[], metavar="TYPE", help="types to add to the catalogue")
    refresh.add_argument("--dry-run", action="store_true", help="print the changes without writing them")
    refresh.set_defaults(run=_refresh)


def show(options: argparse.Namespace) -> int:
    """Print a region's catalogue."""
    known = catalogue()
    if options.region not in known.regions:
        print(
            f"{options.region}: no known prices; regions with prices: {', '.join(sorted(known.regions))}. "
            f"Run `python -m stacks catalogue refresh --regions {options.region}` to add them",
            file=sys.stderr,
        )
        return 2
    if options.json:
        print(json.dumps(known.prices(options.region), indent=2))
        return 0
    prices = known.regions[options.region]
    print(f"{options.region}, {known.currency} per instance-hour")
    print(f"  facts: {known.hardware.facts.date}, {known.hardware.facts.source}")
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
    from stacks.capacity.refresh import Files, RefreshError, refresh  # imports boto3, which other commands do not need

    files = Files()
    try:
        changes = refresh(
            files,
            regions=options.regions,
            added_types=options.add,
            dry_run=options.dry_run,
            progress=lambda text: print(text, file=sys.stderr),
        )
    except RefreshError as error:
        print(error, file=sys.stderr)
        return 1
    if changes:
        print("\n".join(changes))
    written = "not written (dry run)" if options.dry_run else f"written to {files.hardware} and {files.prices}"
    print(f"{len(changes)} changes, {written}")
    return 0
