"""Detection of loss spikes. All ranks use the same losses and make the same decision."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterable
from typing import Any

from training.config.recovery import RecoveryConfig
from training.loop.step_result import StepReport

logger = logging.getLogger(__name__)

DECAY = 0.98
"""Decay factor for the running mean and variance. They cover about the last 50 steps."""
FIRST_STEPS = 50
"""Number of initial steps without spike detection. In these steps, the loss falls steeply and its deviation is
unknown."""


class LossWatch:
    """Tracks the running mean and deviation of the loss, and detects spikes.

    Args:
        settings: recovery settings that define a spike.
        kept: value returned by :meth:`state`, read from the checkpoint that the run resumed from.

    Attributes:
        rollbacks: number of rollbacks so far.
        consecutive_spikes: number of consecutive spikes up to the newest step.
        doubtful_since: first of the newest consecutive steps that may cause a rollback; None if there are none.
    """

    def __init__(self, settings: RecoveryConfig, kept: dict[str, Any] | None = None) -> None:
        kept = kept or {}
        self._settings = settings
        self._steps = int(kept.get("steps", 0))
        self._mean = float(kept.get("mean", 0.0))
        self._variance = float(kept.get("variance", 0.0))
        self.rollbacks = int(kept.get("rollbacks", 0))
        # A run that stops while its loss is in doubt saves this value, so that its loss is still in doubt after
        # resuming.
        self.consecutive_spikes = int(kept.get("consecutive_spikes", 0))
        self.doubtful_since: int | None = kept.get("doubtful_since")

    def state(self, pending: Iterable[StepReport] = ()) -> dict[str, Any]:
        """Return the state to store in a checkpoint, including the given reports. JSON stores its numbers exactly."""
        after = copy.copy(self)
        for report in pending:
            after.note(report)
        return {
            "steps": after._steps,
            "mean": after._mean,
            "variance": after._variance,
            "rollbacks": after.rollbacks,
            "consecutive_spikes": after.consecutive_spikes,
            "doubtful_since": after.doubtful_since,
        }

    def note(self, report: StepReport) -> bool:
        """Add a step's report; return True if the run should roll back."""
        is_doubtful = self._is_doubtful(report)
        if is_doubtful:
            self.doubtful_since = self.doubtful_since or report.step
        elif not report.skipped:
            self.doubtful_since = None
        if report.skipped:
            return is_doubtful
        if is_doubtful:
            self.consecutive_spikes += 1
            logger.warning("step %d: loss spike: %.4f, running mean %.4f", report.step, report.loss, self._mean)
            return self.consecutive_spikes >= self._settings.spike_steps
        self.consecutive_spikes = 0
        if math.isfinite(report.loss):
            self._learn(report.loss)
        return False

    def doubts(self, pending: Iterable[StepReport]) -> bool:
        """True if the newest steps may cause a rollback, so that the current state should not be saved."""
        return self.doubtful_since is not None or any(self._is_doubtful(report) for report in pending)

    def _is_doubtful(self, report: StepReport) -> bool:
        return self._settings.non_finite == "roll_back" if report.skipped else self._is_spike(report.loss)

    def _is_spike(self, loss: float) -> bool:
        if self._settings.spike_deviations is None or self._steps < FIRST_STEPS:
            return False
        return loss > self._mean + self._settings.spike_deviations * math.sqrt(self._variance)

    def _learn(self, loss: float) -> None:
        # Use a plain mean at first, so that the first losses do not dominate.
        weight = max(1.0 - DECAY, 1.0 / (self._steps + 1))
        distance = loss - self._mean
        self._mean += weight * distance
        self._variance = (1.0 - weight) * (self._variance + weight * distance * distance)
        self._steps += 1
