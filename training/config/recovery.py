"""Recovery from non-finite losses and loss spikes, and early stopping."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from training.config.section import Section


class RecoveryConfig(Section):
    """How the trainer handles non-finite losses and loss spikes; all ranks make the same decision."""

    non_finite: Literal["fail", "skip", "roll_back"] = Field(
        default="fail",
        description="Action if the loss or gradient is NaN or infinite; that step never updates the weights. "
        "`fail`: end the run. `skip`: continue with the next batch. `roll_back`: restore the newest earlier "
        "checkpoint, and skip the batches since then.",
    )
    max_skipped_steps: int = Field(
        default=10,
        ge=1,
        description="Maximum number of consecutive steps to skip with `non_finite: skip`.",
    )
    spike_deviations: float | None = Field(
        default=None,
        gt=0.0,
        description="Number of standard deviations by which a spike exceeds the running mean of the loss; `null`: "
        "off. A deviation of 6 is rare in a healthy run.",
    )
    spike_steps: int = Field(
        default=3,
        ge=1,
        description="Number of consecutive spikes after which the run rolls back to the newest checkpoint before them "
        "and skips the batches since then. During spikes the run does not save checkpoints, except when it stops.",
    )
    max_rollbacks: int = Field(
        default=3,
        ge=1,
        description="Maximum number of rollbacks, including rollbacks before restarts; another rollback makes the run "
        "fail.",
    )
    parameter_check_interval_steps: int | None = Field(
        default=None,
        ge=1,
        description="Steps between bitwise comparisons of parameters across ranks; `null`: off.",
    )


class EarlyStoppingConfig(Section):
    """Ends a run early when the validation loss stops improving."""

    patience_validations: int | None = Field(
        default=None,
        ge=1,
        description="Number of consecutive validations without a lower loss after which the run ends; `null`: off.",
    )
    min_delta: float = Field(
        default=0.0,
        ge=0.0,
        description="Minimum improvement over the lowest loss, in nats per token.",
    )

    @model_validator(mode="after")
    def _check_min_delta(self) -> EarlyStoppingConfig:
        if self.min_delta and self.patience_validations is None:
            raise ValueError("min_delta requires patience_validations; set both, or remove it")
        return self
