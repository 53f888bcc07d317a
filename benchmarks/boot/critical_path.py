"""The longest chain of a graph of tasks, and what would shorten it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """One thing that takes time.

    Attributes:
        name: unique.
        after: names of the tasks that must be done before.
        seconds: that it takes by itself.
    """

    name: str
    after: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class CriticalPath:
    """How long a graph takes when independent tasks run side by side.

    Attributes:
        sum_seconds: one after the other.
        path_seconds: side by side.
        path: names on the longest chain, in order.
        saved_seconds: by how much the whole becomes shorter when this task of the path costs nothing; what is more
            than that, the next chain takes.
    """

    sum_seconds: float
    path_seconds: float
    path: tuple[str, ...]
    saved_seconds: Mapping[str, float]


def critical_path(tasks: Sequence[Task]) -> CriticalPath:
    """Find the longest chain; tasks are in an order in which they could run.

    Raises:
        ValueError: A task comes before one that it waits for.
    """
    path, seconds = _longest(tasks, without=None)
    saved = {name: seconds - _longest(tasks, without=name)[1] for name in path}
    return CriticalPath(sum(task.seconds for task in tasks), seconds, path, saved)


def _longest(tasks: Sequence[Task], without: str | None) -> tuple[tuple[str, ...], float]:
    ends: dict[str, float] = {}
    chains: dict[str, tuple[str, ...]] = {}
    for task in tasks:
        missing = [name for name in task.after if name not in ends]
        if missing:
            raise ValueError(f"{task.name} waits for {', '.join(missing)}, which is not before it")
        latest = max(task.after, key=ends.__getitem__, default=None)
        ends[task.name] = (ends[latest] if latest else 0.0) + (0.0 if task.name == without else task.seconds)
        chains[task.name] = (*(chains[latest] if latest else ()), task.name)
    last = max(ends, key=ends.__getitem__)
    return chains[last], ends[last]
