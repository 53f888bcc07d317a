"""Estimates the GPU memory needed to train a GPT, in GiB per GPU. The estimate is conservative (high).

Every process holds a full copy of the model (data parallelism without sharding). Each parameter needs 16 bytes: 4 for
the float32 weight, 4 for the gradient and 8 for Adam's two moments. The total matches Rajbhandari et al. 2020,
https://arxiv.org/abs/1910.02054, section 3.1. Each token needs (34 x hidden size) bytes per layer in 16-bit precision
(Korthikanti et al. 2022, https://arxiv.org/abs/2205.05198, section 4.1). The figure omits the attention matrix, which
the fused kernel never stores. The logits are stored as 16-bit and float32 values, with a float32 gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

from training.config import ModelShape

BYTES_OF_WEIGHT, BYTES_OF_GRADIENT, BYTES_OF_MOMENTS = 4, 4, 8
BYTES_OF_ACTIVATIONS = 34
BYTES_OF_LOGIT = 2 + 4 + 4
VOCABULARY = 50304
"""GPT-2's padded vocabulary size. The vocabulary depends on the dataset, so the model section does not set it."""
RESERVED_GIB = 1.5
"""Allowance for the CUDA context, library workspaces and fragmentation."""
WIDTH_OVER_DEPTH = 64
"""A GPT's hidden size divided by its number of layers: 64 for GPT-2, 128 for GPT-3. Deeper models store more
activations."""
GIB = 2**30


@dataclass(frozen=True)
class GpuMemory:
    """A breakdown of one GPU's memory in GiB."""

    weights_gib: float
    gradients_gib: float
    optimizer_gib: float
    activations_gib: float

    @property
    def total_gib(self) -> float:
        """The sum of all parts, including the memory reserved for the GPU software."""
        return self.weights_gib + self.gradients_gib + self.optimizer_gib + self.activations_gib + RESERVED_GIB

    def __str__(self) -> str:
        return (
            f"weights {self.weights_gib:.1f}, gradients {self.gradients_gib:.1f}, Adam {self.optimizer_gib:.1f}, "
            f"activations {self.activations_gib:.1f}, reserved {RESERVED_GIB}"
        )


def from_shape(shape: ModelShape, tokens: int) -> GpuMemory:
    """Return the memory for a model with a known shape and a micro-batch of `tokens` tokens."""
    layer_parameters = 12 * shape.hidden_size**2
    parameters = shape.num_hidden_layers * layer_parameters + (VOCABULARY + shape.sequence_length) * shape.hidden_size
    return _memory(parameters, shape.num_hidden_layers * shape.hidden_size, tokens)


def from_parameters(parameters: float, tokens: int) -> GpuMemory:
    """Return the memory for a model with a known number of parameters, assuming a typical GPT shape."""
    layers = (parameters / (12 * WIDTH_OVER_DEPTH**2)) ** (1 / 3)
    return _memory(parameters, WIDTH_OVER_DEPTH * layers**2, tokens)


def _memory(parameters: float, channels: float, tokens: int) -> GpuMemory:
    return GpuMemory(
        weights_gib=parameters * BYTES_OF_WEIGHT / GIB,
        gradients_gib=parameters * BYTES_OF_GRADIENT / GIB,
        optimizer_gib=parameters * BYTES_OF_MOMENTS / GIB,
        activations_gib=tokens * (BYTES_OF_ACTIVATIONS * channels + BYTES_OF_LOGIT * VOCABULARY) / GIB,
    )
