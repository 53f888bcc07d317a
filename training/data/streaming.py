"""Token windows out of S3 while training goes on, with a bound on the disk that they take.

The order is shuffled in two steps, so that only part of the dataset is needed at a time: blocks of neighbouring windows
in random order, and the windows of a group of blocks among each other. The group after the one in use is fetched ahead.
Like every order here it is a function of seed and position alone.
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
from training.data.lane import Rows
from training.data.order import permuted
from training.data.samples import Numbers
from training.errors import ConfigurationError, DatasetError

BLOCK_TOKENS = 1 << 20
"""Read from S3 at a time: 2 or 4 MiB, which the time to its first byte does not dominate."""
GROUP_BLOCKS = 64
GROUPS_ON_DISK = 3
"""The one in use, the next one, and, while some process of the node is ahead of the others, one more."""
FETCHES = 16
"""Requests under way at a time."""


@runtime_checkable
class RangeReader(Protocol):
    """Reads parts of objects; :class:`training.checkpoint.s3.S3Backend` is one."""

    url: str

    def get_range(self, key: str, first: int, size: int) -> bytes:
        """``size`` bytes of an object, or fewer at its end."""


class BlockOrder:
    """The order of a run over blocks; see :class:`training.data.order.SampleOrder`.

    Args:
        samples: windows of the dataset.
        block_samples: of a block; the last one may have fewer.
        seed: of the run.
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
        """Samples consumed at global positions ``position`` to ``position + count``. Shapes: result [count] int64."""
        pieces = [np.empty(0, dtype=np.int64)]
        end = position + count
        while position < end:
            _, place = self._enter(position)
            piece = self._numbers[place : place + end - position]
            pieces.append(piece)
            position += len(piece)
        return np.concatenate(pieces)

    def group_at(self, position: int) -> tuple[list[int], range]:
        """Blocks of the group that ``position`` is in, and the positions at which they are used."""
        group, place = self._enter(position)
        blocks = self._blocks_in_order[group * GROUP_BLOCKS : (group + 1) * GROUP_BLOCKS]
        return blocks.tolist(), range(position - place, position - place + len(self._numbers))

    def _enter(self, position: int) -> tuple[int, int]:
        """Work out the group of a position; return its number in the epoch, and the place in it."""
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
    """The token stream of one split, in the shards of a dataset that is somewhere else.

    Attributes:
        tokens: length of the stream.

    Raises:
        DatasetError: its shards are compressed.
    """

    def __init__(self, reader: RangeReader, record: DatasetRecord, split: SplitName) -> None:
        self._reader = reader
        self._shards = record.splits[split].shards
        if any(shard.encoding for shard in self._shards):
            raise DatasetError(
                [
                    f"data.stream_cache_gib: {reader.url}: its files are compressed, and have no parts to read; "
                    "publish it without --compress, or stage it"
                ]
            )
        self._starts = np.cumsum([0, *(shard.tokens for shard in self._shards)])
        self._vocabulary_size = record.vocabulary_size
        self.dtype = np.dtype(record.dtype).newbyteorder("<")
        self.name = split
        self.tokens = int(self._starts[-1])

    def read(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Tokens from ``begin`` to ``end``.

        Raises:
            DatasetError: a shard is shorter than the record says, or a token id is not in the vocabulary.
            StoreError: they cannot be read.
        """
        pieces = []
        while begin < end:
            number = int(np.searchsorted(self._starts, begin, side="right")) - 1
            take = min(end, int(self._starts[number + 1])) - begin
            first = (begin - int(self._starts[number])) * self.dtype.itemsize
            file = self._shards[number].file
            piece = self._reader.get_range(file, first, take * self.dtype.itemsize)
            if len(piece) != take * self.dtype.itemsize:
                raise DatasetError([f"{self._reader.url}/{file}: is shorter than dataset.json says; {REMEDY}"])
            pieces.append(np.frombuffer(piece, self.dtype))
            begin += take
        tokens = np.concatenate(pieces)
        if (largest := int(tokens.max())) >= self._vocabulary_size:
            raise DatasetError(
                [
                    f"{self._reader.url}: token id {largest} is not below vocabulary_size "
                    f"{self._vocabulary_size}; {REMEDY}"
                ]
            )
        return tokens


class KeptWindows:
    """Windows that are read one by one when they are first asked for, and kept: for validation.

    Shapes: see :class:`training.data.samples.Windows`.
    """

    has_padding = False

    def __init__(self, split: RemoteSplit, context: int) -> None:
        self._split = split
        self.context = context
        self.count = max(0, (split.tokens - 1) // context)
        self._kept: dict[int, npt.NDArray[Any]] = {}

    def fill(self, numbers: Numbers, rows: Rows) -> None:
        """Copy windows, and read those that are new, several at a time."""
        new = [number for number in numbers.tolist() if number not in self._kept]
        with ThreadPoolExecutor(FETCHES, thread_name_prefix="dataset-window") as pool:
            read = pool.map(lambda n: self._split.read(n * self.context, (n + 1) * self.context + 1), new)
            self._kept.update(zip(new, read, strict=True))
        for row, number in zip(rows, numbers.tolist(), strict=True):
            row[:] = self._kept[number]

    def targets(self, numbers: Numbers) -> int:
        """Every token of a window but its first is a target."""
        return len(numbers) * self.context


class StreamedWindows:
    """Windows of a split (see :class:`training.data.samples.Windows`), of which only some blocks are on the disk.

    The processes of a node share the directory: each block is fetched by one of them, and one of them deletes.

    Args:
        split: of the dataset.
        context: inputs of a window.
        directory: for blocks.
        most_bytes: of blocks on the disk.

    Raises:
        ConfigurationError: ``most_bytes`` is less than the blocks in use and the next ones take.
    """

    has_padding = False

    def __init__(self, split: RemoteSplit, context: int, directory: Path, most_bytes: int) -> None:
        self._split = split
        self._directory = directory
        self._most_bytes = most_bytes
        self.context = context
        self.count = max(0, (split.tokens - 1) // context)
        self.block_samples = max(1, BLOCK_TOKENS // context)
        block_bytes = (self.block_samples * context + 1) * split.dtype.itemsize
        needed = min(GROUPS_ON_DISK * GROUP_BLOCKS * block_bytes, 2 * split.tokens * split.dtype.itemsize)
        if most_bytes < needed:
            raise ConfigurationError(
                [
                    f"data.stream_cache_gib: {most_bytes / 2**30:.3f} is less than the {needed / 2**30:.3f} that the "
                    "blocks in use and the next ones take; raise it"
                ]
            )
        directory.mkdir(parents=True, exist_ok=True)
        self._pool = ThreadPoolExecutor(FETCHES, thread_name_prefix="dataset-block")
        self._fetches: dict[int, Future[npt.NDArray[Any]]] = {}

    def want(self, blocks: Iterable[int], deletes: bool) -> None:
        """Fetch blocks in the background, in this order, and let go of all others.

        Args:
            blocks: the only ones that are needed from now on.
            deletes: whether others' files go where there are too many: by one process of a node.
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
        """Copy windows, waiting for blocks that are not there yet.

        Raises:
            DatasetError: what was read is not what the record says.
            StoreError: S3 does not answer.
        """
        blocks, places = np.divmod(numbers, self.block_samples)
        for row, block, place in zip(rows, blocks.tolist(), (places * self.context).tolist(), strict=True):
            if block not in self._fetches:
                self._fetches[block] = self._pool.submit(self._fetch, block)
            row[:] = self._fetches[block].result()[place : place + self.context + 1]

    def targets(self, numbers: Numbers) -> int:
        """Every token of a window but its first is a target."""
        return len(numbers) * self.context

    def _name(self, block: int) -> str:
        return f"{self._split.name}-{block:08d}.block"

    def _delete(self, wanted: set[str]) -> None:
        """Delete the oldest files that are not wanted, until the wanted ones have room."""
        others = sorted(
            (path.stat().st_mtime, path.stat().st_size, path)
            for path in self._directory.glob(f"{self._split.name}-*.block")
            if path.name not in wanted
        )
        block_bytes = (self.block_samples * self.context + 1) * self._split.dtype.itemsize
        room = self._most_bytes - len(wanted) * block_bytes - sum(size for _, size, _ in others)
        for _, size, path in others:
            if room >= 0:
                return
            path.unlink()
            room += size

    def _fetch(self, block: int) -> npt.NDArray[Any]:
        """Map a block, after one process of this node has fetched it."""
        path = self._directory / self._name(block)
        with (self._directory / f"{block % FETCHES}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                begin = block * self.block_samples * self.context
                end = min(begin + self.block_samples * self.context, self.count * self.context) + 1
                unfinished = path.with_suffix(".unfinished")
                self._split.read(begin, end).tofile(unfinished)
                unfinished.replace(path)
            # Mapped under the lock: another process may delete it the next moment, and the map stays good.
            return np.asarray(np.memmap(path, self._split.dtype, "r"))


class StreamedOrder:
    """The order of a run over streamed windows, which are fetched as it comes to them.

    Args:
        windows: of the train split.
        seed: of the run.
        deletes: see :meth:`StreamedWindows.want`.
    """

    def __init__(self, windows: StreamedWindows, seed: int, deletes: bool) -> None:
        self.samples = windows.count
        self._windows = windows
        self._deletes = deletes
        self._order = BlockOrder(windows.count, windows.block_samples, seed)
        self._group = range(0)

    def at(self, position: int, count: int) -> Numbers:
        """Samples consumed at global positions ``position`` to ``position + count``. Shapes: result [count] int64."""
        if position not in self._group:
            blocks, self._group = self._order.group_at(position)
            following, _ = self._order.group_at(self._group.stop)
            self._windows.want([*blocks, *following], self._deletes)
        return self._order.at(position, count)
