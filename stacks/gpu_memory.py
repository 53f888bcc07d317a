"""How much memory training a GPT takes on one GPU, GiB: an estimate that errs on the large side.

Every process holds the whole model (data parallelism without sharding). Bytes for each parameter: float32 weight 4,
gradient 4, Adam's two moments 8 (Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054, section 3.1, counts the
same 16). Bytes for each token and layer: 34 x hidden width in 16-bit precision; the term of the attention matrix drops
out, since the fused kernel never stores it (Korthikanti et al. 2022, https://arxiv.org/abs/2205.05198, section 4.1).
The logits come besides: 16-bit, float32, and their float32 gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

from training.config import ModelShape

BYTES_OF_WEIGHT, BYTES_OF_GRADIENT, BYTES_OF_MOMENTS = 4, 4, 8
BYTES_OF_ACTIVATIONS = 34
BYTES_OF_LOGIT = 2 + 4 + 4
VOCABULARY = 50304
"""Entries of GPT-2's vocabulary, padded: the model does not say its own, which is the dataset's."""
RESERVED_GIB = 1.5
"""Planning figure for CUDA's context, its libraries' workspaces and fragmentation."""
WIDTH_OVER_DEPTH = 64
"""Hidden width of a GPT divided by its layers: 64 in GPT-2, 128 in GPT-3; a deeper shape takes more activations."""
GIB = 2**30


@dataclass(frozen=True)
class GpuMemory:
    """Where the memory of a GPU goes, GiB."""

    weights_gib: float
    gradients_gib: float
    optimizer_gib: float
    activations_gib: float

    @property
    def total_gib(self) -> float:
        """All of it, with what the GPU's own software takes."""
        return self.weights_gib + self.gradients_gib + self.optimizer_gib + self.activations_gib + RESERVED_GIB

    def __str__(self) -> str:
        return (
            f"weights {self.weights_gib:.1f}, gradients {self.gradients_gib:.1f}, Adam {self.optimizer_gib:.1f}, "
            f"activations {self.activations_gib:.1f}, reserved {RESERVED_GIB}"
        )


def from_shape(shape: ModelShape, tokens: int) -> GpuMemory:
    """Return the memory of a model of known shape, with a micro-batch of so many tokens."""
    layer_parameters = 12 * shape.embedding**2
    parameters = shape.layers * layer_parameters + (VOCABULARY + shape.context) * shape.embedding
    return _memory(parameters, shape.layers * shape.embedding, tokens)


def from_parameters(parameters: float, tokens: int) -> GpuMemory:
    """Return the memory of a model of which the size alone is known: of a GPT's usual shape."""
    layers = (parameters / (12 * WIDTH_OVER_DEPTH**2)) ** (1 / 3)
    return _memory(parameters, WIDTH_OVER_DEPTH * layers**2, tokens)


def _memory(parameters: float, channels: float, tokens: int) -> GpuMemory:
    return GpuMemory(
        weights_gib=parameters * BYTES_OF_WEIGHT / GIB,
        gradients_gib=parameters * BYTES_OF_GRADIENT / GIB,
        optimizer_gib=parameters * BYTES_OF_MOMENTS / GIB,
        activations_gib=tokens * (BYTES_OF_ACTIVATIONS * channels + BYTES_OF_LOGIT * VOCABULARY) / GIB,
    )
