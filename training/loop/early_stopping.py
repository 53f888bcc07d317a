"""Early stopping: ends a run when its validation loss no longer improves. All ranks use the same losses."""

from __future__ import annotations

from typing import Any

from training.config.recovery import EarlyStoppingConfig


class Patience:
    """Counts validations since the best loss.

    Args:
        settings: early-stopping settings.
        kept: value returned by :meth:`state`, read from the checkpoint that the run resumed from.
    """

    def __init__(self, settings: EarlyStoppingConfig, kept: dict[str, Any] | None = None) -> None:
        kept = kept or {}
        self._settings = settings
        self._best: float | None = kept.get("best")
        self._best_step = int(kept.get("best_step", 0))
        self._without_better = int(kept.get("without_better", 0))

    def state(self) -> dict[str, Any]:
        """Return the state to store in a checkpoint."""
        return {"best": self._best, "best_step": self._best_step, "without_better": self._without_better}

    def note(self, step: int, loss: float) -> None:
        """Record a validation loss. NaN is never an improvement."""
        if self._best is None or loss < self._best - self._settings.min_delta:
            self._best, self._best_step, self._without_better = loss, step, 0
        else:
            self._without_better += 1

    @property
    def is_exhausted(self) -> bool:
        """True if the run should end."""
        limit = self._settings.patience_validations
        return limit is not None and self._without_better >= limit

    @property
    def reason(self) -> str:
        """A message that explains why the run ends."""
        return f"{self._without_better} validations without a lower loss than {self._best} at step {self._best_step}"
