"""Chooses the last save before a stop: the current step, or an earlier step whose save is already in flight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LastSave = Literal["current step", "in flight"]

SLOWDOWN_FACTOR = 1.5
"""Expected ratio of the last save's duration to the previous save's. After a notice, all nodes save at once."""
STEPS_TO_STOP = 3
"""Number of steps between a rank's stop request and the stop: the current step, and the steps until all ranks have
received the flag."""


@dataclass(frozen=True)
class SaveTimes:
    """Save times known to rank 0.

    Attributes:
        usual_seconds: duration of the previous save, from its start to its commit; None before the first save.
        in_flight_seconds: age of the save in flight; None if there is none.
        remaining_seconds: time until the first rank is killed; None if unknown.
    """

    usual_seconds: float | None
    in_flight_seconds: float | None
    remaining_seconds: float | None


def last_save_seconds(usual_seconds: float, step_seconds: float) -> float:
    """Return the time before its deadline at which a rank must request the stop for its last save to finish in time.

    Args:
        usual_seconds: duration of the previous save, from its start to its commit.
        step_seconds: duration of a step.
    """
    return usual_seconds * SLOWDOWN_FACTOR + step_seconds * STEPS_TO_STOP


def choose_last_save(times: SaveTimes) -> LastSave:
    """Choose which save to finish before the stop.

    The default is to save the current step, which loses no work. If only the save in flight can meet the deadline,
    finish that save: steps can be computed again, but an incomplete save is useless.
    """
    if times.remaining_seconds is None or times.usual_seconds is None or times.in_flight_seconds is None:
        return "current step"
    expected_seconds = times.usual_seconds * SLOWDOWN_FACTOR
    if expected_seconds > times.remaining_seconds >= expected_seconds - times.in_flight_seconds:
        return "in flight"
    return "current step"
