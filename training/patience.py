"""When a run has stopped learning: counted from validation losses, which all ranks know alike."""

from __future__ import annotations

from typing import Any

from training.recovery_settings import EarlyStoppingConfig


class Patience:
    """Counts validations without a better loss.

    Args:
        settings: how many are too many.
        kept: what :meth:`state` gave to a checkpoint.
    """

    def __init__(self, settings: EarlyStoppingConfig, kept: dict[str, Any] | None = None) -> None:
        kept = kept or {}
        self._settings = settings
        self._best: float | None = kept.get("best")
        self._best_step = int(kept.get("best_step", 0))
        self._without_better = int(kept.get("without_better", 0))

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"best": self._best, "best_step": self._best_step, "without_better": self._without_better}

    def note(self, step: int, loss: float) -> None:
        """Take in a validation; a loss that is not a number is not better."""
        if self._best is None or loss < self._best - self._settings.minimum_improvement:
            self._best, self._best_step, self._without_better = loss, step, 0
        else:
            self._without_better += 1

    @property
    def is_exhausted(self) -> bool:
        """Whether the run should end."""
        most = self._settings.patience_validations
        return most is not None and self._without_better >= most

    @property
    def reason(self) -> str:
        """Why it should, in words."""
        return f"{self._without_better} validations without a better loss than {self._best} of step {self._best_step}"
