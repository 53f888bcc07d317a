"""Replays recorded spot capacity and prices of zones on a running cloud.

A trace is a JSON file `{"metadata": {"gap_seconds": SECONDS}, "data": [0 | 1, ...], "prices": [USD, ...]}` with one
entry per tick; 0 means that the zone has capacity. `prices` may be absent. This is the format of the public data of
"Can't Be Late" (https://github.com/FrontierCS/Frontier-CS, research/problems/cant_be_late_multi; 2026-11).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ZONE = re.compile(r"[a-z]{2}(?:-[a-z]+)+-\d[a-z]")


class TraceError(Exception):
    """A trace cannot be read."""


@dataclass(frozen=True)
class Trace:
    """A zone's recorded capacity and, if known, its prices in USD per hour."""

    zone: str
    gap_seconds: float
    is_available: tuple[bool, ...]
    usd_per_hour: tuple[float, ...]


@dataclass(frozen=True)
class Change:
    """A zone's capacity and price from a point in the trace onward. Without a price, the zone's price stays the
    same."""

    trace_seconds: float
    zone: str
    is_available: bool
    usd_per_hour: float | None


def read_trace(path: Path) -> Trace:
    """Read a trace. Its zone is the start of the file's name or, if that is not a zone, of its folder's name.

    Raises:
        TraceError: The file is not a trace, or neither name starts with a zone.
    """
    zone = _ZONE.match(path.name) or _ZONE.match(path.resolve().parent.name)
    if zone is None:
        raise TraceError(f"{path}: neither the file nor its folder is named after a zone, such as us-east-1a_v100_1")
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
        gap = float(document["metadata"]["gap_seconds"])
        data, prices = list(document["data"]), [float(price) for price in document.get("prices", [])]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise TraceError(f"{path}: not a trace ({error!r}); see `python -m localcloud capacity --help`") from error
    if not gap > 0 or not data or any(each not in (0, 1) for each in data):
        raise TraceError(f"{path}: gap_seconds must be above 0, and data must be a list of 0 (capacity) and 1 (none)")
    if prices and (len(prices) != len(data) or not all(price > 0 for price in prices)):
        raise TraceError(f"{path}: prices must be a list of {len(data)} numbers above 0")
    return Trace(zone.group(), gap, tuple(each == 0 for each in data), tuple(prices))


def changes(traces: Sequence[Trace]) -> list[Change]:
    """Return the first state of each zone and all changes after it, in chronological order."""
    return sorted((each for trace in traces for each in _changes(trace)), key=lambda each: each.trace_seconds)


def _changes(trace: Trace) -> Iterator[Change]:
    before: tuple[bool, float | None] | None = None
    for tick, is_available in enumerate(trace.is_available):
        state = (is_available, trace.usd_per_hour[tick] if trace.usd_per_hour else None)
        if state != before:
            yield Change(tick * trace.gap_seconds, trace.zone, *state)
        before = state


def play(
    found: Sequence[Change],
    speed: float,
    apply: Callable[[Change], None],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    """Apply each change at its time.

    Args:
        found: The changes, in chronological order.
        speed: Seconds of the trace per second of the clock.
        apply: Applies a change to the cloud.
        clock: Returns the time in seconds.
        sleep: Waits for a number of seconds.
    """
    start = clock()
    for change in found:
        wait = change.trace_seconds / speed - (clock() - start)
        if wait > 0:
            sleep(wait)
        apply(change)
