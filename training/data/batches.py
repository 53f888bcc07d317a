"""Batches for the training loop: which rows of the token stream this rank puts through the model at a step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from training.data.dataset import TokenSplit
from training.data.order import permuted, sample_order


def _to_device(rows: npt.NDArray[np.int64], device: torch.device) -> tuple[Tensor, Tensor]:
    """Split rows [sequences, context + 1] into inputs and the targets one place later, both [sequences, context]."""
    tensor = torch.from_numpy(rows)
    if device.type == "cuda":
        tensor = tensor.pin_memory().to(device, non_blocking=True)
    return tensor[:, :-1], tensor[:, 1:]


class TrainBatches:
    """Train sequences in the run's order.

    Args:
        split: the train tokens.
        context: inputs per sequence.
        seed: of the run.
        device: where batches go.
    """

    def __init__(self, split: TokenSplit, context: int, seed: int, device: torch.device) -> None:
        self._split = split
        self._context = context
        self._seed = seed
        self._device = device
        self.samples = split.sequences(context)

    def samples_at(self, position: int, share: range) -> npt.NDArray[np.int64]:
        """Sample numbers of a share of the global batch that starts at ``position``."""
        return sample_order(position + share.start, len(share), self.samples, self._seed).astype(np.int64)

    def micro_batches(self, position: int, share: range, most_sequences: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the share's inputs and targets, at most ``most_sequences`` at a time.

        Shapes: each [sequences, context] int64 on the device.
        """
        samples = self.samples_at(position, share)
        for first in range(0, len(samples), most_sequences):
            starts = samples[first : first + most_sequences] * self._context
            yield _to_device(self._split.rows(starts, self._context + 1), self._device)


class ValidationBatches:
    """A sample from all over the validation split: the same sequences every time, in every run, at any world size.

    Args:
        split: the validation tokens.
        context: inputs per sequence.
        wanted_sequences: at most this many are used.
        device: where batches go.
    """

    def __init__(self, split: TokenSplit, context: int, wanted_sequences: int, device: torch.device) -> None:
        self._split = split
        self._context = context
        self._device = device
        available = split.sequences(context)
        self.sequences = min(wanted_sequences, available)
        places = np.arange(self.sequences, dtype=np.uint64)
        self._samples = permuted(places, available, b"validation").astype(np.int64)

    def rows(self, numbers: range) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these sequences of the sample. Shapes: each [len(numbers), context] int64."""
        starts = self._samples[numbers.start : numbers.stop] * self._context
        return _to_device(self._split.rows(starts, self._context + 1), self._device)
