"""Batches of a map-style dataset, fetched by worker processes of torch's DataLoader.

Which samples a batch holds, and the random numbers with which each was augmented, follow from its position alone: not
from the number of workers, of processes, or of resumptions.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import multiprocessing.forkserver
import os
import pickle
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from training.data.child_process import end_with_parent
from training.data.order import SampleOrder, permuted
from training.errors import ConfigurationError, TrainingError
from training.interruption import STOP_SIGNALS, ignore_stop_signals

Key = tuple[int, int]
"""Position in the run, and number of the sample."""
PREFETCHED_BATCHES = 2
MOST_WORKERS = 8
SHARED_MEMORY = "/dev/shm"  # noqa: S108
"""Where worker processes leave their batches on Linux; 64 MB in a container unless asked otherwise.
Source: https://docs.docker.com/reference/cli/docker/container/run/ (2026-11), ``--shm-size``."""


class _Seeded(Dataset[Any]):
    """Gives each sample its own random numbers, and the process its own ones back."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed

    def __getitem__(self, key: Key) -> Any:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: list[Key]) -> list[Any]:
        with _own_random_state():
            return [self._item(*key) for key in keys]

    def _item(self, position: int, number: int) -> Any:
        digest = hashlib.blake2b(f"{self._seed}/{position}".encode(), digest_size=8).digest()
        seed = int.from_bytes(digest, "little") >> 1
        torch.default_generator.manual_seed(seed)  # of all devices would be queued for a GPU that workers never use
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        return self._dataset[number]


@contextmanager
def _own_random_state() -> Iterator[None]:
    states = torch.default_generator.get_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])


class _Positions(Sampler[list[Key]]):
    """Keys of micro-batches from a position on, without end."""

    def __init__(self, order: SampleOrder, stride: int) -> None:
        self._order = order
        self._stride = stride
        self.begin(0, range(1), 1)

    def begin(self, position: int, share: range, most_sequences: int) -> None:
        """Where the next iteration starts."""
        self.position, self._share, self._most = position, share, most_sequences

    def __iter__(self) -> Iterator[list[Key]]:
        position, share, most = self.position, self._share, self._most
        while True:
            for first in range(share.start, share.stop, most):
                count = min(most, share.stop - first)
                numbers = self._order.at(position + first, count)
                yield list(zip(range(position + first, position + first + count), numbers.tolist(), strict=True))
            position += self._stride


class _Collate:
    """The dataset's ``collate_fn``, or torch's default; says in words what cannot become a batch."""

    def __init__(self, dataset: Any) -> None:
        self._collate: Callable[[list[Any]], Any] = getattr(dataset, "collate_fn", None) or default_collate
        self._is_default = self._collate is default_collate

    def __call__(self, items: list[Any]) -> Any:
        try:
            return self._collate(items)
        except (RuntimeError, TypeError) as error:
            if not self._is_default:
                raise
            raise TrainingError(
                f"data.function: samples cannot be put into one batch ({str(error).splitlines()[0]}); give it a "
                "method collate_fn(items), in which training.data.padding.pad makes them equally long"
            ) from error


class MappedTrainBatches:
    """Train samples in the run's order; see :class:`training.data.batches.TrainBatches`.

    Args:
        dataset: of the user.
        seed: of the run.
        device: where batches go.
        global_batch_sequences: how far the position moves from step to step.
        workers: processes that fetch samples; 0: this one does.
        prefetch_batches: how far each worker is ahead; None: some.

    Attributes:
        samples: of an epoch.

    Raises:
        ConfigurationError: workers are wanted, and the dataset cannot be given to them.
    """

    def __init__(
        self,
        dataset: Any,
        seed: int,
        device: torch.device,
        global_batch_sequences: int,
        workers: int,
        prefetch_batches: int | None,
    ) -> None:
        self._seeded, self._collate, self._device = _Seeded(dataset, seed), _Collate(dataset), device
        self.samples = len(dataset)
        self._global_batch_sequences = global_batch_sequences
        self._positions = _Positions(SampleOrder(self.samples, seed), global_batch_sequences)
        self._workers = workers
        self._ahead = (prefetch_batches or PREFETCHED_BATCHES) if workers else 0
        if workers:
            _require_picklable(dataset)
            _start_forkserver()
        self._loader = DataLoader(
            self._seeded,
            batch_sampler=self._positions,
            collate_fn=self._collate,
            num_workers=workers,
            pin_memory=device.type == "cuda",
            persistent_workers=workers > 0,
            prefetch_factor=self._ahead or None,
            # A fork would take over locks and connections that this process's threads hold, in whatever state.
            multiprocessing_context="forkserver" if workers else None,
            worker_init_fn=_start_worker,
            # Each iteration draws a seed: not from the numbers of the run, of which a resumed one would have used more.
            generator=torch.Generator(),
        )
        self._batches: Iterator[Any] = iter(())
        self._goes_on_at: tuple[int, range, int] | None = None

    def loss_terms(self, position: int) -> int:
        """Samples of a global batch."""
        return self._global_batch_sequences

    def micro_batches(self, position: int, share: range, most_sequences: int) -> Iterator[tuple[Any, ...]]:
        """Yield the share's batches, on the device; workers have fetched them unless the position is not the next."""
        if self._goes_on_at != (position, share, most_sequences):
            self._positions.begin(position, share, most_sequences)
            self._batches = iter(self._loader)
        self._goes_on_at = None
        for _ in range(share.start, share.stop, most_sequences):
            yield as_arguments(next(self._batches), self._device)
        self._goes_on_at = (position + self._global_batch_sequences, share, most_sequences)

    def example(self, sequences: int) -> tuple[Any, ...]:
        """A batch of the first samples, fetched by this process.

        Raises:
            ConfigurationError: they cannot be put into a batch, or batches do not fit into shared memory.
        """
        try:
            batch = self._collate(self._seeded.__getitems__([(n, n % self.samples) for n in range(sequences)]))
        except TrainingError as error:
            raise ConfigurationError([str(error)]) from error
        if self._workers:
            _require_shared_memory(_bytes_of(batch), self._workers * self._ahead)
        return as_arguments(batch, self._device)


