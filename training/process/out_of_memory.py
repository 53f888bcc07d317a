"""Converts torch's out-of-memory errors to messages with the setting to lower."""

from __future__ import annotations

import torch

from training.errors import OutOfMemoryError


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return True if torch failed to allocate memory, on a GPU or the host."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator: can't allocate memory" in str(error)


def explain_out_of_memory(error: RuntimeError, micro_batch_size: int, recomputes: bool) -> OutOfMemoryError:
    """Return an error with the setting to change in its message.

    Args:
        error: error raised by torch.
        micro_batch_size: current micro-batch size.
        recomputes: True if activation checkpointing is enabled.
    """
    if micro_batch_size > 1:
        remedy = (
            f"lower micro_batch_size from {micro_batch_size} to {micro_batch_size // 2} (global_batch_size stays the "
            "same)"
        )
    else:
        remedy = "micro_batch_size is already 1: lower model.sequence_length, or use a smaller model or a larger GPU"
    if not recomputes:
        remedy += ", or set execution.activation_checkpointing: true"
    return OutOfMemoryError(f"out of memory in a step: {remedy} ({str(error).splitlines()[0]})")
