"""Estimates the training time of a run from the deployment file: as stated there, or from the model and the GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from hardware import hardware
from stacks.capacity.gpu_memory import VOCABULARY
from stacks.capacity.plan import known_types, processes_per_node
from stacks.config import DeploymentConfig

ASSUMED_UTILIZATION = 0.35
"""Assumed model FLOPs utilization of an estimate. Published values for dense transformers on GPUs are 20% to 50%:
Chowdhery et al. 2022, table 3 (https://arxiv.org/abs/2204.02311)."""


@dataclass(frozen=True)
class TrainingTime:
    """The training time of a complete run on all nodes, without interruptions.

    Attributes:
        hours: Expected training time.
        least_hours: Time that the run cannot undercut, or None if no such bound is known.
        source: The key that states the time, or the assumptions of an estimate.
        is_stated: True if the deployment file states the time.
    """

    hours: float
    least_hours: float | None
    source: str
    is_stated: bool


def training_time(config: DeploymentConfig) -> TrainingTime | None:
    """Return the training time, or None if the deployment file does not determine it.

    A stated time precedes an estimate. An estimate requires a GPT or Llama, and GPUs with known peak rates.
    """
    estimate = _estimate(config)
    least = None if estimate is None else estimate.least_hours
    if config.limits.training_hours is not None:
        return TrainingTime(config.limits.training_hours, least, "limits.training_hours", is_stated=True)
    return estimate


def _estimate(config: DeploymentConfig) -> TrainingTime | None:
    """Return the time for the model's floating-point operations. Source of the count: training/models/flops.py."""
    training, types = config.training.config, known_types(config)
    if training.model.function is not None or training.entrypoint is not None or not types:
        return None
    rates = [_peak_flops(one.gpu, training.precision) for one in types]
    slowest, fastest = min(rates), max(rates)
    if not slowest:
        return None
    shape = training.model.shape
    blocks = 12 * shape.num_hidden_layers * shape.hidden_size**2
    attention = 12.0 * shape.num_hidden_layers * shape.hidden_size * shape.sequence_length
    tokens = training.steps * training.global_batch_size * shape.sequence_length
    gpus = config.capacity.nodes * processes_per_node(config)
    flops = tokens * (6.0 * (blocks + VOCABULARY * shape.hidden_size) + attention)
    # The bound leaves out the output layer, whose size depends on the dataset's vocabulary, the attention matrix, half
    # of which fused kernels skip, and a Llama's keys and values. Early stopping can end the run before its last step.
    least = tokens * 6.0 * blocks * (10 / 12 if training.model.is_llama else 1.0) / (fastest * gpus) / 3600.0
    return TrainingTime(
        hours=flops / (slowest * gpus * ASSUMED_UTILIZATION) / 3600.0,
        least_hours=None if training.early_stopping.patience_validations is not None else least,
        source=f"estimated from the model's size, at {ASSUMED_UTILIZATION:.0%} of the GPUs' peak rate",
        is_stated=False,
    )


def _peak_flops(gpu: str | None, precision: str) -> float:
    """Return a GPU's dense peak rate in operations per second for a number format; 0 if it is unknown."""
    model = None if gpu is None else hardware().gpus.get(gpu)
    if model is None:
        return 0.0
    formats = ("bf16", "fp16") if precision == "auto" else (precision,)
    return next((model.peak_teraflops[name] * 1e12 for name in formats if name in model.peak_teraflops), 0.0)
