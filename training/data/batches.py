"""Batches for the training loop: which rows of the token stream this rank puts through the model at a step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from training.data.lane import Lane, Sent
from training.data.order import Order, SampleOrder, permuted
from training.data.samples import Samples

Batch = tuple[Tensor, ...]


class TrainBatches:
    """Train sequences in the run's order. There is no state: what a batch holds follows from its position.

    Args:
        samples: of the train split.
        seed: of the run.
        device: where batches go.
        global_batch_sequences: how far the position moves from step to step; the step after this one is fetched ahead.
        order: of the samples; None: any sample of the epoch may come next.

    Attributes:
        samples: of an epoch.
    """

    def __init__(
        self,
        samples: Samples,
        seed: int,
        device: torch.device,
        global_batch_sequences: int,
        order: Order | None = None,
    ) -> None:
        self._samples = samples
        self.samples = samples.count
        self._order: Order = order or SampleOrder(samples.count, seed)
        self._lane = Lane(device)
        self._global_batch_sequences = global_batch_sequences
        self._ahead: tuple[int, int, Sent] | None = None

    def samples_at(self, position: int, share: range) -> npt.NDArray[np.int64]:
        """Sample numbers of a share of the global batch that starts at ``position``."""
        return self._order.at(position + share.start, len(share))

    def loss_terms(self, position: int) -> int:
        """Targets of the global batch that starts at ``position``, over all ranks; padding is not counted."""
        if not self._samples.has_padding:
            return self._global_batch_sequences * self._samples.context
        return self._samples.targets(self.samples_at(position, range(self._global_batch_sequences)))

    def micro_batches(self, position: int, share: range, most_sequences: int) -> Iterator[Batch]:
        """Yield the share's inputs and targets, at most ``most_sequences`` at a time.

        Where the device works beside the host, the batch after each is on its way before it is yielded.

        Shapes: each [sequences, context] int64 on the device.
        """
        starts = range(0, len(share), most_sequences)
        parts = [(position + share.start + first, min(most_sequences, len(share) - first)) for first in starts]
        following = [(place + self._global_batch_sequences, count) for place, count in parts[:1]]
        for part, after in zip(parts, parts[1:] + following, strict=True):
            sent = self._take(*part)
            if self._lane.is_ahead:
                self._ahead = (*after, self._send(*after))
            yield split_rows(sent.receive(), self._samples.has_padding)

    def example(self, sequences: int) -> Batch:
        """A batch of the first samples."""
        numbers = np.arange(sequences, dtype=np.int64) % self.samples
        sent = self._lane.send(sequences, self._samples.context + 1, lambda rows: self._samples.fill(numbers, rows))
        return split_rows(sent.receive(), self._samples.has_padding)

    def _take(self, place: int, count: int) -> Sent:
        ahead, self._ahead = self._ahead, None
        return ahead[2] if ahead is not None and ahead[:2] == (place, count) else self._send(place, count)

    def _send(self, place: int, count: int) -> Sent:
        numbers = self.samples_at(place, range(count))
        return self._lane.send(count, self._samples.context + 1, lambda rows: self._samples.fill(numbers, rows))


class ValidationBatches:
    """A sample from all over the validation split: the same sequences every time, in every run, at any world size.

    Args:
        samples: of the validation split.
        wanted_sequences: at most this many are used.
        device: where batches go.
    """

    def __init__(self, samples: Samples, wanted_sequences: int, device: torch.device) -> None:
        self._samples = samples
        self._lane = Lane(device)
        self.sequences = min(wanted_sequences, samples.count)
        places = np.arange(self.sequences, dtype=np.uint64)
        self._numbers = permuted(places, samples.count, b"validation").astype(np.int64)

    def loss_terms(self) -> int:
        """Targets of all the sequences; padding is not counted."""
        return self._samples.targets(self._numbers)

    def rows(self, numbers: range) -> Batch:
        """Inputs and targets of these sequences of the sample. Shapes: each [len(numbers), context] int64."""
        chosen = self._numbers[numbers.start : numbers.stop]
        sent = self._lane.send(len(chosen), self._samples.context + 1, lambda rows: self._samples.fill(chosen, rows))
        return split_rows(sent.receive(), self._samples.has_padding)


def split_rows(rows: Tensor, has_padding: bool) -> Batch:
    """Inputs and targets of rows [sequences, context + 1]; an input behind the end of a document is token 0.

    Such an input changes nothing: causal attention hides it from the tokens before it, and it has no target.
    """
    inputs = rows[:, :-1]
    return inputs.clamp(min=0) if has_padding else inputs, rows[:, 1:]
