"""Batches of token rows for the training loop."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from training.data.device_copy import HostToDeviceCopier, PendingRows
from training.data.order import Order, SampleOrder, permuted
from training.data.samples import Samples
from training.process.batch import Batch, LossTerms


class TrainBatches:
    """Batches from the train split, in the run's order. The position alone determines a batch.

    Args:
        samples: samples in the train split.
        seed: the run's seed.
        device: device that receives the batches.
        global_batch_size: samples per step, needed to prefetch the next step's first micro-batch.
        order: sample order; None: shuffled within each epoch.

    Attributes:
        samples: samples per epoch.
    """

    def __init__(
        self,
        samples: Samples,
        seed: int,
        device: torch.device,
        global_batch_size: int,
        order: Order | None = None,
    ) -> None:
        self._samples = samples
        self.samples = samples.count
        self._order: Order = order or SampleOrder(samples.count, seed)
        self._copier = HostToDeviceCopier(device)
        self._global_batch_size = global_batch_size
        self._prefetched: tuple[int, int, tuple[PendingRows, int]] | None = None

    def samples_at(self, position: int, share: range) -> npt.NDArray[np.int64]:
        """Return the sample numbers in a ``share`` of the global batch that starts at ``position``."""
        return self._order.at(position + share.start, len(share))

    def loss_terms(self, position: int) -> LossTerms:
        """Return the number of targets in the global batch at ``position``, over all ranks and without padding."""
        if not self._samples.has_padding:
            return LossTerms(self._global_batch_size * self._samples.sequence_length)
        return LossTerms(self._samples.targets(self.samples_at(position, range(self._global_batch_size))))

    def micro_batches(self, position: int, share: range, max_sequences: int) -> Iterator[Batch]:
        """Yield a share of a global batch, at most ``max_sequences`` at a time: inputs and targets.

        On a GPU, the copy of the next micro-batch starts before the current one is yielded.

        Shapes: each [sequences, sequence_length] int64 on the device.
        """
        starts = range(0, len(share), max_sequences)
        parts = [(position + share.start + first, min(max_sequences, len(share) - first)) for first in starts]
        following = [(start + self._global_batch_size, count) for start, count in parts[:1]]
        for part, after in zip(parts, parts[1:] + following, strict=True):
            rows, targets = self._take(*part)
            if self._copier.is_asynchronous:
                self._prefetched = (*after, self._start(*after))
            yield _batch(rows.receive(), targets, self._samples.has_padding)

    def example(self, sequences: int) -> Batch:
        """Return a batch with the first samples."""
        numbers = np.arange(sequences, dtype=np.int64) % self.samples
        width = self._samples.sequence_length + 1
        rows = self._copier.start(sequences, width, lambda rows: self._samples.fill(numbers, rows))
        return _batch(rows.receive(), self._samples.targets(numbers), self._samples.has_padding)

    def _take(self, position: int, count: int) -> tuple[PendingRows, int]:
        prefetched, self._prefetched = self._prefetched, None
        if prefetched is not None and prefetched[:2] == (position, count):
            return prefetched[2]
        return self._start(position, count)

    def _start(self, position: int, count: int) -> tuple[PendingRows, int]:
        numbers = self.samples_at(position, range(count))
        width = self._samples.sequence_length + 1
        rows = self._copier.start(count, width, lambda rows: self._samples.fill(numbers, rows))
        return rows, self._samples.targets(numbers)


class ValidationBatches:
    """A fixed random subset of the validation split. It is the same in every run and at any world size.

    Args:
        samples: samples in the validation split.
        max_sequences: size of the subset if the split is large enough.
        device: device that receives the batches.

    Attributes:
        sequences: size of the subset.
    """

    def __init__(self, samples: Samples, max_sequences: int, device: torch.device) -> None:
        self._samples = samples
        self._copier = HostToDeviceCopier(device)
        self.sequences = min(max_sequences, samples.count)
        places = np.arange(self.sequences, dtype=np.uint64)
        self._numbers = permuted(places, samples.count, b"validation").astype(np.int64)

    def rows(self, numbers: range) -> Batch:
        """Return inputs and targets for part of the subset. Shapes: each [len(numbers), sequence_length] int64."""
        chosen = self._numbers[numbers.start : numbers.stop]
        width = self._samples.sequence_length + 1
        rows = self._copier.start(len(chosen), width, lambda rows: self._samples.fill(chosen, rows))
        return _batch(rows.receive(), self._samples.targets(chosen), self._samples.has_padding)


def _batch(rows: Tensor, targets: int, has_padding: bool) -> Batch:
    """Split rows [sequences, sequence_length + 1] into inputs and targets. Inputs in the padding become token 0.

    These inputs do not affect the loss: causal attention hides them from earlier tokens, and they have no target.
    """
    inputs = rows[:, :-1].clamp(min=0) if has_padding else rows[:, :-1]
    return Batch((inputs, rows[:, 1:]), targets)
