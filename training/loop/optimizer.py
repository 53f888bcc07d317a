"""Creates the optimizer: AdamW with weight decay only for matrices."""

from __future__ import annotations

import torch
from torch import nn

from training.config import OptimizerConfig


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """Return an AdamW optimizer that decays only matrices, because decaying biases and norms does not help."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)
