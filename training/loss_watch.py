"""Seeing that a loss goes wrong, on all ranks alike."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterable
from typing import Any

from training.ballot import StepReport
from training.recovery_settings import RecoveryConfig

logger = logging.getLogger(__name__)

DECAY = 0.98
"""Of the running mean and variance: they look back about 50 steps."""
FIRST_STEPS = 50
"""Steps before anything counts as a spike: until then the loss falls by itself, and its spread is not known."""


class LossWatch:
    """Running mean and spread of the loss, and what lies far above; all ranks feed it the same numbers.

    Args:
        settings: what counts as a spike.
        kept: what :meth:`state` gave to a checkpoint.

    Attributes:
        roll_backs: times that the run went back so far.
        spikes_in_a_row: newest steps that were spikes.
        doubtful_since: the first of the newest steps that may be a reason to go back; None while all is well.
    """

    def __init__(self, settings: RecoveryConfig, kept: dict[str, Any] | None = None) -> None:
        kept = kept or {}
        self._settings = settings
        self._steps = int(kept.get("steps", 0))
        self._mean = float(kept.get("mean", 0.0))
        self._variance = float(kept.get("variance", 0.0))
        self.roll_backs = int(kept.get("roll_backs", 0))
        # A run that is stopped meanwhile saves what it has; it goes on to doubt that when it is resumed.
        self.spikes_in_a_row = int(kept.get("spikes_in_a_row", 0))
        self.doubtful_since: int | None = kept.get("doubtful_since")

    def state(self, unnoted: Iterable[StepReport] = ()) -> dict[str, Any]:
        """What a checkpoint keeps of it, once these steps are noted too; numbers that JSON holds exactly."""
        then = copy.copy(self)
        for report in unnoted:
            then.note(report)
        return {
            "steps": then._steps,
            "mean": then._mean,
            "variance": then._variance,
            "roll_backs": then.roll_backs,
            "spikes_in_a_row": then.spikes_in_a_row,
            "doubtful_since": then.doubtful_since,
        }

    def note(self, report: StepReport) -> bool:
        """Take in a step; True means that the run should go back."""
        is_doubtful = self._is_doubtful(report)
        if is_doubtful:
            self.doubtful_since = self.doubtful_since or report.step
        elif not report.skipped:
            self.doubtful_since = None
        if report.skipped:
            return is_doubtful
        if is_doubtful:
            self.spikes_in_a_row += 1
            logger.warning(
                "step %d: loss %.4f is far above its running mean %.4f", report.step, report.loss, self._mean
            )
            return self.spikes_in_a_row >= self._settings.spike_steps
        self.spikes_in_a_row = 0
        if math.isfinite(report.loss):
            self._learn(report.loss)
        return False

    def doubts(self, unnoted: Iterable[StepReport]) -> bool:
        """Whether the run may have to go back to before its newest steps; what is saved now might be gone back to."""
        return self.doubtful_since is not None or any(self._is_doubtful(report) for report in unnoted)

    def _is_doubtful(self, report: StepReport) -> bool:
        return self._settings.non_finite == "roll_back" if report.skipped else self._is_spike(report.loss)

    def _is_spike(self, loss: float) -> bool:
        if self._settings.spike_deviations is None or self._steps < FIRST_STEPS:
            return False
        return loss > self._mean + self._settings.spike_deviations * math.sqrt(self._variance)

    def _learn(self, loss: float) -> None:
        # A plain mean at first, so that the beginning does not weigh as much as all that follows.
        weight = max(1.0 - DECAY, 1.0 / (self._steps + 1))
        distance = loss - self._mean
        self._mean += weight * distance
        self._variance = (1.0 - weight) * (self._variance + weight * distance * distance)
        self._steps += 1
