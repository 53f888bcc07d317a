"""How fast batches of tokens are assembled, against torch's DataLoader over the same file.

``python -m benchmarks.loader`` makes a file of random tokens, reads batches of it in shuffled order both ways in turn,
and prints a JSON object: tokens per second of each, the best of its rounds.
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
    """What was measured.

    Attributes:
        tokens: in the file.
        batch_sequences: sequences of a batch.
        context: tokens of a sequence.
        tokens_per_second: of our loader.
        dataloader_tokens_per_second: of torch's DataLoader, by its number of workers.
    """

    tokens: int
    batch_sequences: int
    context: int
    tokens_per_second: float
    dataloader_tokens_per_second: dict[str, float]


class _MappedTokens(Dataset[tuple[Tensor, Tensor]]):
    """The same file as people usually give it to a DataLoader: a memory map, a pair of tensors an item."""

    def __init__(self, file: Path, context: int) -> None:
        self._file, self._context = file, context
        self._tokens: Any = None
        self._length = (file.stat().st_size // 2 - 1) // context

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        if self._tokens is None:  # in the worker: a map is not for passing between processes
            self._tokens = np.memmap(self._file, dtype="<u2", mode="r")
        start = number * self._context
        row = torch.from_numpy(self._tokens[start : start + self._context + 1].astype(np.int64))
        return row[:-1], row[1:]


def measure(
    tokens: int = 64_000_000,
    context: int = 1024,
    batch_sequences: int = 12,
    workers: tuple[int, ...] = (0, 2),
    rounds: int = 5,
    round_seconds: float = 0.5,
) -> LoaderFigures:
    """Measure both loaders over one new file, in turn, and take each one's best round."""
    with tempfile.TemporaryDirectory(prefix="loader-") as directory:
        file = Path(directory) / "train-00000.bin"
        np.random.default_rng(1).integers(0, VOCABULARY_SIZE, tokens, dtype=np.uint16).tofile(file)
        loaders = {"ours": _ours(file, tokens, context, batch_sequences)}
        data = _MappedTokens(file, context)
        loaders |= {str(count): _torchs(data, batch_sequences, count) for count in workers}
        best = dict.fromkeys(loaders, 0.0)
        for _ in range(rounds):
            for name, batches in loaders.items():
                batches_per_second = _rate(lambda batches=batches: next(batches), round_seconds)  # type: ignore[misc]
                best[name] = max(best[name], batches_per_second * batch_sequences * context)
        return LoaderFigures(tokens, batch_sequences, context, best.pop("ours"), best)


def _ours(file: Path, tokens: int, context: int, batch_sequences: int) -> Batches:
    shard = ShardRecord(file=file.name, tokens=tokens, bytes=2 * tokens, blake3="0" * 64)
    samples = Windows(TokenSplit(file.parent, "uint16", VOCABULARY_SIZE, [shard]), context)
    batches = TrainBatches(samples, 1, CPU, batch_sequences)
    position = 0
    while True:
        yield from batches.micro_batches(position, range(batch_sequences), batch_sequences)
        position += batch_sequences


def _torchs(data: _MappedTokens, batch_sequences: int, workers: int) -> Batches:
    loader = DataLoader(
        data,
        batch_sequences,
        sampler=RandomSampler(data),
        num_workers=workers,
        persistent_workers=workers > 0,
        multiprocessing_context=multiprocessing.get_context("forkserver") if workers else None,
        drop_last=True,
    )
    while True:
        yield from loader


def _rate(call: Callable[[], object], seconds: float) -> float:
    call()  # the first one starts workers and touches pages
    count, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < seconds:
        call()
        count += 1
    return count / passed


def main(arguments: list[str] | None = None) -> int:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loader", description=__doc__)
    parser.add_argument("--tokens", type=int, default=64_000_000, help="in the file (2 bytes each)")
    parser.add_argument("--context", type=int, default=1024, help="tokens of a sequence")
    parser.add_argument("--batch-sequences", type=int, default=12, help="sequences of a batch")
    parser.add_argument("--rounds", type=int, default=5, help="of half a second for each loader, in turn")
    options = parser.parse_args(arguments)
    figures = measure(options.tokens, options.context, options.batch_sequences, rounds=options.rounds)
    sys.stdout.write(json.dumps(asdict(figures), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
