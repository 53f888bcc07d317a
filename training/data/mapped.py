"""Batches from a user-supplied map-style dataset, fetched by the worker processes of torch's DataLoader.

A batch's position determines its samples and the random numbers for their augmentation. They do not depend on the
number of workers or processes, or on whether the run was resumed.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from training.data.collate import Collate, Collated, bytes_of, on_device
from training.data.order import SampleOrder, permuted
from training.data.probe import probe
from training.data.workers import require_picklable, require_shared_memory, start_forkserver, start_worker
from training.errors import ConfigurationError, TrainingError
from training.process.batch import Batch, LossTerms
from training.user_code import call, shown

Key = tuple[int, int]
"""A position in the run, and a sample number."""
PREFETCHED_BATCHES = 2


def build_dataset(path: str, options: Mapping[str, Any], split: str, directory: Path) -> Any:
    """Create one split of the user's dataset, which must have ``__len__`` and ``__getitem__``.

    Raises:
        ConfigurationError: The function returned a different kind of object, or an empty dataset.
    """
    dataset = call(path, "data.function", options, split=split, directory=directory)
    if isinstance(dataset, IterableDataset):
        raise ConfigurationError(
            [
                f"data.function: {path} returned an IterableDataset for {split!r}; its samples cannot be read by "
                "number; return a map-style dataset, an object with __len__ and __getitem__"
            ]
        )
    if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        raise ConfigurationError(
            [
                f"data.function: {path} returned {shown(dataset)} for {split!r}; it must return a map-style dataset, "
                "an object with __len__ and __getitem__"
            ]
        )
    if len(dataset) == 0:
        raise ConfigurationError([f"data.function: {path} returned an empty dataset for {split!r} in {directory}"])
    return dataset


class _Seeded(Dataset[Any]):
    """Seeds the random number generators for each sample, and restores their states afterward."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed

    def __getitem__(self, key: Key) -> Any:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: list[Key]) -> list[Any]:
        with _saved_random_state():
            return [self._item(*key) for key in keys]

    def _item(self, position: int, number: int) -> Any:
        digest = hashlib.blake2b(f"{self._seed}/{position}".encode(), digest_size=8).digest()
        seed = int.from_bytes(digest, "little") >> 1
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also queue a seed for the GPU
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        return self._dataset[number]


@contextmanager
def _saved_random_state() -> Iterator[None]:
    states = torch.default_generator.get_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])


class _Positions(Sampler[list[Key]]):
    """An endless sequence of micro-batch keys, beginning at a position."""

    def __init__(self, order: SampleOrder, stride: int) -> None:
        self._order = order
        self._stride = stride
        self.begin(0, range(1), 1)

    def begin(self, position: int, share: range, max_sequences: int) -> None:
        """Set the position at which the next iteration begins."""
        self.position, self._share, self._max_sequences = position, share, max_sequences

    def __iter__(self) -> Iterator[list[Key]]:
        position, share, max_sequences = self.position, self._share, self._max_sequences
        while True:
            for first in range(share.start, share.stop, max_sequences):
                count = min(max_sequences, share.stop - first)
                numbers = self._order.at(position + first, count)
                yield list(zip(range(position + first, position + first + count), numbers.tolist(), strict=True))
            position += self._stride


