"""Process-wide torch settings: threads, attention kernels and GPU memory."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from training.config import TrainingConfig
from training.config.execution import ExecutionConfig
from training.errors import ConfigurationError
from training.process.precision import Precision

logger = logging.getLogger(__name__)

ATTENTION = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
COMPILE_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


def set_up_process(config: TrainingConfig, local_world_size: int, run_directory: Path) -> None:
    """Apply process-wide settings. Call it before creating the first tensor.

    Args:
        config: training config.
        local_world_size: number of processes that share this node's cores.
        run_directory: run directory. Compiled kernels are cached next to it for later generations, unless torch's
            environment variables set another directory.
    """
    threads = config.threads or max(1, len(os.sched_getaffinity(0)) // local_world_size)
    torch.set_num_threads(threads)
    # Small gradients become denormal numbers, which a CPU processes up to a hundred times as slowly.
    torch.set_flush_denormal(True)
    for variable, folder in COMPILE_CACHES.items():
        os.environ.setdefault(variable, str(run_directory.absolute().parent / "compile-cache" / folder))
    if config.determinism:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if config.execution.gpu_memory_share is not None and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(config.execution.gpu_memory_share)


def choose_attention(settings: ExecutionConfig, head_channels: int | None, precision: Precision, dropout: float) -> str:
    """Enable only the configured attention kernel; return the kernel that will be used.

    Args:
        settings: execution settings.
        head_channels: channels per attention head; None for a user-supplied model.
        precision: precision for the forward pass.
        dropout: dropout probability in the attention.

    Raises:
        ConfigurationError: The kernel does not support this model's attention on this device.
    """
    if settings.attention != "auto":
        torch.backends.cuda.enable_flash_sdp(settings.attention == "flash")
        torch.backends.cuda.enable_mem_efficient_sdp(settings.attention == "memory_efficient")
        torch.backends.cuda.enable_cudnn_sdp(settings.attention == "cudnn")
        torch.backends.cuda.enable_math_sdp(settings.attention == "math")
    if head_channels is None:
        return settings.attention
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision.format, torch.float32)
    device = torch.device(precision.device_type)
    probe = torch.zeros(1, 1, 64, head_channels, dtype=dtype, device=device, requires_grad=True)
    if settings.attention == "auto":
        chosen = torch._fused_sdp_choice(probe, probe, probe, dropout_p=dropout, is_causal=True)
        return next((name for name, backend in ATTENTION.items() if backend.value == chosen), "math")
    try:
        with sdpa_kernel(ATTENTION[settings.attention]):
            scaled_dot_product_attention(probe, probe, probe, is_causal=True, dropout_p=dropout)
    except RuntimeError as error:
        raise ConfigurationError(
            [
                f"execution.attention: {settings.attention} does not support heads of {head_channels} channels in "
                f"{precision.format} on this {device.type} ({str(error).splitlines()[0]}); set auto or another kernel"
            ]
        ) from error
    return settings.attention
