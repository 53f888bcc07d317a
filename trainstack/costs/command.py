"""The command `cost`: costs by run, node, zone, market or day."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Annotated, Any

import boto3
import typer

from stacks.commands.progress import Progress
from trainstack import account
from trainstack.costs import cost
from trainstack.observe.current import observing
from trainstack.session import FAILED, Account, CommandError, Json, Region

LABELS = ("run", "node", "zone", "market", "day")


def add(app: typer.Typer) -> None:
    """Add the command to a command line."""
    app.command("cost")(show_cost)


def show_cost(
    name: Annotated[str | None, typer.Argument(help="Deployment name; default: all deployments in the region.")] = None,
    region: Region = None,
    by: Annotated[str, typer.Option(help=f"Group by {', '.join(LABELS)}.")] = "run",
    actual: Annotated[
        bool,
        typer.Option(help=f"Also compare with Cost Explorer, which costs {cost.REQUEST_USD} USD per request."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Print what the instances have cost according to the ledger, and estimates of the other resources.

    For the name of a deployment with a managed cluster, which has no ledger, print only estimates.
    """
    if by not in LABELS:
        raise typer.BadParameter(f"{by!r}: must be one of {', '.join(LABELS)}", param_hint="--by")
    opened = observing(region).prepare("cloudwatch")
    try:
        found = [account.find(opened.client, name)] if name else list(account.find_all(opened.client))
    except account.NotDeployed:
        with Progress() as progress:
            progress(f"reading the templates of {name}")
            from trainstack.costs.clusters import cluster_costs  # imports the configuration, which takes seconds

            cluster = cluster_costs(opened.client, name or "", opened.region)
        if cluster is None:
            raise
        print(json.dumps([cluster.to_json()]) if as_json else "\n".join(cluster.lines()))
        return
    results = [_result(opened, each, by, actual) for each in found]
    if as_json:
        print(json.dumps(results))
        return
    if not found:
        print(f"no deployments in {opened.region}")
    for result in results:
        print("\n".join(_lines(result)))


def _result(opened: Account, deployment: account.Deployment, by: Any, with_actual: bool) -> dict[str, Any]:
    print(f"reading the ledger of {deployment.name}", file=sys.stderr, flush=True)
    now = time.time()
    entries, problems = cost.entries(opened.client, deployment)
    seen = account.observe(opened.client, deployment, now)
    run = "" if seen.run is None else seen.run.run
    spent = cost.summed(run, [entry for entry in entries if entry.run == run]).charge
    total = cost.summed("total", entries)
    bought = cost.efficiency(seen, spent)
    spending = None if seen.controller is None else seen.controller.spending
    result: dict[str, Any] = {
        "name": deployment.name,
        "run": run,
        "by": by,
        "groups": cost.to_json(cost.sums(entries, by)),
        "total": cost.to_json([total])[0],
        "current": None if spending is None else asdict(spending),
        "efficiency": asdict(bought),
        "estimates": [asdict(each) for each in cost.estimates(opened.client, deployment, now)],
        "problems": [*problems, *seen.problems],
        "table": cost.lines(cost.sums(entries, by), total),
    }
    if with_actual:
        first = min((entry.hour_unix_seconds for entry in entries), default=now)
        result["actual"] = _actual(deployment.name, first, now, total.charge.usd)
    return result


def _actual(name: str, first: float, now: float, ledger_usd: float) -> dict[str, Any]:
    print(f"querying Cost Explorer ({cost.REQUEST_USD} USD per request)", file=sys.stderr, flush=True)
    explorer = boto3.client("ce", region_name=cost.COST_EXPLORER_REGION)
    found = cost.actual(explorer, name, first, now)
    if not found.usd:
        raise CommandError(
            FAILED,
            f"Cost Explorer has no costs with the tag {account.DEPLOYMENT_TAG}={name}; activate the cost allocation "
            "tag in the billing console, and repeat the command a day later",
        )
    compute = found.usd.get(cost.COMPUTE, 0.0)
    return {
        "usd_by_service": dict(found.usd),
        "compute_usd": compute,
        "difference_usd": compute - ledger_usd,
        "requests": found.requests,
        "requests_usd": found.requests * cost.REQUEST_USD,
    }


def _lines(result: dict[str, Any]) -> list[str]:
    lines = [f"{result['name']}: instances, from the ledger", *(f"  {line}" for line in result["table"])]
    total, bought, current = result["total"], result["efficiency"], result["current"]
    if total["uncertain_seconds"]:
        hours = total["uncertain_seconds"] / 3600
        lines.append(f"  {hours:,.2f} instance-hours are upper bounds: their price or end time is not known exactly")
    if total["unpriced_seconds"]:
        lines.append(
            f"  {total['unpriced_seconds'] / 3600:,.2f} instance-hours have no known price and are not included"
        )
    if current is not None:
        lines.append(f"  now {current['usd_per_hour']:,.2f} USD/h{_limit(current)}")
    if bought["usd_per_million_tokens"] is not None:
        lines.append(f"  {bought['usd_per_million_tokens']:,.4f} USD per million tokens of {result['run']}")
    if bought["goodput"] is not None:
        lines.append(f"  goodput {bought['goodput']:.1%}: the share of instance time spent on steps that were kept")
    lines.append("other resources, estimated per month")
    for each in result["estimates"]:
        usd = "unknown" if each["usd_per_month"] is None else f"{each['usd_per_month']:,.2f} USD"
        lines.append(f"  {each['label']}: {usd} ({each['source']})")
    if "actual" in result:
        found = result["actual"]
        lines.append(
            f"Cost Explorer: {found['compute_usd']:,.2f} USD for instances, {found['difference_usd']:+,.2f} USD "
            f"compared with the ledger; Cost Explorer lags by up to a day. {found['requests']} requests cost "
            f"{found['requests_usd']:.2f} USD"
        )
        lines += [f"  {service}: {usd:,.2f} USD" for service, usd in sorted(found["usd_by_service"].items())]
    return [*lines, *(f"problem: {each}" for each in result["problems"])]


def _limit(current: dict[str, Any]) -> str:
    return f", limit {current['limit_usd']:,.2f} USD" if current["limit_usd"] else ""
