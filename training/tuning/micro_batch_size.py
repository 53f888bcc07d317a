"""Finds the largest micro-batch size that fits on every rank. Weights and RNG state remain unchanged."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from training.checkpoint.state.generators import random_state, restore_random_state
from training.errors import OutOfMemoryError
from training.process.buffers import preserved_state
from training.process.distributed import ControlFlags, Gang
from training.process.out_of_memory import is_out_of_memory

logger = logging.getLogger(__name__)

MOMENTS = 2
"""Number of state tensors per parameter that AdamW allocates in its first step. Trials must leave room for them."""
USABLE_SHARE = 0.92
"""Usable share of GPU memory. The remainder is for fragmentation and for later allocations by NCCL and the compiler."""


@dataclass(frozen=True)
class Trial:
    """Tries micro-batch sizes.

    Attributes:
        model: model to try; its weights remain unchanged, and its buffers and gradients are restored.
        passes: function that runs forward and backward passes over a number of sequences, without exchanging gradients.
        max_sequences: largest size to try: this rank's share of the global batch.
        before_each: function called on all ranks before each size; raising an exception ends the search.
    """

    model: nn.Module
    passes: Callable[[int], None]
    max_sequences: int
    before_each: Callable[[], None] = lambda: None


def find_micro_batch(trial: Trial, gang: Gang) -> int:
    """Return the largest size that fits on every rank, found by doubling and then by bisection.

    Raises:
        OutOfMemoryError: Not even one sequence fits.
    """
    # The ranks' shares differ by at most one sequence. All ranks use the largest, so that they try the same sizes.
    limit = max(gang.gather(trial.max_sequences))
    fits, size = 0, 1
    too_large = limit + 1
    states = random_state(gang.device)
    with preserved_state(trial.model):
        while fits < too_large - 1:
            trial.before_each()
            if _fits_everywhere(trial, gang, size):
                fits = size
            else:
                too_large = size
            size = min(2 * fits, limit) if too_large > limit else (fits + too_large) // 2
            size = max(size, fits + 1)
    restore_random_state(states, gang.device)
    if fits == 0:
        raise OutOfMemoryError(
            "out of memory with a micro-batch of one sequence: lower model.sequence_length, set "
            "execution.activation_checkpointing: true, or use a smaller model or a larger GPU"
        )
    logger.info("micro-batch size: %d sequences fit on every rank (at most %d allowed)", fits, limit)
    return fits


def _fits_everywhere(trial: Trial, gang: Gang, size: int) -> bool:
    fits = _fits(trial, gang.device, size)
    return not gang.agree(ControlFlags(failed=float(not fits))).failed


def _fits(trial: Trial, device: torch.device, size: int) -> bool:
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    room: list[torch.Tensor] = []
    try:
        room += [torch.empty_like(p) for p in trial.model.parameters() if p.requires_grad for _ in range(MOMENTS)]
        trial.passes(size)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        # Otherwise, memory referenced by the exception's traceback would reduce the memory for the next trial.
        del room
        trial.model.zero_grad()
        if on_gpu:
            gc.collect()
            torch.cuda.empty_cache()
    if not on_gpu:
        return True
    total_bytes = torch.cuda.get_device_properties(device).total_memory
    return torch.cuda.max_memory_reserved(device) <= USABLE_SHARE * total_bytes
