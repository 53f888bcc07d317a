"""What a save and a restore cost: measured by the checkpoint benchmark, or given."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class CostsError(Exception):
    """The measurements cannot be read; the message has path, value, rule and remedy."""


@dataclass(frozen=True)
class Costs:
    """Seconds, for one size of state.

    Attributes:
        source: where the figures are from.
        blocked_seconds: training lost per save: the standstill, and what steps take longer meanwhile.
        durable_seconds: from the wish for a save to its commit.
        restore_seconds: to read and verify the newest checkpoint.
        synchronous_seconds: a synchronous save by `torch.save` with fsync.
        other_blocked_seconds: training lost per asynchronous save by `torch.distributed.checkpoint`.
        other_durable_seconds: until that one is through.
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
"""For a look without measurements; the report says so."""

GOODPUT_KEY = "goodput"
"""Section of `build/bench/checkpoint.json` that the checkpoint benchmark writes for this one."""


def read_costs(path: Path | None) -> Costs:
    """Read the section `goodput` of the checkpoint benchmark's result; without a path, the assumed figures.

    Raises:
        CostsError: the file has no such section, or figures are missing.
    """
    if path is None:
        return ASSUMED
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CostsError(f"{path}: cannot be read ({error.strerror}); run the checkpoint benchmark first") from error
    except ValueError as error:
        raise CostsError(f"{path}: is not JSON ({error}); run the checkpoint benchmark again") from error
    section = document.get(GOODPUT_KEY) if isinstance(document, dict) else None
    if not isinstance(section, dict):
        raise CostsError(f"{path}: has no section {GOODPUT_KEY!r}; run this version's checkpoint benchmark")
    names = [name for name in Costs.__dataclass_fields__ if name != "source"]
    wrong = [name for name in names if not _is_duration(section.get(name))]
    if wrong:
        told = ", ".join(f"{name} {section.get(name)!r}" for name in wrong)
        raise CostsError(f"{path}: {GOODPUT_KEY}: {told}: must be numbers of seconds, at least 0")
    return Costs(source=str(path), **{name: float(section[name]) for name in names})


def _is_duration(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
