"""The last save before a stop: of the step just done, or, when there is no time for that, of one already under way."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

logger = logging.getLogger(__name__)

LastSave = Literal["this step", "under way"]

SLOWER_THAN_BEFORE = 1.5
"""A save at a stop is expected to take so much longer than the last one: everyone saves at a notice."""


STEPS_TO_STOP = 3
"""From the moment that a rank wants to stop: the step it is in, and those until all have collected its vote."""


class StopBeforeStepsError(Exception):
    """All ranks agreed to stop while the run was put together; there is nothing to save."""


@dataclass(frozen=True)
class SaveTimes:
    """What rank 0 knows about saving.

    Attributes:
        usual_seconds: what the last save took from wish to commit; None before the first.
        under_way_seconds: age of the save in flight; None if there is none.
        left_seconds: until the first rank will be killed; None if nobody said.
    """

    usual_seconds: float | None
    under_way_seconds: float | None
    left_seconds: float | None


def last_save_seconds(usual_seconds: float, step_seconds: float) -> float:
    """How long before its deadline a rank must want to stop, for its last save to be through.

    Args:
        usual_seconds: what the last save took from wish to commit.
        step_seconds: what a step takes.
    """
    return usual_seconds * SLOWER_THAN_BEFORE + step_seconds * STEPS_TO_STOP


def choose_last_save(times: SaveTimes) -> LastSave:
    """Which save to put all there is into.

    A save of this very step loses nothing, and is what a stop wants. Where it would not be through in time but one that
    is under way would, that one is better: the steps after it can be computed again, a save cut off is worth nothing.
    """
    if times.left_seconds is None or times.usual_seconds is None or times.under_way_seconds is None:
        return "this step"
    expected_seconds = times.usual_seconds * SLOWER_THAN_BEFORE
    if expected_seconds > times.left_seconds >= expected_seconds - times.under_way_seconds:
        return "under way"
    return "this step"
