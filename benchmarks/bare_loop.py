"""The loop that people write by hand: the same model and mathematics, and nothing of what a run needs besides."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from training.config import TrainingConfig
from training.model import GPT


class BareLoop:
    """Trains a GPT on the tokens of a file, one step at a time.

    Args:
        config: model, batch, and the optimizer's numbers.
        vocabulary_size: of the tokens.
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

    def seconds_of_a_step(self) -> float:
        """Take a step; return how long it took."""
        began = time.perf_counter()
        context, config = self._config.model.shape.context, self._config
        micro_batch = config.least_micro_batch_sequences
        micro_steps = config.global_batch_sequences // micro_batch
        for _ in range(micro_steps):
            starts = self._random.integers(len(self._tokens) - context - 1, size=micro_batch)
            rows = np.stack([self._tokens[start : start + context + 1] for start in starts]).astype(np.int64)
            batch = torch.from_numpy(rows)
            loss = self._model(batch[:, :-1], batch[:, 1:]) / (config.global_batch_sequences * context)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return time.perf_counter() - began
