"""The ledger's state between control steps, and the hourly charges derived from it.

A step adds the sources' reports (`look`), adds the missing spot prices (`priced`), derives the rows for the hours that
have changed (`changed_hours`), and then settles old charges (`settled`). Every function is pure and depends only on its
arguments. A step that fails before its state is stored is therefore repeated by the next one, for the same hours.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .machines import (
    APPEAR_SECONDS,
    HOUR,
    Charge,
    Machine,
    OnDemandPrices,
    Runs,
    Sighting,
    by_run,
    charges,
    merge,
    total,
)

KEPT_SECONDS = 72 * HOUR
"""Age up to which ended instances are kept, so that repeated reports are recognized. Fleets report the last 48 hours.
Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeFleetHistory.html"""
REOPENED_SECONDS = 2 * HOUR
"""Age up to which hours can still change: an interruption within the first hour makes the earlier hour free."""

Pool = tuple[str, str]
"""An instance type and a zone."""


@dataclass(frozen=True)
class Books:
    """The ledger's state.

    Attributes:
        looked_unix_seconds: Time of the latest step, or None before the first.
        machines: Running instances, and those that ended in the last KEPT_SECONDS.
        runs: The runs of the deployment, as far back as the oldest machine.
        past: The charges of machines that are no longer kept, by run.
        run_seconds: Time for which each run had at least one instance.
    """

    looked_unix_seconds: float | None = None
    machines: tuple[Machine, ...] = ()
    runs: Runs = ()
    past: Mapping[str, Charge] = field(default_factory=dict)
    run_seconds: Mapping[str, float] = field(default_factory=dict)

    def totals(self, prices: OnDemandPrices, now_unix_seconds: float) -> dict[str, Charge]:
        """Return the total charges of each run so far."""
        current = (charges(machine, self.runs, prices, now_unix_seconds) for machine in self.machines)
        return total([self.past, *(machine.settled for machine in self.machines), *current])

    def running(self, now_unix_seconds: float) -> tuple[Machine, ...]:
        """Return the instances that have not ended."""
        return tuple(machine for machine in self.machines if machine.runs_at(now_unix_seconds))

    def usd_per_hour(self, prices: OnDemandPrices, now_unix_seconds: float) -> float:
        """Return the current hourly cost of the running instances, except instances without a price."""
        usd = 0.0
        for machine in self.running(now_unix_seconds):
            on_demand, _ = prices.of(machine.instance_type)
            price = 0.0 if machine.market == "prepaid" else on_demand
            if machine.market == "spot":
                price = machine.spot_usd.get(int((now_unix_seconds - machine.launched_unix_seconds) // HOUR), on_demand)
            usd += price or 0.0
        return usd


def look(
    books: Books, sightings: Iterable[Sighting], described: Collection[str], run: str, now_unix_seconds: float
) -> Books:
    """Return the books updated with the reports of all sources.

    Args:
        sightings: The reports of all sources.
        described: The instances in EC2's description, which is complete.
        run: Name of the current run, or empty.
    """
    machines = {machine.instance_id: machine for machine in books.machines}
    for seen in sorted(sightings, key=lambda one: one.is_from_ec2):
        merged = merge(machines.get(seen.instance_id), seen)
        if merged is not None and _is_new_enough(books, merged):
            machines[seen.instance_id] = merged
    for name, machine in machines.items():
        is_settled_in = now_unix_seconds - machine.launched_unix_seconds > APPEAR_SECONDS
        if machine.gone_unix_seconds is None and name not in described and is_settled_in:
            # EC2 describes a terminated instance for an hour. After that, the end is only known to precede this update.
            machines[name] = (
                merge(machine, Sighting(name, gone_unix_seconds=now_unix_seconds, is_absence=True)) or machine
            )
    runs = list(books.runs) or [(0.0, run)]
    if runs[-1][1] != run:
        runs.append((now_unix_seconds, run))
    ordered = sorted(machines.values(), key=lambda one: (one.launched_unix_seconds, one.instance_id))
    seconds = _run_seconds(books, ordered, runs, now_unix_seconds)
    return replace(
        books, looked_unix_seconds=now_unix_seconds, machines=tuple(ordered), runs=tuple(runs), run_seconds=seconds
    )


def _is_new_enough(books: Books, machine: Machine) -> bool:
    """Return False for a report about a machine that ended so long ago that `past` may contain it."""
    if any(known.instance_id == machine.instance_id for known in books.machines):
        return True
    looked, gone = books.looked_unix_seconds, machine.gone_unix_seconds
    return looked is None or gone is None or gone > looked - KEPT_SECONDS


def _run_seconds(books: Books, machines: Sequence[Machine], runs: Runs, now_unix_seconds: float) -> dict[str, float]:
    """Add the time since the last update during which at least one instance ran, by run."""
    found = dict(books.run_seconds)
    position = books.looked_unix_seconds if books.looked_unix_seconds is not None else 0.0
    for machine in machines:  # in launch order
        start, end = max(position, machine.launched_unix_seconds), machine.billed_until(now_unix_seconds)
        for run, seconds in by_run(runs, start, end):
            found[run] = found.get(run, 0.0) + seconds
        position = max(position, end)
    return found


def unpriced_hours(books: Books, now_unix_seconds: float) -> dict[Pool, float]:
    """Return the pools whose spot price is missing for an instance-hour, with the start of the earliest such hour."""
    found: dict[Pool, float] = {}
    for machine in books.machines:
        if machine.market == "spot" and machine.instance_type and machine.zone:
            pool = (machine.instance_type, machine.zone)
            for number in machine.instance_hours(now_unix_seconds):
                if number not in machine.spot_usd:
                    opens = machine.launched_unix_seconds + number * HOUR
                    found[pool] = min(found.get(pool, opens), opens)
    return found


def priced(books: Books, history: Mapping[Pool, Sequence[tuple[float, float]]], now_unix_seconds: float) -> Books:
    """Return the books with the spot prices that were in force at the start of each instance-hour.

    Args:
        history: For each pool, the times of price changes and the new prices in USD per hour, in chronological order.
    """
    machines = []
    for machine in books.machines:
        changes = history.get((machine.instance_type, machine.zone), ()) if machine.market == "spot" else ()
        known = dict(machine.spot_usd)
        for number in machine.instance_hours(now_unix_seconds) if changes else ():
            opens = machine.launched_unix_seconds + number * HOUR
            position = bisect_right([since for since, _ in changes], opens) - 1
            if number not in known and position >= 0:
                known[number] = changes[position][1]
        machines.append(replace(machine, spot_usd=known))
    return replace(books, machines=tuple(machines))


@dataclass(frozen=True)
class Row:
    """A machine's charges within one clock hour, by run."""

    machine: Machine
    charges: Mapping[str, Charge]


