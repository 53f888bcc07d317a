"""How weights move: AdamW with decay groups, and the learning rate as a function of the step alone."""

from __future__ import annotations

import math

import torch
from torch import nn

from training.config import OptimizerConfig, TrainingConfig

MINIMUM_RATIOS = {"cosine": 0.1, "onecycle": 4e-6, "wsd": 0.0, "constant": 1.0}
"""Where the config leaves it open. Of onecycle: that of torch's OneCycleLR, 1 / (25 * 1e4)."""
ONECYCLE_START_RATIO = 1 / 25
"""Of the peak, as in torch's OneCycleLR (https://docs.pytorch.org/docs/2.13/generated/torch.optim.lr_scheduler.OneCycleLR.html,
2026-11). Adam's betas are not cycled."""


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW in which only matrices decay; biases and norms have nothing to gain from being pulled to zero."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)


def learning_rate(step: int, config: TrainingConfig) -> float:
    """Learning rate of optimizer step ``step`` (the first is 0).

    A function of the step, with no state of its own: a resumed run cannot be one step off.
    """
    schedule, peak, warmup_steps = config.schedule, config.optimizer.learning_rate, config.warmup_steps
    floor = MINIMUM_RATIOS[schedule.kind] if schedule.minimum_ratio is None else schedule.minimum_ratio
    if step < warmup_steps:
        if schedule.kind == "onecycle":
            return peak * _half_wave(ONECYCLE_START_RATIO, 1.0, step / warmup_steps)
        return peak * (step + 1) / warmup_steps
    if schedule.kind == "constant":
        return peak
    if schedule.kind == "wsd":
        decayed = max(0.0, 1.0 - (config.steps - step) / config.decay_steps)
        # Hagele et al. 2024 (https://arxiv.org/abs/2405.18392) found 1 - sqrt better than a straight line.
        return peak * (floor + (1.0 - floor) * (1.0 - math.sqrt(min(1.0, decayed))))
    progress = (step - warmup_steps) / max(1, config.steps - warmup_steps)
    return peak * _half_wave(1.0, floor, min(1.0, progress))


def _half_wave(begin: float, end: float, progress: float) -> float:
    return end + (begin - end) * 0.5 * (1.0 + math.cos(math.pi * progress))
