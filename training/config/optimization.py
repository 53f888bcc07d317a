"""Optimizer and learning-rate schedule settings."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from training.config.section import Section


class OptimizerConfig(Section):
    """AdamW settings."""

    learning_rate: float = Field(
        default=1e-3, gt=0.0, le=10.0, description="Peak learning rate. 1e-3 suits models of a few million parameters."
    )
    betas: tuple[float, float] = Field(
        default=(0.9, 0.95),
        description="Decay rates for the two moments; 0.95 forgets gradient outliers sooner than 0.999.",
    )
    weight_decay: float = Field(
        default=0.1, ge=0.0, le=10.0, description="Decoupled weight decay, applied to matrices only."
    )
    max_grad_norm: float | None = Field(
        default=1.0, gt=0.0, description="Maximum global gradient norm; `null`: no clipping."
    )

    @field_validator("betas")
    @classmethod
    def _check_betas(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError("each must be at least 0 and less than 1, such as [0.9, 0.95]")
        return betas


class ScheduleConfig(Section):
    """Learning-rate schedule: a warm-up, then a decay."""

    kind: Literal["cosine", "onecycle", "wsd", "constant"] = Field(
        default="cosine",
        description="Shape after a linear warm-up. `cosine`: cosine decay. `onecycle`: cosine warm-up and decay. "
        "`wsd`: constant until `decay_steps` before the end, so that you can extend a run. `constant`: no decay.",
    )
    warmup_steps: int | None = Field(
        default=None,
        ge=0,
        description="Number of warm-up steps, during which Adam's second moment is still noisy. `null`: 100 or a "
        "tenth of the run, whichever is less; with `onecycle`, three tenths of the run.",
    )
    decay_steps: int | None = Field(
        default=None, ge=1, description="Number of decay steps with `wsd`; `null`: a fifth of the run."
    )
    min_lr_ratio: float | None = Field(
        default=None,
        ge=0.0,
        le=1.0,
        description="Final learning rate divided by the peak; `null`: 0.1 with `cosine`, 0 with `wsd`, 4e-6 with "
        "`onecycle`.",
    )

    @model_validator(mode="after")
    def _check_keys_of_kind(self) -> ScheduleConfig:
        if self.decay_steps is not None and self.kind != "wsd":
            raise ValueError(f"decay_steps {self.decay_steps} applies only to wsd, but kind is {self.kind}; remove it")
        if self.min_lr_ratio is not None and self.kind == "constant":
            raise ValueError(f"min_lr_ratio {self.min_lr_ratio} does not apply to kind constant; remove it")
        return self
