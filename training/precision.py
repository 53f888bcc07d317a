"""Which number format the forward pass uses, decided by the hardware where the config says ``auto``."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Literal

import torch

from training.errors import ConfigurationError

Format = Literal["fp32", "tf32", "bf16", "fp16"]
AMPERE_COMPUTE_CAPABILITY = 8
"""First major compute capability whose tensor cores know bf16 and TF32.
Source: https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#compute-capabilities (2025-03)."""


@dataclass(frozen=True)
class Precision:
    """A chosen number format on a device."""

    format: Format
    device_type: str

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Context for forward passes; does nothing in fp32 and TF32, whose tensors are the same."""
        if self.format in ("fp32", "tf32"):
            return contextlib.nullcontext()
        dtype = torch.bfloat16 if self.format == "bf16" else torch.float16
        return torch.autocast(self.device_type, dtype=dtype)

    def scaler(self) -> torch.amp.GradScaler:
        """Gradient scaler; passes everything through unless the format is fp16."""
        return torch.amp.GradScaler(self.device_type, enabled=self.format == "fp16")

    def set_up_process(self) -> None:
        """Let multiplications of float32 matrices round to TF32, unless float32 was asked for."""
        torch.set_float32_matmul_precision("highest" if self.format == "fp32" else "high")


def choose_precision(wanted: Format | Literal["auto"], device: torch.device) -> Precision:
    """Resolve ``auto`` and refuse what the device cannot do.

    Raises:
        ConfigurationError: fp16 or TF32 on a CPU, or bf16 or TF32 on a GPU without it.
    """
    if device.type == "cpu":
        if wanted in ("fp16", "tf32"):
            raise ConfigurationError(
                [f"precision: {wanted} needs a GPU, and this process has none; say auto, fp32 or bf16, or use a GPU"]
            )
        return Precision("fp32" if wanted == "auto" else wanted, device.type)
    is_ampere = torch.cuda.get_device_capability(device)[0] >= AMPERE_COMPUTE_CAPABILITY
    if wanted in ("bf16", "tf32") and not is_ampere:
        name = torch.cuda.get_device_name(device)
        raise ConfigurationError([f"precision: {wanted} is not supported by {name}; say auto or fp16"])
    if wanted == "auto":
        wanted = "bf16" if is_ampere else "fp16"
    return Precision(wanted, device.type)