def rows(books: Books, prices: OnDemandPrices, hour: int, now_unix_seconds: float) -> tuple[Row, ...]:
    """Return the rows for the clock hour that starts at the given Unix time in seconds."""
    found = (
        Row(machine, charges(machine, books.runs, prices, now_unix_seconds, hour, hour + HOUR))
        for machine in books.machines
    )
    return tuple(row for row in found if row.charges)


def changed_hours(
    before: Books, after: Books, prices: OnDemandPrices, now_unix_seconds: float
) -> Iterator[tuple[int, tuple[Row, ...]]]:
    """Yield the clock hours whose rows have changed since the last update, with their new rows."""
    looked = before.looked_unix_seconds
    oldest = min((machine.launched_unix_seconds for machine in after.machines), default=now_unix_seconds)
    first = oldest if looked is None else max(looked - REOPENED_SECONDS, 0.0)
    for hour in range(clock_hour(first), clock_hour(now_unix_seconds) + 1, int(HOUR)):
        old = () if looked is None else rows(before, prices, hour, looked)
        new = rows(after, prices, hour, now_unix_seconds)
        if old != new:
            yield hour, new


def settled(books: Books, prices: OnDemandPrices) -> Books:
    """Return the books without details that can no longer change: old instance-hours, ended machines and past runs."""
    looked = books.looked_unix_seconds
    if looked is None:
        return books
    kept: list[Machine] = []
    past: list[Mapping[str, Charge]] = [books.past]
    for machine in books.machines:
        if machine.gone_unix_seconds is not None and machine.gone_unix_seconds < looked - KEPT_SECONDS:
            past += [machine.settled, charges(machine, books.runs, prices, looked)]
        else:
            kept.append(_settle(machine, books.runs, prices, looked))
    oldest = min([looked - KEPT_SECONDS, *(machine.launched_unix_seconds for machine in kept)])
    first = max((index for index, (since, _) in enumerate(books.runs) if since <= oldest), default=0)
    runs = [(0.0, run) if index == first else (since, run) for index, (since, run) in enumerate(books.runs)][first:]
    return replace(books, machines=tuple(kept), past=total(past), runs=tuple(runs))


def _settle(machine: Machine, runs: Runs, prices: OnDemandPrices, looked: float) -> Machine:
    """Settle the instance-hours that ended long before the machine was last seen running."""
    limit = clock_hour(min(machine.live_unix_seconds, looked)) - REOPENED_SECONDS - HOUR
    hours = int((limit - machine.launched_unix_seconds) // HOUR)
    if hours <= machine.settled_hours:
        return machine
    final = charges(machine, runs, prices, looked, end=machine.launched_unix_seconds + hours * HOUR)
    return replace(
        machine,
        settled_hours=hours,
        settled=total([machine.settled, final]),
        spot_usd={number: usd for number, usd in machine.spot_usd.items() if number >= hours},
    )


def clock_hour(unix_seconds: float) -> int:
    """Return the start of the clock hour that contains a time."""
    return int(unix_seconds // HOUR * HOUR)
