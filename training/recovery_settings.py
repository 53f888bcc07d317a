"""What a run does when its loss goes wrong, and when it has learned what it can."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from training.settings_section import Section


class RecoveryConfig(Section):
    """What a run does about a loss that is not finite, or that leaps; all ranks alike."""

    non_finite: Literal["fail", "skip", "roll_back"] = Field(
        default="fail",
        description="When loss or gradient is NaN or infinite (such a step never moves a weight): end the run; go on "
        "with the next batch; or go back to the newest checkpoint from before it and leave out the batches since.",
    )
    most_skipped_steps: int = Field(
        default=10, ge=1, description="Steps in a row that may be skipped before the run fails; with non_finite: skip."
    )
    spike_deviations: float | None = Field(
        default=None,
        gt=0.0,
        description="A loss this many standard deviations above its running mean is a spike; null: none is. 6 is rare "
        "in a healthy run.",
    )
    spike_steps: int = Field(
        default=3,
        ge=1,
        description="Steps in a row with a spike after which the run goes back to the newest checkpoint from before "
        "them and leaves out the batches since. No checkpoint is made meanwhile, but when the run is told to stop.",
    )
    most_roll_backs: int = Field(
        default=3, ge=1, description="Times that a run may go back, over all its interruptions, before it fails."
    )
    parameter_check_interval_steps: int | None = Field(
        default=None,
        ge=1,
        description="Steps between comparisons of the parameters' bits across ranks, which must be the same; null: "
        "none.",
    )


class EarlyStoppingConfig(Section):
    """When a run ends before its last step, since it has stopped learning."""

    patience_validations: int | None = Field(
        default=None,
        ge=1,
        description="Validations in a row without a better loss after which the run is finished; null: it goes on.",
    )
    minimum_improvement: float = Field(
        default=0.0, ge=0.0, description="By how much a loss must be lower than the best one to count, nats per token."
    )

    @model_validator(mode="after")
    def _improvement_is_of_a_patience(self) -> EarlyStoppingConfig:
        if self.minimum_improvement and self.patience_validations is None:
            raise ValueError("minimum_improvement is given without patience_validations, so nothing stops; give both")
        return self
