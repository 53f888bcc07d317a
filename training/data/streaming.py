"""Streams token windows from S3 during training, within a disk space limit.

The order is shuffled in two steps, so that a run needs only part of the dataset at a time. The first step shuffles
blocks of consecutive windows, and the second shuffles the windows within each group of blocks. The next group is
prefetched. As in the other orders, the seed and the position alone determine a sample.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from training.data.dataset import REMEDY, DatasetRecord, SplitName
from training.data.device_copy import Rows
from training.data.order import permuted
from training.data.samples import Numbers, WindowSamples
from training.errors import ConfigurationError, DatasetError

BLOCK_TOKENS = 1 << 20
"""Tokens per S3 request: 2 or 4 MiB, so that the first-byte latency is a small part of the time."""
GROUP_BLOCKS = 64
GROUPS_ON_DISK = 3
"""Number of groups on disk: the current and the next group, and a third while one of the node's processes is ahead."""
FETCHES = 16
"""Number of concurrent requests."""


@runtime_checkable
class RangeReader(Protocol):
    """Reads byte ranges from objects; implemented by :class:`training.checkpoint.storage.s3.S3Backend`."""

    url: str

    def get_range(self, key: str, first: int, size: int) -> bytes:
        """Return ``size`` bytes of an object, beginning at ``first``; fewer at the object's end."""


