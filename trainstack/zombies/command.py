"""The command `zombies`: resources that cost money without a run, in one or all regions, and their deletion."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated

import typer

from stacks.commands.progress import Progress
from stacks.functions.zombie_watch.search import Findings
from trainstack.session import FAILED, Account, CommandError, Json, Region, confirm
from trainstack.zombies import search as zombies


def add(app: typer.Typer) -> None:
    """Add the command to a command line."""
    app.command("zombies")(show_zombies)


def show_zombies(
    region: Region = None,
    all_regions: Annotated[bool, typer.Option(help="Search all regions enabled for the account.")] = False,
    ends: Annotated[bool, typer.Option("--end", help="After asking, delete the resources without data.")] = False,
    data: Annotated[
        bool, typer.Option("--data", help="With --end: also delete volumes, snapshots and file systems.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --end: do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """List billed resources that no run uses, with their price. Without --end, nothing is deleted.

    Resources that could not be examined are listed as well, and the exit code is then 1.
    """
    first = Account(region)
    names = [first.region]
    if all_regions:
        names = [each["RegionName"] for each in first.client("ec2").describe_regions()["Regions"]]
    accounts = {name: Account(name).prepare(*zombies.SERVICES) for name in names}
    found = _search(accounts)
    listed = [each for one in found.values() for each in one.zombies]
    gaps = [(name, each) for name, one in found.items() for each in one.gaps]
    if as_json:
        rows = [{"region": name, **dataclasses.asdict(each)} for name, each in gaps]
        print(json.dumps({"zombies": [dataclasses.asdict(each) for each in listed], "not_examined": rows}), flush=True)
    for each in [] if as_json else listed:
        print(each)
    if not as_json:
        known = sum(each.usd_per_month or 0.0 for each in listed)
        print(f"{len(listed)} resources without a run, {known:,.2f} USD per month for those with a known price")
        for name, gap in gaps:
            print(f"{name}: {gap}")
    if ends:
        _end(accounts, found, data=data, yes=yes)
    if gaps:
        rule = "the list above is incomplete; permit the failed calls, and search again"
        raise CommandError(FAILED, f"{len(gaps)} groups of resources were not examined: {rule}")


def _search(accounts: dict[str, Account]) -> dict[str, Findings]:
    """Search all regions at the same time. Calls to different regions have separate rate limits."""
    what = f"searching {', '.join(accounts) if len(accounts) < 3 else f'{len(accounts)} regions'}"
    with Progress() as progress, ThreadPoolExecutor(8) as pool:
        progress(what)
        results = pool.map(lambda name: zombies.search(accounts[name].client, name, time.time()), accounts)
        return dict(zip(accounts, results, strict=True))


def _end(accounts: dict[str, Account], found: dict[str, Findings], *, data: bool, yes: bool) -> None:
    """Delete resources after a confirmation and a second search.

    Raises:
        CommandError: The user did not agree, or a resource was not deleted.
    """
    is_chosen = partial(zombies.can_end, data=data)
    chosen = {region: [each for each in one.zombies if is_chosen(each)] for region, one in found.items()}
    count, total = sum(map(len, chosen.values())), sum(len(one.zombies) for one in found.values())
    if count < total:
        rule = "volumes, snapshots and file systems need --data; the others have a remedy"
        print(f"{total - count} of {total} resources remain: {rule}", file=sys.stderr, flush=True)
    if not count:
        return
    if not yes:
        confirm(f"Delete {count} resources?", "nothing was deleted", "--yes")
    regions = {region: accounts[region] for region, one in chosen.items() if one}
    now, failed = _search(regions), 0
    for region, opened in regions.items():
        for each, problem in zombies.end(opened.client, chosen[region], now[region].zombies):
            failed += bool(problem)
            state = f"not deleted: {problem}" if problem else "deleted"
            print(f"{region}: {each.kind} {each.id}: {state}", file=sys.stderr, flush=True)
    if failed:
        raise CommandError(FAILED, f"{failed} of {count} resources were not deleted")
