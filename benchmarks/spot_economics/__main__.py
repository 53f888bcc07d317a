"""Replay recorded spot capacity and prices, and compare the cost of a run under several policies.

Each window is replayed in all zones together, in each region, and in each zone. With several regions, it is also
replayed with copies: a move to another region waits for the checkpoint, and its price includes the transfer of the
checkpoint and, once per region, of the dataset. The cost is compared with the least cost in hindsight, without copies,
which dynamic programming bounds on both sides. Exits with 1 if a requirement is not met.

Limitations: in all zones together, a move to another region costs a restart, but no transfer. All policies know the
remaining training time and the restart time exactly. On-Demand Instances are always available. One instance represents
all nodes. Each tick's capacity is that of a launch probe. The traces cover V100 instances in spring 2023.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean

from benchmarks.spot_economics.adversary import PRICE_RATIOS, Worst, worst_ratios
from benchmarks.spot_economics.baselines import ListOrder, OnDemand, UniformProgress
from benchmarks.spot_economics.decision import measure
from benchmarks.spot_economics.omniscient import Bounds, least_cost
from benchmarks.spot_economics.plot import bar_chart
from benchmarks.spot_economics.results import ALL_REGIONS, ALL_ZONES, Group, Result, requirements
from stacks.capacity.simulation.controller import Controller, Randomised
from stacks.capacity.simulation.market import Conditions, Policy, replay
from stacks.capacity.simulation.windows import Window, WindowError, read_windows
from stacks.functions.run_controller.placement import NO_TRANSFER, Transfer


def policies() -> dict[str, Policy]:
    """Return new policies by name."""
    return {
        "on demand": OnDemand(),
        "list order": ListOrder(),
        "uniform progress": UniformProgress(),
        "eager failover": UniformProgress("eager"),
        "controller": Controller(),
        "randomized": Randomised(),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay the windows, print and write the results, and return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        windows = read_windows(options.traces)[:: options.every]
    except WindowError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    conditions = Conditions(
        options.work_hours, options.deadline_hours, options.restart_minutes / 60.0, options.on_demand_usd
    )
    print(f"{len(windows)} windows; {conditions}")
    bounds = [least_cost(window, conditions) for window in windows]
    groups = [
        _group(name, [window.only(prefix) for window in windows], conditions, None if prefix else bounds)
        for name, prefix in _groups(windows, options.zones)
    ]
    groups += _groups_with_copies(windows, replace(conditions, transfer=_transfer(options)), bounds)
    adversarial = [worst for price_ratio in PRICE_RATIOS for worst in worst_ratios(price_ratio)]
    _print_adversarial(adversarial)
    _print_comparison(groups)
    decision = measure()
    found = requirements(groups, adversarial, decision)
    print("\nrequirements:")
    for each in found:
        print(each.line())
    failures = [each.name for each in found if not each.is_met]
    print(f"{len(failures)} requirements not met" if failures else "all requirements met")
    document = {
        "windows": len(windows),
        "conditions": asdict(conditions),
        "groups": [asdict(group) for group in groups],
        "adversarial": [asdict(worst) for worst in adversarial],
        "decision": asdict(decision),
        "requirements": [asdict(each) for each in found],
        "unmet": failures,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(document, indent=2) + "\n")
    charted = [(group.name, {each.policy: each.ratio for each in group.results}) for group in groups]
    title = f"Mean cost over the least cost in hindsight, {len(windows)} windows"
    options.output.with_suffix(".svg").write_text(bar_chart(charted, title))
    print(f"written: {options.output} and {options.output.with_suffix('.svg')}\n\n{_limitations()}")
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spot_economics",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("traces", type=Path, help="folder with one folder per zone, named <zone>_<type>")
    parser.add_argument("--work-hours", type=float, default=48.0, help="training time (default 48)")
    parser.add_argument("--deadline-hours", type=float, default=60.0, help="time to the deadline (default 60)")
    parser.add_argument("--restart-minutes", type=float, default=12.0, help="launch to first step (default 12)")
    parser.add_argument("--on-demand-usd", type=float, default=3.06, help="On-Demand price per hour (default 3.06)")
    parser.add_argument("--checkpoint-gb", type=float, default=10.0, help="size of a checkpoint (default 10)")
    parser.add_argument("--dataset-gb", type=float, default=100.0, help="size of the dataset (default 100)")
    parser.add_argument(
        "--transfer-usd-per-gb", type=float, default=0.02, help="price of a transfer to another region (default 0.02)"
    )
    parser.add_argument(
        "--copy-gb-per-second", type=float, default=0.5, help="speed of a copy to another region (default 0.5)"
    )
    parser.add_argument("--every", type=int, default=1, help="replay only every Nth window (default 1)")
    parser.add_argument("--no-zones", dest="zones", action="store_false", help="omit the groups of a single zone")
    parser.add_argument("--output", type=Path, default=Path("build/bench/spot.json"), help="path of the JSON report")
    return parser


def _groups(windows: Sequence[Window], with_zones: bool) -> list[tuple[str, str]]:
    """Return the name and the prefix of each group of zones."""
    zones = windows[0].zones
    found = [(ALL_ZONES, "")] + [(region, region) for region in sorted({zone.region for zone in zones})]
    return found + ([(zone.name, zone.name) for zone in zones] if with_zones else [])


def _transfer(options: argparse.Namespace) -> Transfer:
    """Return the cost of a move to another region.

    The default price is that of most pairs of regions. Source (2026-11): https://aws.amazon.com/s3/pricing/, section
    "Data transfer".
    """
    return Transfer(
        hours=options.checkpoint_gb / options.copy_gb_per_second / 3600.0,
        usd=options.checkpoint_gb * options.transfer_usd_per_gb,
        once_usd=options.dataset_gb * options.transfer_usd_per_gb,
    )


def _groups_with_copies(
    windows: Sequence[Window], conditions: Conditions, bounds: Sequence[Bounds] | None = None
) -> list[Group]:
    """Return the results in all regions and, with three or more, without each one of them. `bounds`: as in `_group`."""
    regions = sorted({zone.region for zone in windows[0].zones})
    if len(regions) < 2:
        return []
    found = [_group(ALL_REGIONS, windows, conditions, bounds)]
    for region in regions if len(regions) > 2 else ():
        others = [window.without(region) for window in windows]
        found.append(_group(f"without {region}, with copies", others, conditions))
    return found


def _group(
    name: str, chosen: Sequence[Window], conditions: Conditions, bounds: Sequence[Bounds] | None = None
) -> Group:
    """Return the results in these windows. `bounds`: those of the least cost in each window, if they are known."""
    bounds = bounds or [least_cost(window, conditions) for window in chosen]
    least = Bounds(mean(each.lower_usd for each in bounds), mean(each.upper_usd for each in bounds))
    replayed = {
        policy_name: [replay(policy, window, conditions) for window in chosen]
        for policy_name, policy in policies().items()
    }
    bought = replayed["on demand"]
    results = []
    for policy_name, outcomes in replayed.items():
        costs = [each.usd for each in outcomes]
        results.append(
            Result(
                policy=policy_name,
                mean_usd=mean(costs),
                worst_usd=max(costs),
                ratio=mean(costs) / least.lower_usd,
                worst_ratio=max(cost / each.lower_usd for cost, each in zip(costs, bounds, strict=True)),
                missed=sum(not each.met_deadline for each in outcomes),
                avoidable=sum(
                    other.met_deadline and not each.met_deadline for each, other in zip(outcomes, bought, strict=True)
                ),
                on_demand_hours=mean(each.on_demand_hours for each in outcomes),
                spot_hours=mean(each.spot_hours for each in outcomes),
                starts=mean(each.starts for each in outcomes),
                transfers=mean(each.transfers for each in outcomes),
                transfer_usd=mean(each.transfer_usd for each in outcomes),
            )
        )
    group = Group(name, least, tuple(results), copies=conditions.transfer != NO_TRANSFER)
    _print_group(group)
    return group


def _print_group(group: Group) -> None:
    least = group.least
    print(f"\n{group.name}: least cost in hindsight {least.lower_usd:.2f} to {least.upper_usd:.2f} USD")
    print(f"  {'policy':18}{'mean USD':>9}{'ratio':>7}{'max USD':>9}{'max ratio':>10}{'missed':>7}", end="")
    print(f"{'on demand h':>12}{'spot h':>8}{'starts':>7}", end="")
    print(f"{'moves':>7}{'move USD':>10}" if group.copies else "")
    for each in group.results:
        print(
            f"  {each.policy:18}{each.mean_usd:9.2f}{each.ratio:7.3f}{each.worst_usd:9.2f}{each.worst_ratio:10.3f}"
            f"{each.missed:7d}{each.on_demand_hours:12.2f}{each.spot_hours:8.2f}{each.starts:7.1f}",
            end="",
        )
        print(f"{each.transfers:7.1f}{each.transfer_usd:10.2f}" if group.copies else "")


def _print_comparison(groups: Sequence[Group]) -> None:
    """Print the controller's mean and worst cost relative to those of the other policies."""
    print("\ncost of the controller over that of another policy, mean and worst window:")
    for group in groups:
        own = group.of("controller")
        others = [
            f"{each.policy} {own.mean_usd / each.mean_usd:.3f} {own.worst_usd / each.worst_usd:.3f}"
            for each in group.results
            if each is not own
        ]
        print(f"  {group.name:12} {'; '.join(others)}")


def _print_adversarial(adversarial: Sequence[Worst]) -> None:
    print("\nadversarial patterns of capacity, deadline at the limit of the warm-up, no restart time:")
    for worst in adversarial:
        bound = "no bound" if worst.bound is None else f"bound {worst.bound:.3f}"
        print(f"  K = {worst.price_ratio:g}  {worst.policy:28} largest ratio {worst.ratio:.3f}, {bound}")


def _limitations() -> str:
    return (__doc__ or "").partition("Limitations: ")[2].strip()


if __name__ == "__main__":
    sys.exit(main())
