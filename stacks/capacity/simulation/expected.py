"""Estimates the cost and the end of a run before its deploy, by replaying it in many markets.

The markets are recorded traces, or random ones: each zone has capacity for exponentially distributed times, with the
interruption rate and the availability that the catalogue has for the instance types. All decisions are those of the
run controller's function. One instance stands for the gang, which any of its nodes can interrupt.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stacks.capacity.catalogue import catalogue
from stacks.capacity.plan import is_spot, zone_candidates
from stacks.capacity.simulation.controller import Controller, SpotOnly
from stacks.capacity.simulation.market import Conditions, Outcome, replay
from stacks.capacity.simulation.spread import Spread
from stacks.capacity.simulation.windows import Window, Zone, read_windows
from stacks.capacity.training_time import TrainingTime
from stacks.config import DeploymentConfig
from stacks.functions.run_controller.deadlines.goals import RESTART_HOURS

ASSUMED_LIFE_HOURS = 3.3
ASSUMED_OUTAGE_HOURS = 1.9
"""Mean times with and without capacity for one V100 instance in nine zones in spring 2023. Source: the availability
traces of https://github.com/skypilot-org/spot-traces, used by "Can't Be Late", NSDI 2024."""
MAX_MONTHLY_SHARE = 0.5
"""Assumed share of interrupted instances for the highest range of the Spot Instance Advisor, which has no upper end."""
MONTH_HOURS = 730.0
TICKS_OF_WORK = 200
SHORTEST_TICK_HOURS = 1.0 / 6.0
RUNS = 200


class NotEstimable(Exception):
    """The cost of a run cannot be estimated; the message contains the reason and a remedy."""


@dataclass(frozen=True)
class Expected:
    """The expected course of a run.

    Attributes:
        usd: Cost of the nodes.
        hours: Time from the first request to the end. A run that does not end counts with the simulated time.
        each_usd: The cost of each run, for a plot.
        each_hours: The duration of each run, for a plot.
        on_demand_share: Mean share of the billed time that is on demand.
        starts: Mean number of launches of the gang.
        missed: Share of the runs that end after the deadline, or not at all.
        on_demand_usd: Cost of the run on demand, without interruptions; None if the price is unknown.
        training_hours: Training time on which the estimate is based.
        assumptions: The inputs of the estimate, as sentences.
    """

    usd: Spread
    hours: Spread
    each_usd: tuple[float, ...]
    each_hours: tuple[float, ...]
    on_demand_share: float
    starts: float
    missed: float
    on_demand_usd: float | None
    training_hours: float
    assumptions: tuple[str, ...]


@dataclass(frozen=True)
class Pool:
    """The market of a deployment's instance types in one zone: the gang's price, availability and mean lifetime.

    `price_range` contains the lowest and the highest price as a factor of `usd_per_hour`.
    """

    zone: str
    usd_per_hour: float
    availability: float
    life_hours: float
    price_range: tuple[float, float] = (1.0, 1.0)


def expected(
    config: DeploymentConfig, time: TrainingTime, *, traces: Path | None = None, runs: int = RUNS, seed: int = 1
) -> Expected:
    """Return the expected cost and duration of a deployment's run.

    Args:
        config: The deployment.
        time: The training time without interruptions.
        traces: Folder with recorded windows, as `stacks.capacity.simulation.windows` describes, or None.
        runs: Number of random markets. With traces, the number of runs is that of the windows.
        seed: Seed of the random markets.

    Raises:
        NotEstimable: A price is unknown, or the market has no hourly price.
        stacks.capacity.simulation.windows.WindowError: A trace is invalid.
    """
    nodes, notes = config.capacity.nodes, [f"{time.hours:.2f} h of training: {time.source}"]
    bought = _price(config, "on_demand") * nodes
    if not is_spot(config):
        if config.capacity.market not in ("on_demand", "reserved"):
            raise NotEstimable(f"capacity.market: {config.capacity.market}: has no known hourly price")
        hours = time.hours + RESTART_HOURS
        notes.append("no interruptions, at the On-Demand price")
        return _summary([Outcome(bought * hours, hours, True, hours, 0.0, 1)], config, time, bought, notes)
    limits = config.limits
    buys = limits.deadline_hours is not None and limits.on_deadline_miss == "on_demand"
    horizon = max(limits.deadline_hours or 0.0, 3.0 * time.hours + 48.0)
    if limits.deadline_hours is not None and limits.on_deadline_miss == "stop":
        horizon = limits.deadline_hours
        notes.append("a run that misses its deadline stops there")
    conditions = Conditions(time.hours, limits.deadline_hours or horizon, RESTART_HOURS, bought)
    base = min(config.capacity.on_demand_base, nodes)
    spot = _price(config, "spot") * (nodes - base) + _price(config, "on_demand") * base
    if traces is None:
        gap = max(SHORTEST_TICK_HOURS, time.hours / TICKS_OF_WORK)
        pools, more = _pools(config, spot)
        notes += more
        draw = random.Random(seed)  # noqa: S311 - reproducible markets, not a secret
        windows = [_random_window(pools, horizon, gap, draw) for _ in range(runs)]
    else:
        windows = [_lengthened(_scaled(window, spot), horizon) for window in _of_region(read_windows(traces), config)]
        notes.append(f"capacity and relative prices of {len(windows)} windows in {traces}, for one instance")
    policy = (Controller if buys else SpotOnly)(config.capacity.choose)
    outcomes = [replay(policy, window, conditions) for window in windows]
    notes.append(f"{RESTART_HOURS:g} h per restart")
    if not buys:
        notes.append("no nodes are bought on demand, except for capacity.on_demand_base")
    return _summary(outcomes, config, time, bought, notes)


