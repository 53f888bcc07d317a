"""Functions for the steps of a pipeline: ``function: training.inference.steps:evaluate``, and ``run: export``."""

from __future__ import annotations

from pathlib import Path

from training.errors import ConfigurationError
from training.inference.evaluate import evaluate as evaluate_model
from training.inference.trained import open_trained, open_validation
from training.inference.weights import write_weights

BATCH_SIZE = 8


def evaluate(weights: str, dataset: Path) -> dict[str, float]:
    """Return the loss on the validation split, in nats per token, and in bits per byte of text.

    Raises:
        TrainingError: The checkpoint or the dataset cannot be opened.
    """
    result = evaluate_model(open_trained(weights), open_validation(str(dataset), dataset), BATCH_SIZE)
    return {"validation_loss": result.loss, "bits_per_byte": result.bits_per_byte}


def export(weights: str, dataset: Path, output: Path) -> None:
    """Write the weights to ``output/weights`` as a folder that transformers loads.

    Raises:
        TrainingError: The checkpoint cannot be opened, or belongs to a model that transformers does not support.
    """
    folder = output / "weights"
    if folder.exists():
        raise ConfigurationError([f"{folder}: exists; the generation has already exported the weights"])
    write_weights(weights, folder, "hugging-face", str(dataset))