class BlockOrder:
    """The sample order of a run that reads blocks; see :class:`training.data.order.SampleOrder`.

    Args:
        samples: number of windows in the dataset.
        block_samples: number of windows per block; the last block may have fewer.
        seed: the run's seed.
    """

    def __init__(self, samples: int, block_samples: int, seed: int) -> None:
        self.samples = samples
        self._block_samples = block_samples
        self._blocks = -(-samples // block_samples)
        self._seed = seed
        self._epoch, self._blocks_in_order, self._group_starts = (
            -1,
            np.empty(0, dtype=np.int64),
            np.zeros(1, dtype=np.int64),
        )
        self._group = (-1, -1)
        self._numbers = np.empty(0, dtype=np.int64)

    def at(self, position: int, count: int) -> Numbers:
        """Return the samples at positions ``position`` to ``position + count``. Shapes: result [count] int64."""
        pieces = [np.empty(0, dtype=np.int64)]
        end = position + count
        while position < end:
            _, place = self._load_group(position)
            piece = self._numbers[place : place + end - position]
            pieces.append(piece)
            position += len(piece)
        return np.concatenate(pieces)

    def group_at(self, position: int) -> tuple[list[int], range]:
        """Return the blocks of the group at ``position``, and the range of positions that use them."""
        group, place = self._load_group(position)
        blocks = self._blocks_in_order[group * GROUP_BLOCKS : (group + 1) * GROUP_BLOCKS]
        return blocks.tolist(), range(position - place, position - place + len(self._numbers))

    def _load_group(self, position: int) -> tuple[int, int]:
        """Compute the order for the group at a position; return the group's number in the epoch, and the offset."""
        epoch, place = divmod(position, self.samples)
        if epoch != self._epoch:
            self._epoch = epoch
            blocks = permuted(
                np.arange(self._blocks, dtype=np.uint64), self._blocks, f"{self._seed}/{epoch}/blocks".encode()
            )
            self._blocks_in_order = blocks.astype(np.int64)
            ends = np.cumsum(self._sizes(self._blocks_in_order))
            self._group_starts = np.concatenate([[0], ends[GROUP_BLOCKS - 1 :: GROUP_BLOCKS]])
        group = int(np.searchsorted(self._group_starts, place, side="right")) - 1
        if (epoch, group) != self._group:
            self._group = (epoch, group)
            blocks_of_group = self._blocks_in_order[group * GROUP_BLOCKS : (group + 1) * GROUP_BLOCKS]
            starts = blocks_of_group * self._block_samples
            numbers = np.concatenate(
                [
                    np.arange(start, start + size)
                    for start, size in zip(starts, self._sizes(blocks_of_group), strict=True)
                ]
            )
            places = permuted(
                np.arange(len(numbers), dtype=np.uint64), len(numbers), f"{self._seed}/{epoch}/{group}".encode()
            )
            self._numbers = numbers[places.astype(np.int64)]
        return group, place - int(self._group_starts[group])

    def _sizes(self, blocks: Numbers) -> Numbers:
        return np.minimum(self._block_samples, self.samples - blocks * self._block_samples)


class RemoteSplit:
    """A remote dataset split's token stream.

    Attributes:
        tokens: length of the stream.

    Raises:
        DatasetError: The shards are compressed.
    """

    def __init__(self, reader: RangeReader, record: DatasetRecord, split: SplitName) -> None:
        self._reader = reader
        self._shards = record.splits[split].shards
        if any(shard.encoding for shard in self._shards):
            raise DatasetError(
                [
                    f"data.stream_cache_gib: {reader.url}: cannot stream a compressed dataset; publish it without "
                    "--compress, or unset the key to stage it"
                ]
            )
        self._starts = np.cumsum([0, *(shard.tokens for shard in self._shards)])
        self._vocabulary_size = record.vocabulary_size
        self.dtype = np.dtype(record.dtype).newbyteorder("<")
        self.name = split
        self.tokens = int(self._starts[-1])

    def read(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Return the tokens from ``begin`` to ``end``.

        Raises:
            DatasetError: A shard is shorter than recorded, or a token id is outside the vocabulary.
            StoreError: A request failed.
        """
        pieces = []
        while begin < end:
            number = int(np.searchsorted(self._starts, begin, side="right")) - 1
            take = min(end, int(self._starts[number + 1])) - begin
            first = (begin - int(self._starts[number])) * self.dtype.itemsize
            file = self._shards[number].file
            piece = self._reader.get_range(file, first, take * self.dtype.itemsize)
            if len(piece) != take * self.dtype.itemsize:
                raise DatasetError([f"{self._reader.url}/{file}: shorter than dataset.json specifies; {REMEDY}"])
            pieces.append(np.frombuffer(piece, self.dtype))
            begin += take
        tokens = np.concatenate(pieces)
        if (largest := int(tokens.max())) >= self._vocabulary_size:
            raise DatasetError(
                [
                    f"{self._reader.url}: token id {largest}: must be below vocabulary_size "
                    f"{self._vocabulary_size}; {REMEDY}"
                ]
            )
        return tokens


class CachedWindows(WindowSamples):
    """Validation windows, each read on first use and cached in memory."""

    def __init__(self, split: RemoteSplit, sequence_length: int) -> None:
        super().__init__(split.tokens, sequence_length)
        self._split = split
        self._cache: dict[int, npt.NDArray[Any]] = {}

    def fill(self, numbers: Numbers, rows: Rows) -> None:
        """Copy windows. Windows that are not in the cache are read first."""
        new = [number for number in numbers.tolist() if number not in self._cache]
        with ThreadPoolExecutor(FETCHES, thread_name_prefix="dataset-window") as pool:
            length = self.sequence_length
            read = pool.map(lambda n: self._split.read(n * length, (n + 1) * length + 1), new)
            self._cache.update(zip(new, read, strict=True))
        for row, number in zip(rows, numbers.tolist(), strict=True):
            row[:] = self._cache[number]


class StreamedWindows(WindowSamples):
    """Windows over a split, with only some of its blocks on disk.

    A node's processes share the directory. Only one process fetches a given block, and only one process deletes blocks.

    Args:
        split: the remote dataset's split.
        sequence_length: number of inputs per window.
        directory: directory for the blocks.
        max_bytes: maximum total size of the blocks on disk.

    Raises:
        ConfigurationError: ``max_bytes`` is too small for the blocks that must be on disk at the same time.
    """

    def __init__(self, split: RemoteSplit, sequence_length: int, directory: Path, max_bytes: int) -> None:
        super().__init__(split.tokens, sequence_length)
        self._split = split
        self._directory = directory
        self._max_bytes = max_bytes
        self.block_samples = max(1, BLOCK_TOKENS // sequence_length)
        block_bytes = (self.block_samples * sequence_length + 1) * split.dtype.itemsize
        needed = min(GROUPS_ON_DISK * GROUP_BLOCKS * block_bytes, 2 * split.tokens * split.dtype.itemsize)
        if max_bytes < needed:
            raise ConfigurationError(
                [
                    f"data.stream_cache_gib: {max_bytes / 2**30:.3f}: must be at least {needed / 2**30:.3f} for "
                    "the current and the next blocks; raise it"
                ]
            )
        directory.mkdir(parents=True, exist_ok=True)
        self._pool = ThreadPoolExecutor(FETCHES, thread_name_prefix="dataset-block")
        self._fetches: dict[int, Future[npt.NDArray[Any]]] = {}

    def prefetch(self, blocks: Iterable[int], deletes: bool) -> None:
        """Fetch blocks in the background, in the given order, and release all other blocks.

        Args:
            blocks: the only blocks needed from now on.
            deletes: True to delete unneeded files if disk space is short; set in one process per node.
        """
        wanted = list(dict.fromkeys(blocks))
        for block in self._fetches.keys() - set(wanted):
            self._fetches.pop(block).cancel()
        if deletes:
            self._delete({self._name(block) for block in wanted})
        for block in wanted:
            if block not in self._fetches:
                self._fetches[block] = self._pool.submit(self._fetch, block)

    def fill(self, numbers: Numbers, rows: Rows) -> None:
        """Copy windows, waiting for blocks that are still being fetched.

        Raises:
            DatasetError: The data does not match the record.
            StoreError: A request to S3 failed.
        """
        blocks, places = np.divmod(numbers, self.block_samples)
        for row, block, place in zip(rows, blocks.tolist(), (places * self.sequence_length).tolist(), strict=True):
            if block not in self._fetches:
                self._fetches[block] = self._pool.submit(self._fetch, block)
            row[:] = self._fetches[block].result()[place : place + self.sequence_length + 1]

    def _name(self, block: int) -> str:
        return f"{self._split.name}-{block:08d}.block"

    def _delete(self, wanted: set[str]) -> None:
        """Delete the oldest unneeded files until the needed ones fit."""
        others = sorted(
            (path.stat().st_mtime, path.stat().st_size, path)
            for path in self._directory.glob(f"{self._split.name}-*.block")
            if path.name not in wanted
        )
        block_bytes = (self.block_samples * self.sequence_length + 1) * self._split.dtype.itemsize
        room = self._max_bytes - len(wanted) * block_bytes - sum(size for _, size, _ in others)
        for _, size, path in others:
            if room >= 0:
                return
            path.unlink()
            room += size

    def _fetch(self, block: int) -> npt.NDArray[Any]:
        """Map a block into memory. Fetch it first if no process on this node has done so."""
        path = self._directory / self._name(block)
        with (self._directory / f"{block % FETCHES}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                begin = block * self.block_samples * self.sequence_length
                end = min(begin + self.block_samples * self.sequence_length, self.count * self.sequence_length) + 1
                unfinished = path.with_suffix(".unfinished")
                self._split.read(begin, end).tofile(unfinished)
                unfinished.replace(path)
            # Map the file under the lock. Another process may delete the file later, but the map remains valid.
            return np.asarray(np.memmap(path, self._split.dtype, "r"))


class StreamedOrder:
    """A run's order over streamed windows; requests blocks as the run reaches them.

    Args:
        windows: windows over the train split.
        seed: the run's seed.
        deletes: whether this process deletes unneeded files; see :meth:`StreamedWindows.prefetch`.
    """

    def __init__(self, windows: StreamedWindows, seed: int, deletes: bool) -> None:
        self.samples = windows.count
        self._windows = windows
        self._deletes = deletes
        self._order = BlockOrder(windows.count, windows.block_samples, seed)
        self._group = range(0)

    def at(self, position: int, count: int) -> Numbers:
        """Return the samples at positions ``position`` to ``position + count``. Shapes: result [count] int64."""
        if position not in self._group:
            blocks, self._group = self._order.group_at(position)
            following, _ = self._order.group_at(self._group.stop)
            self._windows.prefetch([*blocks, *following], self._deletes)
        return self._order.at(position, count)
