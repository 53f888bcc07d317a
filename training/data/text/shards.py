"""Writes the tokens of all parts to shards (files of limited size), and computes the numbers for dataset.json."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from training.data.dataset import ShardRecord, SplitName, SplitRecord
from training.data.text.parts import SplitPart

CHUNK_TOKENS = 1 << 22
"""Number of tokens in memory at a time."""


class ShardWriter:
    """Writes a split's shards.

    Args:
        directory: directory for the files.
        split: name of the split.
        dtype: type of the token ids in the file.
        vocabulary_size: number of ids.
        shard_tokens: maximum tokens per file.

    Attributes:
        counts: number of occurrences of each id, [vocabulary_size] int64.
        text_bytes: number of UTF-8 bytes in the documents.
    """

    def __init__(self, directory: Path, split: SplitName, dtype: str, vocabulary_size: int, shard_tokens: int) -> None:
        self._directory = directory
        self._split = split
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._shard_tokens = shard_tokens
        self._file: BinaryIO | None = None
        self._hash = blake3()
        self._tokens = 0
        self._shards: list[ShardRecord] = []
        self._documents = 0
        self.counts = np.zeros(vocabulary_size, dtype=np.int64)
        self.text_bytes = 0

    def append(self, part: SplitPart, directory: Path) -> None:
        """Write a part's tokens; a document may continue in the next shard."""
        self._documents += part.documents
        self.text_bytes += part.text_bytes
        with (directory / part.file).open("rb") as file:
            while (tokens := np.fromfile(file, self._dtype, CHUNK_TOKENS)).size:
                self.counts += np.bincount(tokens, minlength=len(self.counts))
                while tokens.size:
                    take = min(tokens.size, self._shard_tokens - self._tokens)
                    self._write(tokens[:take])
                    tokens = tokens[take:]

    def finish(self) -> SplitRecord:
        """Close the last shard; return the split's record."""
        self._close()
        tokens = sum(shard.tokens for shard in self._shards)
        return SplitRecord(tokens=tokens, documents=self._documents, shards=self._shards)

    def _name(self) -> str:
        return f"{self._split}-{len(self._shards):05d}.bin"

    def _write(self, tokens: npt.NDArray[np.unsignedinteger]) -> None:
        if self._file is None:
            self._file = (self._directory / self._name()).open("wb")
        content = tokens.tobytes()
        self._file.write(content)
        self._hash.update(content)
        self._tokens += tokens.size
        if self._tokens == self._shard_tokens:
            self._close()

    def _close(self) -> None:
        if self._file is None:
            return
        self._file.close()
        size = self._tokens * self._dtype.itemsize
        self._shards.append(
            ShardRecord(file=self._name(), tokens=self._tokens, bytes=size, blake3=self._hash.hexdigest())
        )
        self._file, self._hash, self._tokens = None, blake3(), 0


def unigram_cross_entropy(train_counts: npt.NDArray[np.int64], validation_counts: npt.NDArray[np.int64]) -> float:
    """Return the validation tokens' cross-entropy under the train tokens' frequencies, in nats per token.

    One is added to each train count, so that tokens missing from the train split have a finite cost.
    """
    smoothed = train_counts + 1
    log_probabilities = np.log(smoothed) - np.log(smoothed.sum())
    return float(-(validation_counts * log_probabilities).sum() / validation_counts.sum())