class MappedValidationBatches:
    """A sample from all over the validation dataset; see :class:`training.data.batches.ValidationBatches`."""

    def __init__(self, dataset: Any, wanted_sequences: int, device: torch.device) -> None:
        self._seeded, self._collate, self._device = _Seeded(dataset, 0), _Collate(dataset), device
        self.sequences = min(wanted_sequences, len(dataset))
        places = np.arange(self.sequences, dtype=np.uint64)
        self._numbers = permuted(places, len(dataset), b"validation").tolist()

    def loss_terms(self) -> int:
        """Samples that are validated on."""
        return self.sequences

    def rows(self, numbers: range) -> tuple[Any, ...]:
        """The batch of these samples of the sample."""
        keys = [(number, self._numbers[number]) for number in numbers]
        return as_arguments(self._collate(self._seeded.__getitems__(keys)), self._device)


def _start_worker(worker: int) -> None:
    ignore_stop_signals(worker)
    end_with_parent()


def worker_count(wanted: int | None, local_world_size: int) -> int:
    """How many workers each trainer process has."""
    if wanted is not None:
        return wanted
    return max(0, min(MOST_WORKERS, len(os.sched_getaffinity(0)) // local_world_size - 1))


def as_arguments(batch: Any, device: torch.device) -> tuple[Any, ...]:
    """A batch as arguments of a model, its tensors on the device."""
    moved = _moved(batch, device)
    return moved if isinstance(moved, tuple) else (moved,)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {key: _moved(each, device) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(_moved(each, device) for each in value)
    return value


def _bytes_of(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, (tuple, list)) else ()
    return sum(_bytes_of(each) for each in values)


def _start_forkserver() -> None:
    """Start the process that workers are forked from, if there is none.

    It is started with the stop signals blocked: one that goes to the whole process group would end it, and then the
    workers, before the last save.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(["torch.utils.data", "training.data.mapped"])
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _require_picklable(dataset: Any) -> None:
    try:
        pickle.dumps(dataset)
    # Pickling runs the dataset's own code, which may raise anything.
    except Exception as error:  # noqa: BLE001
        raise ConfigurationError(
            [
                f"data.function: the dataset cannot be given to worker processes ({error}); open files and connections "
                "when they are first used, and name functions rather than writing lambdas; or set data.workers: 0"
            ]
        ) from error


def _require_shared_memory(batch_bytes: int, batches: int) -> None:
    if not os.path.isdir(SHARED_MEMORY):  # noqa: PTH112
        return
    status = os.statvfs(SHARED_MEMORY)
    free, needed = status.f_bavail * status.f_frsize, batch_bytes * (batches + 1)
    if needed > free:
        raise ConfigurationError(
            [
                f"{SHARED_MEMORY}: {free >> 20} MiB are free, and what workers fetch ahead takes {needed >> 20}; "
                "enlarge it (docker run --shm-size), or lower data.workers, data.prefetch_batches or "
                "micro_batch_sequences"
            ]
        )
