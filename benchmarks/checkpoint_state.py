"""The state that the checkpoint benchmark saves: GPT-2 124M with AdamW after real optimizer steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from training.checkpoint.state import TrainingState
from training.config import PRESETS, OptimizerConfig
from training.model import GPT
from training.optimization import build_optimizer

VOCABULARY_SIZE = 50304
SEQUENCE_TOKENS = 64
FIRST_STEPS = 3
"""Before them the optimizer's moments are zeros, which compress to nothing."""


class Workload:
    """A model in training. With ``preset`` "demo" instead of "gpt2" it is small enough for a quick try.

    Args:
        preset: named shape.
        threads: CPU threads of training.
    """

    def __init__(self, preset: str, threads: int) -> None:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(True)
        torch.manual_seed(1)
        shape = PRESETS[preset]
        self.model = GPT(shape, VOCABULARY_SIZE)
        optimizer = build_optimizer(self.model, OptimizerConfig(learning_rate=6e-4))
        self.state = TrainingState(self.model, optimizer, torch.amp.GradScaler("cpu", enabled=False))
        self._tokens = min(SEQUENCE_TOKENS, shape.context)
        for _ in range(FIRST_STEPS):
            self.step()

    def step(self) -> None:
        """One real optimizer step on fresh tokens, of the distribution of words in text (Zipf)."""
        weights = 1.0 / torch.arange(1, VOCABULARY_SIZE + 1)
        tokens = torch.multinomial(weights, 2 * (self._tokens + 1), replacement=True).view(2, -1)
        loss = self.model(tokens[:, :-1], tokens[:, 1:]) / (2 * self._tokens)
        loss.backward()
        self.state.optimizer.step()
        self.state.optimizer.zero_grad()

    def change(self) -> None:
        """Change every number of the state a little, as a step does, in a fraction of its time."""
        with torch.no_grad():
            for tensor in self.tensors().values():
                if tensor.is_floating_point():
                    tensor.mul_(1.0001)

    def train_only(self, wanted: Callable[[str], bool]) -> None:
        """Freeze every parameter whose name is not wanted."""
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(wanted(name))

    def untie_head(self) -> None:
        """Give the head a matrix of its own: where the embedding is frozen and the head is not, they are two."""
        head = torch.nn.Parameter(self.model.head.weight.detach().clone())
        self.model.head.weight = head
        self.state.optimizer.add_param_group({**self.state.optimizer.param_groups[0], "params": [head]})

    def tensors(self) -> dict[str, Tensor]:
        """The state by name: what every method saves."""
        return {name: tensor.detach() for name, tensor in self.state.tensors().items()}

    def state_bytes(self) -> int:
        """Plain bytes of the state."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors().values())
