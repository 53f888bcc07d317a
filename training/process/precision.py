"""Precision of the forward pass. With ``auto``, it depends on the hardware."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Literal

import torch

from training.errors import ConfigurationError

Format = Literal["fp32", "tf32", "bf16", "fp16"]
AMPERE_COMPUTE_CAPABILITY = 8
"""First major compute capability whose tensor cores support bf16 and TF32.
Source: https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#compute-capabilities (2025-03)."""


@dataclass(frozen=True)
class Precision:
    """A number format on a device type."""

    format: Format
    device_type: str

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for forward passes. It has no effect for fp32 and TF32, which both use float32 tensors."""
        if self.format in ("fp32", "tf32"):
            return contextlib.nullcontext()
        dtype = torch.bfloat16 if self.format == "bf16" else torch.float16
        return torch.autocast(self.device_type, dtype=dtype)

    def scaler(self) -> torch.amp.GradScaler:
        """Return a gradient scaler, enabled only for fp16."""
        return torch.amp.GradScaler(self.device_type, enabled=self.format == "fp16")

    def set_up_process(self) -> None:
        """Allow TF32 in float32 matrix multiplications, unless the format is fp32."""
        torch.set_float32_matmul_precision("highest" if self.format == "fp32" else "high")


def choose_precision(requested: Format | Literal["auto"], device: torch.device) -> Precision:
    """Resolve ``auto``, and check that the device supports the format.

    Raises:
        ConfigurationError: The format is fp16 or TF32 and the device is a CPU, or the GPU does not support bf16 or
            TF32.
    """
    if device.type == "cpu":
        if requested in ("fp16", "tf32"):
            raise ConfigurationError(
                [f"precision: {requested} requires a GPU, but none was found; set auto, fp32 or bf16"]
            )
        return Precision("fp32" if requested == "auto" else requested, device.type)
    is_ampere = torch.cuda.get_device_capability(device)[0] >= AMPERE_COMPUTE_CAPABILITY
    if requested in ("bf16", "tf32") and not is_ampere:
        name = torch.cuda.get_device_name(device)
        raise ConfigurationError([f"precision: {name} does not support {requested}; set auto or fp16"])
    if requested == "auto":
        requested = "bf16" if is_ampere else "fp16"
    return Precision(requested, device.type)
