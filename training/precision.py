"""Which number format the forward pass uses, decided by the hardware where the config says ``auto``."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Literal

import torch

from training.errors import ConfigurationError

Format = Literal["fp32", "bf16", "fp16"]
BF16_COMPUTE_CAPABILITY = 8
"""First major compute capability with bf16 tensor cores (Ampere).
Source: https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#compute-capabilities (2025-03)."""


@dataclass(frozen=True)
class Precision:
    """A chosen number format on a device."""

    format: Format
    device_type: str

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Context for forward passes; does nothing in fp32."""
        if self.format == "fp32":
            return contextlib.nullcontext()
        dtype = torch.bfloat16 if self.format == "bf16" else torch.float16
        return torch.autocast(self.device_type, dtype=dtype)

    def scaler(self) -> torch.amp.GradScaler:
        """Gradient scaler; passes everything through unless the format is fp16."""
        return torch.amp.GradScaler(self.device_type, enabled=self.format == "fp16")


def choose_precision(wanted: Literal["auto", "fp32", "bf16", "fp16"], device: torch.device) -> Precision:
    """Resolve ``auto`` and refuse what the device cannot do.

    Raises:
        ConfigurationError: fp16 on a CPU, or bf16 on a GPU without it.
    """
    if device.type == "cpu":
        if wanted == "fp16":
            raise ConfigurationError(
                ["precision: fp16 needs a GPU, and this process has none; say auto, fp32 or bf16, or use a GPU node"]
            )
        return Precision("fp32" if wanted == "auto" else wanted, device.type)
    has_bf16 = torch.cuda.get_device_capability(device)[0] >= BF16_COMPUTE_CAPABILITY
    if wanted == "bf16" and not has_bf16:
        name = torch.cuda.get_device_name(device)
        raise ConfigurationError([f"precision: bf16 is not supported by {name}; say auto or fp16"])
    if wanted == "auto":
        wanted = "bf16" if has_bf16 else "fp16"
    return Precision(wanted, device.type)
