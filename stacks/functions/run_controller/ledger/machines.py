"""The ledger's instances, merged from the reports of several sources, and the charges for one instance.

Linux instances are billed per second while they run, for at least 60 s. Spot Instances are billed at the price in force
at the start of each instance-hour. If EC2 interrupts a Spot Instance within its first hour, the usage is free. If the
user or the instance itself terminates it, the usage is billed. Sources (2026-11):
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/billing-for-interrupted-spot-instances.html,
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-lifecycle.html (states that are billed),
https://aws.amazon.com/ec2/pricing/on-demand/ (the minimum) and https://aws.amazon.com/ec2/faqs/ (the instance-hour).

This module imports only the standard library because it is part of the run controller's Lambda asset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

HOUR = 3600.0
MINIMUM_SECONDS = 60.0
APPEAR_SECONDS = 300.0
"""Age up to which EC2's responses can omit an instance that its fleet has launched, because responses lag behind."""

Market = Literal["", "spot", "on_demand", "prepaid"]
"""The market of an instance. `prepaid`: a capacity block, paid for in advance. Empty: not reported yet."""
MARKETS: tuple[str, ...] = get_args(Market)

Runs = Sequence[tuple[float, str]]
"""The runs of a deployment in order, each with the time at which it became current. The first time is 0."""


@dataclass(frozen=True)
class Sighting:
    """A source's report about one instance. Empty or None: not reported.

    Attributes:
        live_unix_seconds: A time at which the instance was billed.
        gone_unix_seconds: A time at which the instance was no longer billed.
        reclaimed: True if EC2 interrupted the instance.
        is_from_ec2: True for EC2's own description, whose launch time is exact.
        is_absence: True if `gone_unix_seconds` is only the time at which EC2 no longer described the instance.
    """

    instance_id: str
    instance_type: str = ""
    zone: str = ""
    market: Market = ""
    launched_unix_seconds: float | None = None
    live_unix_seconds: float | None = None
    gone_unix_seconds: float | None = None
    reclaimed: bool = False
    is_from_ec2: bool = False
    is_absence: bool = False


@dataclass(frozen=True)
class Charge:
    """The cost of a period of instance usage.

    Attributes:
        usd: The cost.
        on_demand_usd: The cost at On-Demand prices.
        uncertain_seconds: Time for which `usd` is an upper bound, because the price or the type is not known.
        unpriced_seconds: Time that `usd` does not include, because no price is known.
    """

    seconds: float = 0.0
    usd: float = 0.0
    on_demand_usd: float = 0.0
    uncertain_seconds: float = 0.0
    unpriced_seconds: float = 0.0

    def __add__(self, other: Charge) -> Charge:
        """Return the sum."""
        return Charge(
            self.seconds + other.seconds,
            self.usd + other.usd,
            self.on_demand_usd + other.on_demand_usd,
            self.uncertain_seconds + other.uncertain_seconds,
            self.unpriced_seconds + other.unpriced_seconds,
        )


