"""The task that all trainers solve (a model, its initial weights, its batches and its settings), and their results."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from training.config import ModelShape
from training.models.gpt import GPT

STEPS = 200
GLOBAL_BATCH = 8
MICRO_BATCH = 4
VOCABULARY_SIZE = 256
SHAPE = ModelShape(num_hidden_layers=2, num_attention_heads=2, hidden_size=64, sequence_length=32)
PEAK_RATE = 2e-3
FINAL_RATIO = 0.1
WARMUP_STEPS = 20
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1
MAX_GRADIENT_NORM = 1.0
SEED = 5


@dataclass(frozen=True)
class Result:
    """The results of a trainer.

    Attributes:
        losses: mean loss of each step's global batch.
        gradient_norms: gradient norm of each step, before clipping.
    """

    losses: list[float]
    gradient_norms: list[float]

    def write(self, folder: Path, name: str, model: nn.Module) -> None:
        """Write the result, and the model's final weights."""
        (folder / f"{name}.json").write_text(json.dumps(asdict(self)), encoding="utf-8")
        torch.save({key: parameter.detach() for key, parameter in model.named_parameters()}, folder / f"{name}.pt")


def read_result(folder: Path, name: str) -> tuple[Result, dict[str, Tensor]]:
    """Read a result, and the final weights by name."""
    document = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return Result(**document), torch.load(folder / f"{name}.pt", weights_only=True)


@dataclass(frozen=True)
class Task:
    """The task, as a peer reads it.

    Attributes:
        rows: token ids of all samples, in the order of training. Shape: [steps * global batch, sequence length + 1].
        weights: initial weights by name.
    """

    rows: Tensor
    weights: dict[str, Tensor]

    def model(self) -> GPT:
        """Return the model with the initial weights."""
        model = GPT(SHAPE, VOCABULARY_SIZE)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(self.weights[name])
        return model

    def samples(self) -> list[tuple[Tensor, Tensor]]:
        """Return each sample's inputs and targets."""
        return [(row[:-1], row[1:]) for row in self.rows]

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the inputs and targets of each global batch."""
        for first in range(0, len(self.rows), GLOBAL_BATCH):
            rows = self.rows[first : first + GLOBAL_BATCH]
            yield rows[:, :-1], rows[:, 1:]


def rate_ratio(step: int) -> float:
    """Return the learning rate of a step, counted from 0, as a ratio of its peak: linear warm-up, then a cosine."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / (STEPS - WARMUP_STEPS)
    return FINAL_RATIO + (1 - FINAL_RATIO) * (1 + math.cos(math.pi * progress)) / 2


def optimizer_of(model: nn.Module) -> torch.optim.AdamW:
    """Return torch's AdamW, in its default implementation, with weight decay for matrices only."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=PEAK_RATE, betas=BETAS)
