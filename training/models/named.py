"""Builds the GPT or Llama that a configuration describes."""

from __future__ import annotations

from training.config import ModelConfig
from training.models.gpt import GPT
from training.models.llama import Llama


def build_named_model(config: ModelConfig, vocabulary_size: int, recomputes: bool = False) -> GPT | Llama:
    """Return a model with random weights.

    Args:
        config: settings without ``function``.
        vocabulary_size: number of token ids.
        recomputes: True to use activation checkpointing.
    """
    assert config.function is None, "a custom model is built by its function"
    if config.is_llama:
        return Llama(config.shape, vocabulary_size, config.resolved_key_value_heads, recomputes)
    return GPT(config.shape, vocabulary_size, config.dropout, recomputes)
