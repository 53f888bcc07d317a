"""Costs of saves, restores and changes in place, measured by the other benchmarks or assumed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class CostsError(Exception):
    """The measurements cannot be read."""


@dataclass(frozen=True)
class Costs:
    """Costs in seconds, for one state size.

    Attributes:
        source: origin of the figures.
        blocked_seconds: training time lost per save, as the blocked time plus the slowdown of steps during the save.
        durable_seconds: time from requesting a save to its commit.
        restore_seconds: time to read and verify the newest checkpoint.
        synchronous_seconds: duration of a synchronous save by `torch.save` with fsync.
        other_blocked_seconds: training time lost per asynchronous save by `torch.distributed.checkpoint`.
        other_durable_seconds: time until such a save is durable.
    """

    source: str
    blocked_seconds: float
    durable_seconds: float
    restore_seconds: float
    synchronous_seconds: float
    other_blocked_seconds: float
    other_durable_seconds: float


ASSUMED = Costs(
    source="assumed, not measured: 1.5 GB of state, two cores, a local S3 server",
    blocked_seconds=1.0,
    durable_seconds=15.0,
    restore_seconds=4.0,
    synchronous_seconds=4.0,
    other_blocked_seconds=3.0,
    other_durable_seconds=6.0,
)
"""Costs to use if there are no measurements. The report shows their source."""

GOODPUT_KEY = "goodput"
"""The section of `build/bench/checkpoint.json` that the checkpoint benchmark writes for this benchmark."""


def read_costs(path: Path | None) -> Costs:
    """Read the `goodput` section from the checkpoint benchmark's result; without a path, return ASSUMED.

    Raises:
        CostsError: the file, the section or a figure is missing or invalid.
    """
    if path is None:
        return ASSUMED
    document = _document(path, "checkpoint")
    section = document.get(GOODPUT_KEY) if isinstance(document, dict) else None
    if not isinstance(section, dict):
        raise CostsError(f"{path}: no section {GOODPUT_KEY!r}; run this version's checkpoint benchmark")
    names = [name for name in Costs.__dataclass_fields__ if name != "source"]
    wrong = [name for name in names if not _is_duration(section.get(name))]
    if wrong:
        values = ", ".join(f"{name} {section.get(name)!r}" for name in wrong)
        raise CostsError(f"{path}: {GOODPUT_KEY}: {values}: must be at least 0; run the checkpoint benchmark again")
    return Costs(source=str(path), **{name: float(section[name]) for name in names})


@dataclass(frozen=True)
class ChangeCosts:
    """Costs in seconds of a change in place: the time for which all members pause.

    Attributes:
        source: origin of the figures.
        leave_seconds: pause when a member leaves after a notice.
        loss_seconds: time from the loss of a machine to the next step, with its detection.
        join_seconds: pause when nodes join.
    """

    source: str
    leave_seconds: float
    loss_seconds: float
    join_seconds: float


ASSUMED_CHANGES = ChangeCosts("assumed, not measured: two nodes on two cores, a small model", 0.8, 4.0, 0.9)
"""Costs to use if there are no measurements. The report shows their source."""

_MEASURED = {
    "leave_seconds": ("planned_leave", "pause_seconds"),
    "loss_seconds": ("machine_cut_off", "next_step_seconds"),
    "join_seconds": ("join", "pause_seconds"),
}


def read_change_costs(path: Path | None) -> ChangeCosts:
    """Read the costs of changes from the boot benchmark's result; without a path, return ASSUMED_CHANGES.

    If it has measured gangs of several sizes, each figure is that of the size for which it is the highest.

    Raises:
        CostsError: the file or a figure is missing or invalid.
    """
    if path is None:
        return ASSUMED_CHANGES
    document = _document(path, "boot")
    try:
        gangs = list(document["reforms"].values())
        found = {
            name: [gang[change][figure] for gang in gangs if change in gang]
            for name, (change, figure) in _MEASURED.items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise CostsError(f"{path}: no section 'reforms' ({error}); run this version's boot benchmark") from error
    wrong = [name for name, values in found.items() if not values or not all(map(_is_duration, values))]
    if wrong:
        values = ", ".join(f"{_MEASURED[name][0]}.{_MEASURED[name][1]} {found[name]!r}" for name in wrong)
        raise CostsError(f"{path}: reforms: {values}: must be at least 0; run the boot benchmark again")
    return ChangeCosts(str(path), **{name: max(map(float, values)) for name, values in found.items()})


def _document(path: Path, benchmark: str) -> Any:
    """Return a benchmark's result."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CostsError(f"{path}: cannot read it ({error.strerror}); run the {benchmark} benchmark first") from error
    except ValueError as error:
        raise CostsError(f"{path}: not JSON ({error}); run the {benchmark} benchmark again") from error


def _is_duration(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
