"""Memory that was not enough, in words that say what to lower."""

from __future__ import annotations

import torch

from training.errors import OutOfMemoryError


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch could not get memory, on a GPU or the host."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator: can't allocate memory" in str(error)


def explain_out_of_memory(error: RuntimeError, micro_batch_sequences: int, recomputes: bool) -> OutOfMemoryError:
    """Say what to lower, and by how much."""
    if micro_batch_sequences > 1:
        remedy = (
            f"lower micro_batch_sequences from {micro_batch_sequences} to {micro_batch_sequences // 2} (the global "
            "batch stays as it is)"
        )
    else:
        remedy = "micro_batch_sequences is 1 already: shorten model.context, or take a smaller model or a larger GPU"
    if not recomputes:
        remedy += ", or set execution.activation_checkpointing"
    return OutOfMemoryError(f"memory is not enough for a step: {remedy} ({str(error).splitlines()[0]})")
