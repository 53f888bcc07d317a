"""How weights move: AdamW with decay groups, and the learning rate as a function of the step alone."""

from __future__ import annotations

import math

import torch
from torch import nn

from training.config import OptimizerConfig, TrainingConfig


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
    peak = config.optimizer.learning_rate
    if step < config.warmup_steps:
        return peak * (step + 1) / config.warmup_steps
    if config.schedule.kind == "constant":
        return peak
    progress = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    floor = config.schedule.minimum_ratio
    return peak * (floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress))))
