"""Throughput of token batches, compared with torch's DataLoader on the same file.

``python -m benchmarks.loader`` writes a file of random tokens, reads shuffled batches from it alternately with each
loader, and prints each loader's best rate over all rounds, in tokens per second, as JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler

from training.data.batches import TrainBatches
from training.data.dataset import ShardRecord, TokenSplit
from training.data.samples import Windows

VOCABULARY_SIZE = 50257
CPU = torch.device("cpu")
Batches = Iterator[Any]


@dataclass(frozen=True)
class LoaderFigures:
    """Results.

    Attributes:
        tokens: number of tokens in the file.
        batch_size: number of sequences per batch.
        sequence_length: number of tokens per sequence.
        tokens_per_second: rate of this project's loader.
        dataloader_tokens_per_second: rate of torch's DataLoader, by number of workers.
    """

    tokens: int
    batch_size: int
    sequence_length: int
    tokens_per_second: float
    dataloader_tokens_per_second: dict[str, float]


class _MappedTokens(Dataset[tuple[Tensor, Tensor]]):
    """The file as a typical map-style dataset: a memory map with two tensors per item."""

    def __init__(self, file: Path, sequence_length: int) -> None:
        self._file, self._sequence_length = file, sequence_length
        self._tokens: Any = None
        self._length = (file.stat().st_size // 2 - 1) // sequence_length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        if self._tokens is None:  # opened in the worker, since a memory map cannot be pickled
            self._tokens = np.memmap(self._file, dtype="<u2", mode="r")
        start = number * self._sequence_length
        row = torch.from_numpy(self._tokens[start : start + self._sequence_length + 1].astype(np.int64))
        return row[:-1], row[1:]


def measure(
    tokens: int = 64_000_000,
    sequence_length: int = 1024,
    batch_size: int = 12,
    workers: tuple[int, ...] = (0, 2),
    rounds: int = 5,
    round_seconds: float = 0.5,
) -> LoaderFigures:
    """Measure the loaders alternately on a new file; return each loader's best round."""
    with tempfile.TemporaryDirectory(prefix="loader-") as directory:
        file = Path(directory) / "train-00000.bin"
        np.random.default_rng(1).integers(0, VOCABULARY_SIZE, tokens, dtype=np.uint16).tofile(file)
        loaders = {"ours": _ours(file, tokens, sequence_length, batch_size)}
        data = _MappedTokens(file, sequence_length)
        loaders |= {str(count): _torchs(data, batch_size, count) for count in workers}
        best = dict.fromkeys(loaders, 0.0)
        for _ in range(rounds):
            for name, batches in loaders.items():
                batches_per_second = _rate(lambda batches=batches: next(batches), round_seconds)  # type: ignore[misc]
                best[name] = max(best[name], batches_per_second * batch_size * sequence_length)
        return LoaderFigures(tokens, batch_size, sequence_length, best.pop("ours"), best)


def _ours(file: Path, tokens: int, sequence_length: int, batch_size: int) -> Batches:
    shard = ShardRecord(file=file.name, tokens=tokens, bytes=2 * tokens, blake3="0" * 64)
    samples = Windows(TokenSplit(file.parent, "uint16", VOCABULARY_SIZE, [shard]), sequence_length)
    batches = TrainBatches(samples, 1, CPU, batch_size)
    position = 0
    while True:
        for batch in batches.micro_batches(position, range(batch_size), batch_size):
            yield batch.arguments
        position += batch_size


def _torchs(data: _MappedTokens, batch_size: int, workers: int) -> Batches:
    loader = DataLoader(
        data,
        batch_size,
        sampler=RandomSampler(data),
        num_workers=workers,
        persistent_workers=workers > 0,
        multiprocessing_context=multiprocessing.get_context("forkserver") if workers else None,
        drop_last=True,
    )
    while True:
        yield from loader


def _rate(call: Callable[[], object], seconds: float) -> float:
    call()  # starts workers and touches pages
    count, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < seconds:
        call()
        count += 1
    return count / passed


def main(arguments: list[str] | None = None) -> int:
    """Print the results as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loader", description=__doc__)
    parser.add_argument("--tokens", type=int, default=64_000_000, help="tokens in the file (2 bytes each)")
    parser.add_argument("--sequence-length", type=int, default=1024, help="tokens per sequence")
    parser.add_argument("--batch-size", type=int, default=12, help="sequences per batch")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of half a second per loader")
    options = parser.parse_args(arguments)
    figures = measure(options.tokens, options.sequence_length, options.batch_size, rounds=options.rounds)
    sys.stdout.write(json.dumps(asdict(figures), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
