"""Evaluates a model on a dataset's validation split: ``python -m training evaluate``."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from training.data.dataset import Dataset
from training.data.samples import samples_of
from training.errors import ConfigurationError
from training.inference.trained import Trained, open_trained, open_validation, perplexity, tokenizer_of


@dataclass(frozen=True)
class Evaluation:
    """A measurement.

    Attributes:
        loss: mean cross-entropy in nats per token.
        perplexity: exp of the loss.
        bits_per_byte: loss in bits per UTF-8 byte of text, which does not depend on the tokenizer.
        tokens: number of predicted tokens.
    """

    loss: float
    perplexity: float
    bits_per_byte: float
    tokens: int


def run_evaluate(options: argparse.Namespace) -> int:
    """Run the command; return its exit code.

    Raises:
        TrainingError: The options are invalid, or the model or dataset cannot be opened.
    """
    if options.batch_size < 1:
        raise ConfigurationError([f"--batch-size: {options.batch_size}: must be at least 1; raise it"])
    trained = open_trained(options.model)
    tokenizer_of(options.dataset, trained.tokenizer_sha256)
    with TemporaryDirectory(prefix="trainstack-validation-") as work:
        result = evaluate(trained, open_validation(options.dataset, Path(work)), options.batch_size)
    if options.json:
        sys.stdout.write(json.dumps({"model": trained.title, "dataset": options.dataset, **asdict(result)}) + "\n")
        return 0
    sys.stdout.write(
        f"{trained.title} on the validation split of {options.dataset}: loss {result.loss:.4f} nats per token, "
        f"perplexity {result.perplexity:.2f}, {result.bits_per_byte:.4f} bits per byte, {result.tokens:,} tokens\n"
    )
    return 0


@torch.no_grad()
def evaluate(trained: Trained, dataset: Dataset, batch_size: int) -> Evaluation:
    """Evaluate a model on all samples of the validation split, divided into samples as in the run.

    Raises:
        ConfigurationError: The split is shorter than one sequence, or has another vocabulary.
    """
    record = dataset.record
    if record.vocabulary_size != trained.vocabulary_size:
        raise ConfigurationError(
            [
                f"{dataset.directory}: has {record.vocabulary_size} token ids, but {trained.title} has "
                f"{trained.vocabulary_size}; use a dataset with the model's tokenizer"
            ]
        )
    split, length = dataset.split("validation"), trained.config.shape.sequence_length
    samples = samples_of(dataset, "validation", length, "apart" if trained.samples == "apart" else "joined")
    if not samples.count:
        raise ConfigurationError(
            [
                f"{dataset.directory}: {split.tokens} tokens for validation, but a sequence needs {length + 1}; "
                "use a dataset with more text"
            ]
        )
    total, targets = 0.0, 0
    for first in range(0, samples.count, batch_size):
        numbers = np.arange(first, min(first + batch_size, samples.count))
        rows = np.empty((len(numbers), length + 1), dtype=np.int64)
        samples.fill(numbers, rows)
        batch = torch.from_numpy(rows).to(trained.device)
        count = samples.targets(numbers)
        inputs = batch[:, :-1].clamp(min=0)  # padding has no embedding
        total += trained.model(inputs, batch[:, 1:]).item() * count
        targets += count
    loss = total / targets
    return Evaluation(loss, perplexity(loss), loss / math.log(2) / record.bytes_per_token, targets)
