"""The state saved by the checkpoint benchmark: GPT-2 124M with AdamW after real optimizer steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from training.checkpoint.state.training_state import TrainingState
from training.config import PRESETS, OptimizerConfig
from training.loop.optimizer import build_optimizer
from training.models.gpt import GPT

VOCABULARY_SIZE = 50304
SEQUENCE_TOKENS = 64
FIRST_STEPS = 3
"""Number of steps before the first save. The optimizer's moments are initially zeros, which compress to almost
nothing."""


class Workload:
    """A model in training; the ``preset`` "demo" is small enough for a quick test.

    Args:
        preset: name of the shape.
        threads: number of CPU threads for training.
    """

    def __init__(self, preset: str, threads: int) -> None:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(True)
        torch.manual_seed(1)
        shape = PRESETS[preset]
        self.model = GPT(shape, VOCABULARY_SIZE)
        optimizer = build_optimizer(self.model, OptimizerConfig(learning_rate=6e-4))
        self.state = TrainingState(self.model, optimizer, torch.amp.GradScaler("cpu", enabled=False))
        self._tokens = min(SEQUENCE_TOKENS, shape.sequence_length)
        for _ in range(FIRST_STEPS):
            self.step()

    def step(self) -> None:
        """Take one optimizer step on new random tokens, distributed like words in text (Zipf)."""
        weights = 1.0 / torch.arange(1, VOCABULARY_SIZE + 1)
        tokens = torch.multinomial(weights, 2 * (self._tokens + 1), replacement=True).view(2, -1)
        loss = self.model(tokens[:, :-1], tokens[:, 1:]) / (2 * self._tokens)
        loss.backward()
        self.state.optimizer.step()
        self.state.optimizer.zero_grad()

    def change(self) -> None:
        """Change every value in the state slightly, as a step does, but in a fraction of the time."""
        with torch.no_grad():
            for tensor in self.tensors().values():
                if tensor.is_floating_point():
                    tensor.mul_(1.0001)

    def train_only(self, wanted: Callable[[str], bool]) -> None:
        """Freeze the parameters whose names `wanted` rejects."""
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(wanted(name))

    def untie_head(self) -> None:
        """Replace the head's tied weight with a copy, so that the embedding can be frozen and the head trained."""
        head = torch.nn.Parameter(self.model.head.weight.detach().clone())
        self.model.head.weight = head
        self.state.optimizer.add_param_group({**self.state.optimizer.param_groups[0], "params": [head]})

    def tensors(self) -> dict[str, Tensor]:
        """Return the state by name."""
        return {name: tensor.detach() for name, tensor in self.state.tensors().items()}

    def state_bytes(self) -> int:
        """Return the state's plain bytes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors().values())
