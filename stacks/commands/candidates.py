"""`candidates`: print the instance types that fit a workload, with reasons and the cost for each purchase option."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from stacks.capacity.catalogue import PURCHASES, Purchase, catalogue
from stacks.capacity.selection import Candidate, candidates, needs_of
from stacks.capacity.simulation.expected import RUNS
from stacks.commands import plan
from stacks.config import DeploymentConfig
from stacks.config.capacity import AutoCapacity
from stacks.errors import ConfigError, Problem
from stacks.loading import read


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "candidates",
        help="print the instance types that fit capacity.auto, with reasons and costs",
        description="Prints every type offered in the region, chosen types first, with the reason and cost for each "
        "purchase option (spot, on-demand, 1-year Savings Plan, 1-year reservation). The total covers "
        "nodes x capacity.auto.hours.",
    )
    parser.add_argument("config", type=Path, help="deployment file, with capacity.auto unless --plan is given")
    parser.add_argument("--plan", action="store_true", help=plan.HELP)
    parser.add_argument("--traces", type=Path, metavar="FOLDER", help="with --plan: recorded spot capacity and prices")
    parser.add_argument("--runs", type=int, default=RUNS, help="with --plan: simulated runs (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the candidates, or the plan, as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the candidates. Return 0, or 2 if no type fits."""
    if options.plan:
        return plan.show(options.config, traces=options.traces, runs=options.runs, as_json=options.json)
    if options.traces is not None:
        raise ConfigError("--traces", [Problem("--traces", options.traces, "is used only with --plan", "add --plan")])
    config = read(options.config)
    auto = config.capacity.auto
    if auto is None:
        rule = "must be set to choose types"
        remedy = "describe the workload, such as `auto: {gpus: 1, parameters_million: 124}`"
        raise ConfigError(str(options.config), [Problem("capacity.auto", None, rule, remedy)])
    if config.region not in catalogue().regions:
        remedy = f"run `python -m stacks catalogue refresh --regions {config.region}`"
        problem = Problem("region", config.region, "the catalogue has no types in this region", remedy)
        raise ConfigError(str(options.config), [problem])
    needs = needs_of(config, auto)
    found = candidates(needs, config.region)
    if options.json:
        print(json.dumps(_document(config, auto, found), indent=2))
    else:
        memory = (
            f"{needs.gib_per_gpu:.1f} GiB each ({needs.gpu_memory_reason})" if needs.gpus else needs.gpu_memory_reason
        )
        print(
            f"{config.region}, {needs.gpus} GPUs per instance, {memory}; prices in USD (`catalogue` prints their dates)"
        )
        print("\n".join(_table(config, auto, found)))
    if any(one.chosen for one in found):
        return 0
    print("no type fits", file=sys.stderr)
    return 2


def total_usd(config: DeploymentConfig, auto: AutoCapacity, usd_per_hour: float | None) -> float | None:
    """Return the cost of all nodes for the planned hours, or None if the hours or the price are unknown."""
    if usd_per_hour is None or auto.hours is None:
        return None
    return usd_per_hour * auto.hours * config.capacity.nodes


def _document(config: DeploymentConfig, auto: AutoCapacity, found: list[Candidate]) -> dict[str, object]:
    sources = catalogue().regions[config.region].sources
    return {
        "region": config.region,
        "nodes": config.capacity.nodes,
        "hours": auto.hours,
        "prices": {way: {"date": one.date.isoformat(), "source": one.source} for way, one in sources.items()},
        "candidates": [
            {
                "type": one.instance_type.name,
                "rank": one.rank,
                "reason": one.reason,
                "usd_per_hour": one.usd_per_hour,
                "total_usd": {way: total_usd(config, auto, price) for way, price in one.usd_per_hour.items()},
            }
            for one in found
        ],
    }


def _table(config: DeploymentConfig, auto: AutoCapacity, found: list[Candidate]) -> list[str]:
    names: dict[Purchase, str] = {
        "spot": "spot", "on_demand": "on demand", "savings_plan": "savings plan", "reserved": "reserved",
    }  # fmt: skip
    hourly = "".join(f"{names[way] + '/h':>16}" for way in PURCHASES)
    total = "".join(f"{names[way] + ' total':>19}" for way in PURCHASES) if auto.hours else ""
    lines = [f"{'':>3} {'type':<16}{hourly}{total}  reason"]
    for one in found:
        rank = f"{one.rank + 1:>2}." if one.rank is not None else "  -"
        costs = "".join(f"{_money(one.usd_per_hour[way], 4):>16}" for way in PURCHASES)
        if auto.hours:
            costs += "".join(f"{_money(total_usd(config, auto, one.usd_per_hour[way]), 2):>19}" for way in PURCHASES)
        lines.append(f"{rank} {one.instance_type.name:<16}{costs}  {one.reason}")
    return lines


def _money(usd: float | None, digits: int) -> str:
    return "unknown" if usd is None else f"{usd:,.{digits}f}"
