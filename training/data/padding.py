"""Batches of samples that are not equally long."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def pad(sequences: Sequence[Tensor], value: float, multiple_of: int = 1) -> tuple[Tensor, Tensor]:
    """Put sequences into one tensor, filled up behind the shorter ones.

    Args:
        sequences: of the same type, and of the same shape but for the first dimension.
        value: that fills up: a padding token for inputs, ``training.data.samples.NO_TARGET`` for targets.
        multiple_of: length of the result; a few lengths rather than many let torch.compile keep its kernels.

    Returns:
        The padded sequences, and a mask that is true where they are not padding.

    Shapes: each of ``sequences`` [length, ...]; results [sequences, longest, ...] and [sequences, longest] bool.
    """
    longest = max(len(sequence) for sequence in sequences)
    longest += -longest % multiple_of
    padded = sequences[0].new_full((len(sequences), longest, *sequences[0].shape[1:]), value)
    mask = torch.zeros(len(sequences), longest, dtype=torch.bool)
    for number, sequence in enumerate(sequences):
        padded[number, : len(sequence)] = sequence
        mask[number, : len(sequence)] = True
    return padded, mask
