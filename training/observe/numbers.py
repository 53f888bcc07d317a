"""The numbers of metric records that sinks plot."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]
SHOWN = {"step", "validation", "checkpoint", "ranks"}
"""Record kinds that are plotted."""
NOT_PLOTTED = {"step", "unix_seconds", "schema_version"}


def numbers_of(record: Record) -> dict[str, float]:
    """Return a record's numbers for plotting, without the step, the time and unknown values."""
    if record["record"] not in SHOWN:
        return {}
    return {
        name: float(value)
        for name, value in record.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and name not in NOT_PLOTTED
    }
