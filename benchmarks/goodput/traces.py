"""Spot traces: how many instances could be had, tick by tick.

Format: `{"metadata": {"gap_seconds": SECONDS}, "data": [COUNT, ...]}`, that of https://github.com/skypilot-org/spot-traces
(2024-03; measured for "Can't Be Late", NSDI 2024).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


class TraceError(Exception):
    """A trace cannot be read; the message has path, value, rule and remedy."""


@dataclass(frozen=True)
class Trace:
    """One recorded series.

    Attributes:
        name: its path below the folder that was given.
        gap_seconds: between two ticks.
        counts: instances at each tick.
    """

    name: str
    gap_seconds: float
    counts: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """Length of the record."""
        return self.gap_seconds * len(self.counts)

    @property
    def most(self) -> int:
        """The largest count."""
        return max(self.counts, default=0)

    @property
    def drops(self) -> int:
        """Instances lost over the whole record."""
        return sum(max(0, before - after) for before, after in zip(self.counts, self.counts[1:]))

    @property
    def available_seconds(self) -> float:
        """Instance-seconds that were there to be had."""
        return self.gap_seconds * sum(self.counts)

    def changes(self) -> Iterator[tuple[float, int]]:
        """Yield the seconds at which the count becomes another, with the new count; the first at 0."""
        before = 0
        for tick, count in enumerate(self.counts):
            if count != before:
                yield tick * self.gap_seconds, count
            before = count


def read_traces(places: list[Path]) -> list[Trace]:
    """Read every trace in files and folders.

    Raises:
        TraceError: with all problems at once.
    """
    traces: list[Trace] = []
    problems: list[str] = []
    for place in places:
        files = sorted(place.rglob("*.json")) if place.is_dir() else [place]
        if not files:
            problems.append(f"{place}: has no .json file in it; give a folder of traces, or the files themselves")
        for file in files:
            name = str(file.relative_to(place)) if place.is_dir() else file.name
            try:
                traces.append(_read(file, name))
            except TraceError as error:
                problems.append(str(error))
    if problems:
        raise TraceError("\n".join(problems))
    return traces


def _read(file: Path, name: str) -> Trace:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise TraceError(f"{file}: cannot be read ({error.strerror}); correct the path") from error
    except ValueError as error:
        raise TraceError(f"{file}: is not JSON ({error}); leave it out, or mend it") from error
    metadata = document.get("metadata") if isinstance(document, dict) else None
    gap = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    if not isinstance(gap, (int, float)) or isinstance(gap, bool) or not gap > 0:
        raise TraceError(f"{file}: metadata.gap_seconds: {gap!r}: must be a number above 0; is this a spot trace?")
    counts = document.get("data")
    if not isinstance(counts, list) or not counts:
        raise TraceError(f"{file}: data: must be a list of counts, one a tick; is this a spot trace?")
    wrong = [count for count in counts if not isinstance(count, int) or isinstance(count, bool) or count < 0]
    if wrong:
        raise TraceError(f"{file}: data: {wrong[0]!r}: every count must be a whole number of at least 0")
    if not any(counts):
        raise TraceError(f"{file}: data: has no tick with capacity, so nothing can be measured; leave it out")
    return Trace(name, float(gap), tuple(counts))
