"""Trained models: checkpoints of a GPT and of a Llama with random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.checkpoint.runs import manifest, start
from training.checkpoint.manifest import Subject
from training.checkpoint.storage.urls import open_backend
from training.config import TrainingConfig
from training.data.dataset import open_dataset
from training.models.gpt import GPT
from training.models.llama import Llama
from training.models.named import build_named_model

SIZES = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "sequence_length": 32}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": SIZES,
    "llama": {**SIZES, "architecture": "llama", "num_key_value_heads": 2},
}
Store = Callable[[str], tuple[str, GPT | Llama]]


@pytest.fixture
def store(tmp_path: Path, tiny_dataset: Path) -> Store:
    """Save a model with random weights, biases and norms as step 3 of a run; return its store and the model."""

    def make(kind: str) -> tuple[str, GPT | Llama]:
        record = open_dataset(tiny_dataset).record
        config = TrainingConfig.model_validate({"model": MODELS[kind]})
        torch.manual_seed(5)
        model = build_named_model(config.model, record.vocabulary_size).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
        subject = Subject(
            **config.model.shape._asdict(),
            vocabulary_size=record.vocabulary_size,
            dataset_name=record.name,
            dataset_identity=record.identity(),
            tokenizer_sha256=record.tokenizer.sha256,
            samples="joined",
        )
        url = str(tmp_path / f"store-{kind}")
        writer = start(open_backend(url))
        tensors = {f"model/{name}": each.detach() for name, each in model.named_parameters()}
        about = {"subject": subject, "config": config.model_dump(mode="json")}
        writer.begin(tensors, {}, manifest(3).model_copy(update=about), "end")
        writer.wait()
        assert writer.error is None
        return url, model

    return make
