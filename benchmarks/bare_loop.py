"""A minimal training loop with the trainer's model and arithmetic, but without its other features."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from training.config import TrainingConfig
from training.models.gpt import GPT


class BareLoop:
    """Trains a GPT on the tokens in a file, one step at a time.

    Args:
        config: model, batch size and optimizer settings.
        vocabulary_size: number of token ids.
        tokens: file of uint16 token ids.
    """

    def __init__(self, config: TrainingConfig, vocabulary_size: int, tokens: Path) -> None:
        torch.manual_seed(config.seed)
        self._config = config
        self._tokens = np.memmap(tokens, dtype="<u2", mode="r")
        self._random = np.random.default_rng(config.seed)
        model = GPT(config.model.shape, vocabulary_size)
        self._parameters = list(model.parameters())
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=config.optimizer.learning_rate, betas=config.optimizer.betas, fused=True
        )
        self._model: nn.Module = torch.compile(model) if config.compile else model  # type: ignore[assignment]

    def time_step(self) -> float:
        """Take a step; return its duration in seconds."""
        started = time.perf_counter()
        length, config = self._config.model.shape.sequence_length, self._config
        micro_batch = config.min_micro_batch_size
        micro_steps = config.global_batch_size // micro_batch
        for _ in range(micro_steps):
            starts = self._random.integers(len(self._tokens) - length - 1, size=micro_batch)
            rows = np.stack([self._tokens[start : start + length + 1] for start in starts]).astype(np.int64)
            batch = torch.from_numpy(rows)
            loss = self._model(batch[:, :-1], batch[:, 1:]) / micro_steps
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return time.perf_counter() - started