@dataclass(frozen=True)
class Machine:
    """An instance, as reported by the sources.

    Attributes:
        live_unix_seconds: The latest time at which the instance was certainly billed.
        gone_unix_seconds: The earliest known time at which it was no longer billed, or None while it runs.
        reclaimed: True if EC2 interrupted the instance.
        is_end_assumed: True if nothing reported the end, so the time after `live_unix_seconds` is an upper bound.
        spot_usd: Spot price of each instance-hour that is not settled, keyed by the hour's index.
        settled_hours: Number of instance-hours, from the first, whose charges are final.
        settled: The charges of the settled hours, by run.
    """

    instance_id: str
    launched_unix_seconds: float
    live_unix_seconds: float
    instance_type: str = ""
    zone: str = ""
    market: Market = ""
    gone_unix_seconds: float | None = None
    reclaimed: bool = False
    is_end_assumed: bool = False
    spot_usd: Mapping[int, float] = field(default_factory=dict)
    settled_hours: int = 0
    settled: Mapping[str, Charge] = field(default_factory=dict)

    def is_free(self) -> bool:
        """Return True if EC2 interrupted this Spot Instance within its first hour."""
        gone = self.gone_unix_seconds
        return (
            self.market == "spot" and self.reclaimed and gone is not None and gone - self.launched_unix_seconds < HOUR
        )

    def runs_at(self, now_unix_seconds: float) -> bool:
        """Return True if the instance has not ended. An interruption notice announces a later end."""
        return self.gone_unix_seconds is None or self.gone_unix_seconds > now_unix_seconds

    def billed_until(self, now_unix_seconds: float) -> float:
        """Return the end of the billed time, which is the current time for a running instance."""
        if self.runs_at(now_unix_seconds):
            return max(self.launched_unix_seconds, now_unix_seconds)
        assert self.gone_unix_seconds is not None
        return max(self.gone_unix_seconds, self.launched_unix_seconds + MINIMUM_SECONDS)

    def instance_hours(self, now_unix_seconds: float) -> range:
        """Return the indexes of the instance-hours that have started and are not settled."""
        seconds = self.billed_until(now_unix_seconds) - self.launched_unix_seconds
        return range(self.settled_hours, int(seconds // HOUR) + (1 if seconds % HOUR or not seconds else 0))


@dataclass(frozen=True)
class OnDemandPrices:
    """On-Demand prices of a deployment's instance types, in USD per hour."""

    usd_per_hour: Mapping[str, float]

    def of(self, instance_type: str) -> tuple[float | None, bool]:
        """Return a type's price, and True if it is certain. An unknown type has the highest price of all types."""
        known = self.usd_per_hour.get(instance_type)
        if known is not None or instance_type:
            return known, True
        return max(self.usd_per_hour.values(), default=None), False


def merge(machine: Machine | None, seen: Sighting) -> Machine | None:
    """Return a machine updated with one more report, or None if its launch time is still unknown."""
    if machine is None:
        if seen.launched_unix_seconds is None:
            return None
        machine = Machine(seen.instance_id, seen.launched_unix_seconds, seen.launched_unix_seconds)
    is_exact = seen.is_from_ec2 and seen.launched_unix_seconds is not None
    launched = seen.launched_unix_seconds if is_exact else machine.launched_unix_seconds
    assert launched is not None
    live, gone = max(machine.live_unix_seconds, launched), machine.gone_unix_seconds
    is_assumed = machine.is_end_assumed
    if seen.live_unix_seconds is not None:
        live = max(live, seen.live_unix_seconds)
        if gone is not None and gone < live:  # a fleet reported the end of an instance that is still running
            gone = None
    if seen.gone_unix_seconds is not None:
        is_first = gone is None or (is_assumed and not seen.is_absence)
        is_assumed = seen.is_absence if is_first else is_assumed
        gone = max(live, seen.gone_unix_seconds if gone is None else min(gone, seen.gone_unix_seconds))
    return replace(
        machine,
        launched_unix_seconds=launched,
        live_unix_seconds=live,
        instance_type=seen.instance_type or machine.instance_type,
        zone=seen.zone or machine.zone,
        market=seen.market or machine.market,
        gone_unix_seconds=gone,
        reclaimed=machine.reclaimed or seen.reclaimed,
        is_end_assumed=is_assumed and gone is not None,
    )


def charges(
    machine: Machine,
    runs: Runs,
    prices: OnDemandPrices,
    now_unix_seconds: float,
    start: float = 0.0,
    end: float = float("inf"),
) -> dict[str, Charge]:
    """Return the charges between two times by run, excluding the settled hours."""
    found: dict[str, Charge] = {}
    for number in machine.instance_hours(now_unix_seconds):
        opens = machine.launched_unix_seconds + number * HOUR
        closes = min(opens + HOUR, machine.billed_until(now_unix_seconds))
        parts = [(max(opens, start), min(closes, end), False)]
        if machine.is_end_assumed:
            (first, last, _), live = parts[0], machine.live_unix_seconds
            parts = [(first, min(last, live), False), (max(first, live), last, True)]
        for first, last, is_assumed in parts:
            for run, seconds in by_run(runs, first, last):
                found[run] = found.get(run, Charge()) + _charge(machine, number, seconds, prices, is_assumed)
    return found


def _charge(machine: Machine, number: int, seconds: float, prices: OnDemandPrices, is_assumed: bool) -> Charge:
    on_demand, is_certain = prices.of(machine.instance_type)
    price = on_demand
    if machine.is_free() or machine.market == "prepaid":
        price, is_certain = 0.0, True
    elif machine.market == "spot":
        price = machine.spot_usd.get(number, on_demand)
        is_certain = number in machine.spot_usd
    elif machine.market == "":
        is_certain = False
    hours = seconds / HOUR
    return Charge(
        seconds=seconds,
        usd=0.0 if price is None else price * hours,
        on_demand_usd=0.0 if on_demand is None else on_demand * hours,
        uncertain_seconds=0.0 if price is None or (is_certain and not is_assumed) else seconds,
        unpriced_seconds=seconds if price is None else 0.0,
    )


def by_run(runs: Runs, start: float, end: float) -> Iterator[tuple[str, float]]:
    """Yield each run that was current between two times, with its number of seconds. An empty name means no run."""
    for index, (since, run) in enumerate(runs):
        until = runs[index + 1][0] if index + 1 < len(runs) else end
        seconds = min(end, until) - max(start, since)
        if seconds > 0:
            yield run, seconds


def total(parts: Iterable[Mapping[str, Charge]]) -> dict[str, Charge]:
    """Return the sums by run."""
    found: dict[str, Charge] = {}
    for part in parts:
        for run, charge in part.items():
            found[run] = found.get(run, Charge()) + charge
    return found
