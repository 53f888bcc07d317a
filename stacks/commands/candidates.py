"""`candidates`: which types fit what the work needs, why, and what they cost by each way to pay."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from stacks.config import DeploymentConfig, read
from stacks.config.capacity import AutoCapacity
from stacks.errors import ConfigError, Problem
from stacks.instance_types import PURCHASES, Purchase, catalogue
from stacks.selection import Candidate, candidates, needs_of


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "candidates",
        help="print which types fit capacity.auto, why, and what they cost",
        description="Prints every type of the region, those that are taken first, with the reason for each and what it "
        "costs: spot, on demand, 1-year Savings Plan, 1-year reservation. Total: nodes x capacity.auto.hours.",
    )
    parser.add_argument("config", type=Path, help="deployment file with capacity.auto")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the candidates; return 0, or 2 when none fits."""
    config = read(options.config)
    auto = config.capacity.auto
    if auto is None:
        rule = "is left out, so the types are those that are listed"
        remedy = "say what the work needs, such as `auto: {gpus: 1, parameters_million: 124}`"
        raise ConfigError(str(options.config), [Problem("capacity.auto", None, rule, remedy)])
    if config.region not in catalogue().regions:
        remedy = f"`python -m stacks catalogue refresh --regions {config.region}`"
        problem = Problem("region", config.region, "the catalogue has no types of it", remedy)
        raise ConfigError(str(options.config), [problem])
    needs = needs_of(config, auto)
    found = candidates(needs, config.region)
    if options.json:
        print(json.dumps(_document(config, auto, found), indent=2))
    else:
        memory = f"{needs.gib_of_a_gpu:.1f} GiB each ({needs.why_gpu_memory})" if needs.gpus else needs.why_gpu_memory
        print(f"{config.region}, {needs.gpus} GPUs a machine, {memory}; prices in USD, dated as `catalogue` tells")
        print("\n".join(_table(config, auto, found)))
    if any(one.taken for one in found):
        return 0
    print("no type fits", file=sys.stderr)
    return 2


def total_usd(config: DeploymentConfig, auto: AutoCapacity, usd_per_hour: float | None) -> float | None:
    """Return the cost of the planned hours on all nodes; None when hours or price are unknown."""
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
                "place": one.place,
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
    total = "".join(f"{names[way] + ' all':>17}" for way in PURCHASES) if auto.hours else ""
    lines = [f"{'':>3} {'type':<16}{hourly}{total}  why"]
    for one in found:
        place = f"{one.place + 1:>2}." if one.place is not None else "  -"
        costs = "".join(f"{_money(one.usd_per_hour[way], 4):>16}" for way in PURCHASES)
        if auto.hours:
            costs += "".join(f"{_money(total_usd(config, auto, one.usd_per_hour[way]), 2):>17}" for way in PURCHASES)
        lines.append(f"{place} {one.instance_type.name:<16}{costs}  {one.reason}")
    return lines


def _money(usd: float | None, digits: int) -> str:
    return "unknown" if usd is None else f"{usd:,.{digits}f}"
