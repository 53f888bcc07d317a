"""Computes model FLOPs utilization (MFU): the model's FLOPs as a share of the hardware's dense peak."""

from __future__ import annotations

from torch import nn

from hardware import gpu_model
from training.config import ModelShape
from training.process.precision import Format


def multiplying_parameters(model: nn.Module) -> int:
    """Count the parameters that multiply an activation: tied parameters once, embedding lookups not at all."""
    owners = [module for module in model.modules() if not isinstance(module, nn.Embedding)]
    found = {parameter for module in owners for parameter in module.parameters(recurse=False)}
    return sum(parameter.numel() for parameter in found)


def training_flops_per_token(parameters: int, shape: ModelShape) -> float:
    """Return the FLOPs per token for the forward and backward passes: 6 per parameter, plus attention.

    Source: Chowdhery et al. 2022, appendix B (https://arxiv.org/abs/2204.02311). Recomputation is not counted.

    Args:
        parameters: number of parameters that multiply an activation.
        shape: the model's shape.
    """
    return 6.0 * parameters + 12.0 * shape.num_hidden_layers * shape.hidden_size * shape.sequence_length


def peak_flops_per_second(device_name: str, arithmetic: Format) -> float | None:
    """Return a GPU's dense peak; None if the device, or its peak in this number format, is unknown."""
    model = gpu_model(device_name)
    peak = None if model is None else model.peak_teraflops.get(arithmetic)
    return None if peak is None else peak * 1e12
