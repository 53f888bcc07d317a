"""Process-wide switches of torch and Python: threads, attention kernels, memory, garbage collection."""

from __future__ import annotations

import gc
import logging
import os
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from training.config import TrainingConfig
from training.errors import ConfigurationError
from training.execution_settings import ExecutionConfig
from training.precision import Precision

logger = logging.getLogger(__name__)

ATTENTION = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
COMPILE_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


def set_up_process(config: TrainingConfig, local_world_size: int, run_directory: Path) -> None:
    """Set what concerns the whole process, before the first tensor.

    Args:
        config: of the run.
        local_world_size: processes that share this node's cores.
        run_directory: beside which compiled kernels are kept, for the generations to come, unless torch's own
            variables name another place.
    """
    threads = config.threads or max(1, len(os.sched_getaffinity(0)) // local_world_size)
    torch.set_num_threads(threads)
    # Vanishing gradients become denormal numbers, on which a CPU is up to a hundred times slower.
    torch.set_flush_denormal(True)
    for variable, folder in COMPILE_CACHES.items():
        os.environ.setdefault(variable, str(run_directory.absolute().parent / "compile-cache" / folder))
    if config.determinism:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if config.execution.gpu_memory_share is not None and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(config.execution.gpu_memory_share)


def choose_attention(settings: ExecutionConfig, head_channels: int | None, precision: Precision, dropout: float) -> str:
    """Allow the wanted attention kernel alone, and return the one that will run.

    Args:
        settings: that want one.
        head_channels: of an attention head; None if the model is somebody's own.
        precision: of the forward pass.
        dropout: probability within the attention.

    Raises:
        ConfigurationError: it cannot compute this model's attention on this device.
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
                f"execution.attention: {settings.attention} cannot compute heads of {head_channels} channels in "
                f"{precision.format} on this {device.type} ({str(error).splitlines()[0]}); say auto, or another kernel"
            ]
        ) from error
    return settings.attention


class GarbageCollection:
    """Python's collection of reference cycles, at steps of our choosing.

    A collection takes up to a second where there are many objects; at different steps on different ranks, all of them
    wait for each.

    Args:
        interval_steps: between collections; None leaves Python its own way.
    """

    def __init__(self, interval_steps: int | None) -> None:
        self._interval_steps = interval_steps
        if interval_steps is not None:
            gc.collect()
            gc.freeze()
            gc.disable()

    def after_step(self, step: int) -> None:
        """Collect, if it is time."""
        if self._interval_steps is not None and step % self._interval_steps == 0:
            gc.collect()

    def close(self) -> None:
        """Let Python collect by itself again."""
        if self._interval_steps is not None:
            gc.enable()
            gc.unfreeze()
