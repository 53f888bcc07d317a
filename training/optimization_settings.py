"""How weights move: the optimizer, and the learning rate against the step."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

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
    """Learning rate against step: a warm-up, then a decay or none."""

    kind: Literal["cosine", "onecycle", "wsd", "constant"] = Field(
        default="cosine",
        description="Shape after the warm-up. cosine: half a wave down. onecycle: half a wave up for the warm-up, and "
        "one down. wsd: at the peak until decay_steps before the end, so that a run can be prolonged. constant: at the "
        "peak.",
    )
    warmup_steps: int | None = Field(
        default=None,
        ge=0,
        description="Steps of warm-up, while Adam's second moment is noise; null: 100 or a tenth of the run, 3 tenths "
        "with onecycle.",
    )
    decay_steps: int | None = Field(
        default=None, ge=1, description="Steps of the decay of wsd; null: a fifth of the run."
    )
    minimum_ratio: float | None = Field(
        default=None,
        ge=0.0,
        le=1.0,
        description="Last learning rate as a share of the peak; null: 0.1 with cosine, 0 with wsd, 4e-6 with onecycle.",
    )

    @model_validator(mode="after")
    def _each_key_belongs_to_its_kind(self) -> ScheduleConfig:
        if self.decay_steps is not None and self.kind != "wsd":
            raise ValueError(f"decay_steps {self.decay_steps} is of wsd, and kind is {self.kind}; drop it")
        if self.minimum_ratio is not None and self.kind == "constant":
            raise ValueError(f"minimum_ratio {self.minimum_ratio} has no meaning where kind is constant; drop it")
        return self