def _price(config: DeploymentConfig, purchase: str) -> float:
    """Return the price of the cheapest type (spot), or of the first one, which a fleet buys first (on demand)."""
    types = config.capacity.instance_types
    prices = [
        catalogue().usd_per_hour(config.region, name, "spot" if purchase == "spot" else "on_demand") for name in types
    ]
    known = [price for price in prices if price is not None]
    if not known or (purchase != "spot" and prices[0] is None):
        raise NotEstimable(
            f"the {purchase.replace('_', '-')} price of {', '.join(types)} in {config.region} is unknown; run "
            f"`python -m stacks catalogue refresh --regions {config.region}`"
        )
    return min(known) if purchase == "spot" else known[0]


def _pools(config: DeploymentConfig, usd_per_hour: float) -> tuple[list[Pool], list[str]]:
    """Return the gang's market in each zone, and the assumptions behind it."""
    nodes = max(1, config.capacity.nodes - config.capacity.on_demand_base)
    known, types = catalogue().regions.get(config.region), config.capacity.instance_types
    life, notes = ASSUMED_LIFE_HOURS, []
    shares = [] if known is None else [known.interruptions.types[n] for n in types if n in known.interruptions.types]
    if shares:
        monthly = min(MAX_MONTHLY_SHARE, max(share.high for share in shares) / 100.0)
        life = -MONTH_HOURS / math.log1p(-monthly)
        notes.append(f"{monthly:.0%} of the nodes are interrupted per month, the highest figure for these types")
    availability = life / (life + ASSUMED_OUTAGE_HOURS)
    if not shares:
        notes.append(
            f"assumed: {life:g} h between interruptions of a node, as in V100 traces of 2023; `catalogue refresh` "
            "reads the figures for these types"
        )
    notes.append(f"assumed: {ASSUMED_OUTAGE_HOURS:g} h without capacity after an interruption, as in these traces")
    low = high = 1.0
    ranges = [] if known is None else [known.spot_prices.types[n] for n in types if n in known.spot_prices.types]
    if ranges:
        cheapest = min(ranges, key=lambda each: each.mean)
        low, high = cheapest.low / cheapest.mean, cheapest.high / cheapest.mean
        notes.append(f"spot prices from {low:.0%} to {high:.0%} of the mean, as in the last 90 days")
    zones = [f"{config.region}{letter}" for letter in zone_candidates(config)]
    return [Pool(zone, usd_per_hour, availability, life / nodes, (low, high)) for zone in zones], notes


def _random_window(pools: Sequence[Pool], hours: float, gap_hours: float, draw: random.Random) -> Window:
    """Return a window in which each zone has capacity, or none, for exponentially distributed times."""
    ticks = math.ceil(hours / gap_hours)
    return Window("random", gap_hours, tuple(_random_zone(pool, ticks, gap_hours, draw) for pool in pools))


def _random_zone(pool: Pool, ticks: int, gap_hours: float, draw: random.Random) -> Zone:
    share = min(1.0, max(1e-3, pool.availability))
    outage = pool.life_hours * (1.0 - share) / share
    ends = -math.expm1(-gap_hours / pool.life_hours)
    returns = 1.0 if outage <= 0.0 else -math.expm1(-gap_hours / outage)
    is_up, course = draw.random() < share, []
    for _ in range(ticks):
        course.append(is_up)
        is_up = draw.random() >= ends if is_up else draw.random() < returns
    usd_per_hour = pool.usd_per_hour * draw.uniform(*pool.price_range)
    return Zone(pool.zone, pool.zone[:-1], tuple(course), (usd_per_hour,) * ticks)


def _of_region(windows: Sequence[Window], config: DeploymentConfig) -> list[Window]:
    """Return the windows with the zones of the deployment's region, or with all zones if none is in the region."""
    own = [window.only(config.region) for window in windows]
    return own if own[0].zones else list(windows)


def _scaled(window: Window, usd_per_hour: float) -> Window:
    """Return the window with its prices scaled, so that their mean is the catalogue's price of the gang."""
    mean = statistics.fmean(price for zone in window.zones for price in zone.usd_per_hour)
    zones = tuple(
        replace(zone, usd_per_hour=tuple(price * usd_per_hour / mean for price in zone.usd_per_hour))
        for zone in window.zones
    )
    return replace(window, zones=zones)


def _lengthened(window: Window, hours: float) -> Window:
    """Return the window repeated until it covers the given time."""
    times = math.ceil(hours / (window.ticks * window.gap_hours))
    zones = tuple(
        replace(zone, is_available=zone.is_available * times, usd_per_hour=zone.usd_per_hour * times)
        for zone in window.zones
    )
    return replace(window, zones=zones)


def _summary(
    outcomes: Sequence[Outcome], config: DeploymentConfig, time: TrainingTime, bought: float, notes: Sequence[str]
) -> Expected:
    deadline = config.limits.deadline_hours
    billed = sum(each.on_demand_hours + each.spot_hours for each in outcomes)
    return Expected(
        usd=Spread.of([each.usd for each in outcomes]),
        hours=Spread.of([each.end_hours for each in outcomes]),
        each_usd=tuple(each.usd for each in outcomes),
        each_hours=tuple(each.end_hours for each in outcomes),
        on_demand_share=sum(each.on_demand_hours for each in outcomes) / billed if billed else 0.0,
        starts=statistics.fmean(each.starts for each in outcomes),
        missed=0.0 if deadline is None else statistics.fmean(not each.met_deadline for each in outcomes),
        on_demand_usd=bought * (time.hours + RESTART_HOURS),
        training_hours=time.hours,
        assumptions=tuple(notes),
    )
