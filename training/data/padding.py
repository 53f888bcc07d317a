"""Pads samples to equal length."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def pad(sequences: Sequence[Tensor], value: float, multiple_of: int = 1) -> tuple[Tensor, Tensor]:
    """Stack sequences into one tensor, padding the shorter ones at the end.

    Args:
        sequences: tensors with the same type and, except for the first dimension, the same shape.
        value: padding value, such as a padding token for inputs or ``training.data.samples.NO_TARGET`` for targets.
        multiple_of: round the length up to a multiple of this number, because fewer lengths cause fewer recompilations.

    Returns:
        The padded sequences, and a mask that is False in the padding.

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
