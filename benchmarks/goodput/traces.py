"""Spot traces: the number of available instances at each tick.

Format: `{"metadata": {"gap_seconds": SECONDS}, "data": [COUNT, ...]}`, as in
https://github.com/skypilot-org/spot-traces (2024-03; measured for "Can't Be Late", NSDI 2024).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


class TraceError(Exception):
    """A trace cannot be read."""


@dataclass(frozen=True)
class Trace:
    """A recorded trace.

    Attributes:
        name: path of the trace relative to the given folder.
        gap_seconds: time between two ticks.
        counts: number of available instances at each tick.
    """

    name: str
    gap_seconds: float
    counts: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """Length of the trace in seconds."""
        return self.gap_seconds * len(self.counts)

    @property
    def max_count(self) -> int:
        """The largest count."""
        return max(self.counts, default=0)

    @property
    def drops(self) -> int:
        """Number of instances lost during the trace."""
        return sum(max(0, before - after) for before, after in zip(self.counts, self.counts[1:], strict=False))

    @property
    def available_seconds(self) -> float:
        """Available instance-seconds."""
        return self.gap_seconds * sum(self.counts)

    def changes(self) -> Iterator[tuple[float, int]]:
        """Yield the time in seconds and the new count of each change; the first change is at 0 s."""
        before = 0
        for tick, count in enumerate(self.counts):
            if count != before:
                yield tick * self.gap_seconds, count
            before = count


def busy_trace(nodes: int = 16, share: float = 0.55, gap_seconds: float = 480.0, days: float = 10.0) -> Trace:
    """Return a made-up trace in which the count changes by one at every tick.

    Args:
        nodes: the largest possible count.
        share: mean count, as a share of `nodes`.
        gap_seconds: time between two changes.
        days: length of the trace.
    """
    choice = random.Random(1)  # noqa: S311 (not a secret)
    count, counts = round(nodes * share), []
    for _ in range(int(days * 86400 / gap_seconds)):
        counts.append(count)
        rises = choice.random() < 0.5 + (nodes * share - count) / nodes
        count = min(nodes, count + 1) if rises and count < nodes else max(1, count - 1)
    return Trace(f"made up: {nodes} nodes, a change every {gap_seconds / 60:g} min", gap_seconds, tuple(counts))


def read_traces(places: list[Path]) -> list[Trace]:
    """Read the traces in files and folders.

    Raises:
        TraceError: at least one trace is invalid; the message lists all problems.
    """
    traces: list[Trace] = []
    problems: list[str] = []
    for place in places:
        files = sorted(place.rglob("*.json")) if place.is_dir() else [place]
        if not files:
            problems.append(f"{place}: no .json files; specify a folder of traces, or trace files")
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
        raise TraceError(f"{file}: cannot read it ({error.strerror}); correct the path") from error
    except ValueError as error:
        raise TraceError(f"{file}: not JSON ({error}); remove or correct it") from error
    metadata = document.get("metadata") if isinstance(document, dict) else None
    gap = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    if not isinstance(gap, (int, float)) or isinstance(gap, bool) or not gap > 0:
        raise TraceError(f"{file}: metadata.gap_seconds: {gap!r}: must be above 0; specify a spot trace")
    counts = document.get("data")
    if not isinstance(counts, list) or not counts:
        raise TraceError(f"{file}: data: must be a list of counts, one per tick; specify a spot trace")
    wrong = [count for count in counts if not isinstance(count, int) or isinstance(count, bool) or count < 0]
    if wrong:
        raise TraceError(f"{file}: data: {wrong[0]!r}: counts must be integers of at least 0; specify a spot trace")
    if not any(counts):
        raise TraceError(f"{file}: data: no tick has capacity; remove the file")
    return Trace(name, float(gap), tuple(counts))
