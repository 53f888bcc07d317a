"""The learning-rate schedule: a pure function of the step."""

from __future__ import annotations

import math

from training.config import TrainingConfig

MIN_LR_RATIOS = {"cosine": 0.1, "onecycle": 4e-6, "wsd": 0.0, "constant": 1.0}
"""Defaults for schedule.min_lr_ratio. The default for onecycle is that of torch's OneCycleLR, 1 / (25 * 1e4)."""
ONECYCLE_START_RATIO = 1 / 25
"""Ratio of the initial rate to the peak rate, as in torch's OneCycleLR
(https://docs.pytorch.org/docs/2.13/generated/torch.optim.lr_scheduler.OneCycleLR.html, 2026-11). Unlike in OneCycleLR,
Adam's betas are not cycled."""


def learning_rate(step: int, config: TrainingConfig) -> float:
    """Return the learning rate for optimizer step ``step``, counted from 0.

    The schedule is stateless, so a resumed run cannot be off by one step.
    """
    schedule, peak, warmup_steps = config.schedule, config.optimizer.learning_rate, config.warmup_steps
    floor = MIN_LR_RATIOS[schedule.kind] if schedule.min_lr_ratio is None else schedule.min_lr_ratio
    if step < warmup_steps:
        if schedule.kind == "onecycle":
            return peak * _half_cosine(ONECYCLE_START_RATIO, 1.0, step / warmup_steps)
        return peak * (step + 1) / warmup_steps
    if schedule.kind == "constant":
        return peak
    if schedule.kind == "wsd":
        decayed = max(0.0, 1.0 - (config.steps - step) / config.decay_steps)
        # Hagele et al. 2024 (https://arxiv.org/abs/2405.18392) found that 1 - sqrt is better than linear decay.
        return peak * (floor + (1.0 - floor) * (1.0 - math.sqrt(min(1.0, decayed))))
    progress = (step - warmup_steps) / max(1, config.steps - warmup_steps)
    return peak * _half_cosine(1.0, floor, min(1.0, progress))


def _half_cosine(begin: float, end: float, progress: float) -> float:
    return end + (begin - end) * 0.5 * (1.0 + math.cos(math.pi * progress))
