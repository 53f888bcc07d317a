"""The largest micro-batch that fits, the same on all ranks, found without a trace in weights and random numbers."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from training.checkpoint.state import random_state, restore_random_state
from training.distributed import Gang, Votes
from training.errors import OutOfMemoryError
from training.memory import is_out_of_memory

logger = logging.getLogger(__name__)

MOMENTS = 2
"""Tensors that AdamW keeps for each parameter from its first step on: an attempt before it must leave room for them."""
USABLE_SHARE = 0.92
"""Of the GPU's memory: what is left is for fragmentation, and for what NCCL and the compiler take later."""


@dataclass(frozen=True)
class Trial:
    """What to try.

    Attributes:
        model: its buffers and gradients are as before afterwards; its weights are never touched.
        passes: runs forward and backward over a micro-batch of so many sequences, and exchanges nothing.
        most_sequences: that a micro-batch can have: this rank's share of the global batch.
        before_each: called on all ranks before each size; what it raises ends the search.
    """

    model: nn.Module
    passes: Callable[[int], None]
    most_sequences: int
    before_each: Callable[[], None] = lambda: None


def find_micro_batch(trial: Trial, gang: Gang) -> int:
    """Return the most sequences that fit on every rank: doubled until they do not, then halved in between.

    Raises:
        OutOfMemoryError: not even one fits.
    """
    # Shares differ by one sequence; with the largest, every rank tries the same sizes.
    most = max(gang.gather(trial.most_sequences))
    fits, size = 0, 1
    too_large = most + 1
    buffers = {name: buffer.clone() for name, buffer in trial.model.named_buffers()}
    states = random_state(gang.device)
    while fits < too_large - 1:
        trial.before_each()
        if _fits_everywhere(trial, gang, size):
            fits = size
        else:
            too_large = size
        size = min(2 * fits, most) if too_large > most else (fits + too_large) // 2
        size = max(size, fits + 1)
    with torch.no_grad():
        for name, buffer in trial.model.named_buffers():
            buffer.copy_(buffers[name])
    restore_random_state(states, gang.device)
    if fits == 0:
        raise OutOfMemoryError(
            "memory is not enough for a micro-batch of one sequence: shorten model.context, set "
            "execution.activation_checkpointing, or take a smaller model or a larger GPU"
        )
    logger.info("micro-batch: %d of at most %d sequences fit on every rank", fits, most)
    return fits


def _fits_everywhere(trial: Trial, gang: Gang, size: int) -> bool:
    fits = _fits(trial, gang.device, size)
    return not gang.agree(Votes(failed=float(not fits))).failed


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
        # What an exception's traceback holds on to would count against the next attempt.
        del room
        trial.model.zero_grad()
        if on_gpu:
            gc.collect()
            torch.cuda.empty_cache()
    if not on_gpu:
        return True
    total_bytes = torch.cuda.get_device_properties(device).total_memory
    return torch.cuda.max_memory_reserved(device) <= USABLE_SHARE * total_bytes