class MappedTrainBatches:
    """Batches from the train split, in the run's order; see :class:`training.data.batches.TrainBatches`.

    Args:
        dataset: the user's dataset.
        seed: the run's seed.
        device: device that receives the batches.
        global_batch_size: samples per step.
        workers: number of processes that fetch samples; 0: fetch in this process.
        prefetch_batches: number of batches that each worker prefetches; None: PREFETCHED_BATCHES.

    Attributes:
        samples: samples per epoch.

    Raises:
        ConfigurationError: The dataset cannot be pickled for the workers.
    """

    def __init__(
        self,
        dataset: Any,
        seed: int,
        device: torch.device,
        global_batch_size: int,
        workers: int,
        prefetch_batches: int | None,
    ) -> None:
        self._seeded, self._collate, self._device = _Seeded(dataset, seed), Collate(dataset), device
        self.samples = len(dataset)
        self._global_batch_size = global_batch_size
        self._targets_per_sample = 1.0
        self._positions = _Positions(SampleOrder(self.samples, seed), global_batch_size)
        self._workers = workers
        self._ahead = (prefetch_batches or PREFETCHED_BATCHES) if workers else 0
        if workers:
            require_picklable(dataset)
            start_forkserver()
        self._loader = DataLoader(
            self._seeded,
            batch_sampler=self._positions,
            collate_fn=self._collate,
            num_workers=workers,
            pin_memory=device.type == "cuda",
            persistent_workers=workers > 0,
            prefetch_factor=self._ahead or None,
            # A forked process would inherit the locks and connections of this process's threads in arbitrary states.
            multiprocessing_context="forkserver" if workers else None,
            worker_init_fn=start_worker,
            # Each iteration draws a seed. Drawing it from the global generator would change resumed runs.
            generator=torch.Generator(),
        )
        self._batches: Iterator[Any] = iter(())
        self._next: tuple[int, range, int] | None = None

    def loss_terms(self, position: int) -> LossTerms:
        """Return the number of samples in a global batch or, with ``targets_of``, an estimate of its targets."""
        if self._collate.counts_samples:
            return LossTerms(self._global_batch_size)
        return LossTerms(2.0 ** round(math.log2(self._global_batch_size * self._targets_per_sample)), is_exact=False)

    def micro_batches(self, position: int, share: range, max_sequences: int) -> Iterator[Batch]:
        """Yield a share of a global batch as batches on the device. Consecutive positions are prefetched."""
        if self._next != (position, share, max_sequences):
            self._positions.begin(position, share, max_sequences)
            self._batches = iter(self._loader)
        self._next = None
        for _ in range(share.start, share.stop, max_sequences):
            yield on_device(self._fetch(), self._device)
        self._next = (position + self._global_batch_size, share, max_sequences)

    def _fetch(self) -> Collated:
        try:
            return cast(Collated, next(self._batches))
        except RuntimeError as error:
            if not str(error).startswith("DataLoader worker (pid"):
                raise
            raise TrainingError(
                f"data.function: {error}; signal 9 often means out of memory (see the kernel log): "
                "lower data.workers or data.prefetch_batches, or use a node with more memory"
            ) from error

    def probe(self) -> list[float | None]:
        """Return numbers that identify the dataset's contents; see :mod:`training.data.probe`."""
        return probe(self.samples, lambda number: self._seeded[number, number])

    def example(self, sequences: int) -> Batch:
        """Fetch the first samples in this process; return them as a batch.

        Raises:
            ConfigurationError: The samples cannot be collated, or the batches do not fit in shared memory.
        """
        try:
            collated = self._collate(self._seeded.__getitems__([(n, n % self.samples) for n in range(sequences)]))
        except TrainingError as error:
            raise ConfigurationError([str(error)]) from error
        if self._workers:
            require_shared_memory(bytes_of(collated.batch), self._workers * self._ahead)
        self._targets_per_sample = max(1.0, collated.targets / sequences)
        return on_device(collated, self._device)


class MappedValidationBatches:
    """A fixed random subset of the validation dataset; see :class:`training.data.batches.ValidationBatches`."""

    def __init__(self, dataset: Any, max_sequences: int, device: torch.device) -> None:
        self._seeded, self._collate, self._device = _Seeded(dataset, 0), Collate(dataset), device
        self.sequences = min(max_sequences, len(dataset))
        places = np.arange(self.sequences, dtype=np.uint64)
        self._numbers = permuted(places, len(dataset), b"validation").tolist()

    def rows(self, numbers: range) -> Batch:
        """Return part of the subset as a batch."""
        keys = [(number, self._numbers[number]) for number in numbers]
        return on_device(self._collate(self._seeded.__getitems__(keys)), self._device)
