"""The critical path of a task graph, and the time that would be saved if a task on it took no time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        name: Unique name.
        after: Names of the tasks that must finish first.
        seconds: Duration.
    """

    name: str
    after: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class CriticalPath:
    """Duration of a graph whose independent tasks run in parallel.

    Attributes:
        sum_seconds: Duration of a sequential run.
        path_seconds: Duration of a parallel run.
        path: Names of the tasks on the critical path, in order.
        saved_seconds: For each task on the path, the time that the run would save if the task took no time.
    """

    sum_seconds: float
    path_seconds: float
    path: tuple[str, ...]
    saved_seconds: Mapping[str, float]


def critical_path(tasks: Sequence[Task]) -> CriticalPath:
    """Return the critical path; the tasks must be in topological order.

    Raises:
        ValueError: A task is listed before one of its dependencies.
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
            raise ValueError(f"{task.name} depends on {', '.join(missing)}, which must be listed before it")
        latest = max(task.after, key=ends.__getitem__, default=None)
        ends[task.name] = (ends[latest] if latest else 0.0) + (0.0 if task.name == without else task.seconds)
        chains[task.name] = (*(chains[latest] if latest else ()), task.name)
    last = max(ends, key=ends.__getitem__)
    return chains[last], ends[last]
