"""Settings of NCCL for a gang that may change in place."""

from __future__ import annotations

import os


def prepare_changes() -> None:
    """Set NCCL's variables for a gang that may change in place. Call it before the first process group.

    torch then neither terminates the process after an aborted collective, nor raises the error in other calls. After an
    abort, NVLink SHARP would fail to form a new communicator. These settings are untested on GPUs.
    Sources (2026-11): https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html and
    https://nvidia.github.io/nvidia-resiliency-ext/inprocess/usage_guide.html
    """
    for name in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_RETHROW_CUDA_ERRORS", "TORCH_NCCL_ENABLE_MONITORING"):
        os.environ[name] = "0"
    os.environ["NCCL_NVLS_ENABLE"] = "0"
