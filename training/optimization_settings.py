"""How weights move: the optimizer, and the learning rate against the step."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from training.settings_section import Section


class OptimizerConfig(Section):
    """AdamW."""

    learning_rate: float = Field(
        default=1e-3, gt=0.0, le=10.0, description="Peak learning rate. 1e-3 suits models of a few million parameters."
    )
    betas: tuple[float, float] = Field(
        default=(0.9, 0.95), description="Decay of the two moments; 0.95 forgets gradient outliers sooner than 0.999."
    )
    weight_decay: float = Field(
        default=0.1, ge=0.0, le=10.0, description="Decoupled weight decay of matrices; vectors get none."
    )
    gradient_clip: float | None = Field(
        default=1.0, gt=0.0, description="Largest global gradient norm; null: no clipping."
    )

    @field_validator("betas")
    @classmethod
    def _betas_are_decays(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError("both must be at least 0 and less than 1, such as [0.9, 0.95]")
        return betas


class ScheduleConfig(Section):
    """Learning rate against step: linear warm-up, then cosine decay or none."""

    kind: Literal["cosine", "constant"] = Field(default="cosine", description="Shape after the warm-up.")
    warmup_steps: int | None = Field(
        default=None,
        ge=0,
        description="Steps of linear warm-up, while Adam's second moment is noise; null: 100 or a tenth of the run.",
    )
    minimum_ratio: float = Field(
        default=0.1, ge=0.0, le=1.0, description="Last learning rate of the cosine, as a share of the peak."
    )
