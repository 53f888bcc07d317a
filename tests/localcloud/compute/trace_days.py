"""Plays traces of spot capacity and prices, in the format of `python -m localcloud capacity`, on a controlled run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from localcloud.compute.capacity_trace import Change, Trace, changes, read_trace
from tests.localcloud.compute.controlled_run import HOUR, ON_DEMAND_USD, ControlledRun

GAP_SECONDS = 300
Hours = Callable[[float], tuple[bool, float]]
"""Returns whether a zone has capacity, and its price in USD per hour, at a number of hours since the start."""


def written(folder: Path, zones: dict[str, Hours], hours: float) -> list[Change]:
    """Write a trace file for each zone, and return the changes that the files contain."""
    for zone, at in zones.items():
        states = [at(tick * GAP_SECONDS / HOUR) for tick in range(int(hours * HOUR / GAP_SECONDS))]
        data, prices = [int(not available) for available, _ in states], [usd for _, usd in states]
        trace = {"metadata": {"gap_seconds": GAP_SECONDS}, "data": data, "prices": prices}
        (folder / f"{zone}.json").write_text(json.dumps(trace))
    return changes([read_trace(folder / f"{zone}.json") for zone in zones])


def recorded(folder: Path, zones: Sequence[str], hours: float, on_demand_usd: float) -> tuple[str, list[Change]]:
    """Return the name and the changes of the recorded day with the least capacity in one region.

    Args:
        folder: Folder with one folder per zone, each with the same windows as files.
        zones: The zones that replace the recorded ones.
        hours: Time from the start of each window to read.
        on_demand_usd: The On-Demand price of the recorded instance type. The prices are scaled to the emulated type.
    """
    days: dict[tuple[str, str], list[Trace]] = {}
    for path in sorted(folder.rglob("*.json")):
        trace = read_trace(path)
        ticks = int(hours * HOUR / trace.gap_seconds)
        scaled = tuple(round(usd * ON_DEMAND_USD / on_demand_usd, 5) for usd in trace.usd_per_hour[:ticks])
        shortened = replace(trace, is_available=trace.is_available[:ticks], usd_per_hour=scaled)
        days.setdefault((trace.zone[:-1], path.stem), []).append(shortened)
    usable = {day: traces for day, traces in days.items() if len(traces) >= len(zones)}
    assert usable, f"{folder}: no region with {len(zones)} zones"

    def capacity(day: tuple[str, str]) -> float:
        return sum(sum(trace.is_available) for trace in usable[day]) / len(usable[day])

    worst = min(sorted(usable), key=capacity)
    chosen = sorted(usable[worst], key=lambda trace: -sum(trace.is_available))[: len(zones)]
    found = changes([replace(trace, zone=zone) for trace, zone in zip(chosen, zones, strict=True)])
    shares = ", ".join(f"{sum(trace.is_available) / len(trace.is_available):.0%}" for trace in chosen)
    return f"window {worst[1]} of {worst[0]}, capacity in {shares} of the time", found


def play(run: ControlledRun, found: Sequence[Change]) -> Callable[[], None]:
    """Return a function that applies the changes of a trace up to the run's time."""
    left = list(found)

    def apply() -> None:
        while left and left[0].trace_seconds <= run.hours * HOUR + run.plan.tick_seconds / 2:
            change = left.pop(0)
            assert change.usd_per_hour is not None
            run.set_zone(change.zone, is_available=change.is_available, usd_per_hour=change.usd_per_hour)

    return apply


def run_through(run: ControlledRun, found: Sequence[Change], hours: float) -> None:
    """Take control steps until the run has ended, its fleet is empty, and the ledger contains the last end.

    Args:
        hours: Time after which the run is abandoned.
    """
    apply = play(run, found)
    while run.finished_at is None and run.hours < hours:
        apply()
        run.tick(run.step)
    for _ in range(30):
        run.tick(run.step)
        if not run.instances() and run.lines[-1]["nodes"] == 0:
            break
    run.tick(run.step)
