"""A dataset directory: its record `dataset.json`, the checks that it is whole, and reading token ranges from it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from blake3 import blake3
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from training.errors import DatasetError

RECORD_FILE = "dataset.json"
SCANNED_TOKENS = 1 << 24
"""Tokens compared at a time in a search: bounds its memory."""
SplitName = Literal["train", "validation"]
REMEDY = "stage it again, or make it anew with `python -m training tokenize`"


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class ShardRecord(_Record):
    """One file of token ids, little-endian, without a header; where it is staged it is plain, whatever its encoding."""

    file: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    tokens: int = Field(ge=1)
    bytes: int = Field(ge=1)
    blake3: str = Field(pattern=r"^[0-9a-f]{64}$")
    encoding: str | None = None


class SplitRecord(_Record):
    """All shards of one split, in order."""

    tokens: int = Field(ge=0)
    documents: int = Field(ge=0)
    shards: list[ShardRecord]


class TokenizerRecord(_Record):
    """The tokenizer's file and hash."""

    file: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class SourceRecord(_Record):
    """What the dataset was made from: the digest covers the texts and every setting that shapes the result."""

    digest: str
    files: int = Field(ge=0)
    bytes: int = Field(ge=0)


class DatasetRecord(_Record):
    """Contents of dataset.json. Written last: a directory without it is not a dataset."""

    schema_version: Literal[1]
    name: str
    dtype: Literal["uint16", "uint32"]
    vocabulary_size: int = Field(ge=2)
    tokenizer: TokenizerRecord
    end_of_text_id: int = Field(ge=0)
    bytes_per_token: float = Field(gt=0.0, description="UTF-8 bytes per token of the validation split.")
    unigram_entropy_nats: float = Field(
        gt=0.0,
        description="Cross-entropy in nats per token of the validation split under the train split's token "
        "frequencies (one added to each): what a model reaches that knows frequencies and no context.",
    )
    splits: dict[SplitName, SplitRecord]
    source: SourceRecord

    def identity(self) -> str:
        """SHA-256 over the tokenizer and the train shards: two datasets with the same one train the same."""
        parts = [self.tokenizer.sha256, self.dtype, *(shard.blake3 for shard in self.splits["train"].shards)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class TokenSplit:
    """The token stream of one split, memory-mapped over its shards.

    Attributes:
        tokens: length of the stream.
    """

    def __init__(self, directory: Path, dtype: str, vocabulary_size: int, shards: Sequence[ShardRecord]) -> None:
        self._directory = directory
        file_dtype = np.dtype(dtype).newbyteorder("<")
        # Plain arrays over the maps: slicing a memmap costs several times what slicing an array does.
        self._shards = [np.asarray(np.memmap(directory / shard.file, file_dtype, "r")) for shard in shards]
        self._starts = np.cumsum([0, *(len(shard) for shard in self._shards)])
        self._vocabulary_size = vocabulary_size
        self.tokens = int(self._starts[-1])

    def rows(self, starts: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
        """Copy ``length`` tokens from each start into a new array; see :meth:`read_rows`."""
        result = np.empty((len(starts), length), dtype=np.int64)
        self.read_rows(starts, result)
        return result

    def read_rows(self, starts: npt.NDArray[np.int64], into: npt.NDArray[np.int64]) -> None:
        """Copy as many tokens from each start as a row of ``into`` is long; a row may run over the border of shards.

        Shapes: starts [rows] int64; into [rows, length] int64.

        Raises:
            DatasetError: a token id is not in the vocabulary.
        """
        length = into.shape[1]
        shards = np.searchsorted(self._starts, starts, side="right") - 1
        offsets = starts - self._starts[shards]
        for row, shard, offset in zip(into, shards.tolist(), offsets.tolist(), strict=True):
            piece = self._shards[shard][offset : offset + length]
            if piece.size == length:
                row[:] = piece
            else:
                self._read_over_borders(row, shard, offset)
        if into.size and (largest := int(into.max())) >= self._vocabulary_size:
            raise DatasetError(
                [
                    f"{self._directory}: token id {largest} is not below vocabulary_size {self._vocabulary_size}: "
                    f"shards and dataset.json are not of one tokenizer; {REMEDY}"
                ]
            )

    def _read_over_borders(self, row: npt.NDArray[np.int64], shard: int, offset: int) -> None:
        done = 0
        while done < row.size:
            piece = self._shards[shard][offset : offset + row.size - done]
            assert piece.size, "rows end inside the stream"
            row[done : done + piece.size] = piece
            done += piece.size
            shard, offset = shard + 1, 0

    def places_of(self, token_id: int) -> npt.NDArray[np.int64]:
        """Where in the stream a token is, in order; reads all of it, a piece at a time."""
        found = [
            start + first + np.flatnonzero(shard[first : first + SCANNED_TOKENS] == token_id)
            for start, shard in zip(self._starts.tolist(), self._shards, strict=False)
            for first in range(0, len(shard), SCANNED_TOKENS)
        ]
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)

    def sequences(self, context: int) -> int:
        """Sequences of ``context`` inputs that the stream holds; each needs one token more, its last target."""
        return max(0, (self.tokens - 1) // context)


class Dataset:
    """A checked dataset directory.

    Attributes:
        record: its dataset.json.
    """

    def __init__(self, directory: Path, record: DatasetRecord) -> None:
        self.directory = directory
        self.record = record

    def split(self, name: SplitName) -> TokenSplit:
        """Map one split into memory."""
        shards = self.record.splits[name].shards
        return TokenSplit(self.directory, self.record.dtype, self.record.vocabulary_size, shards)

    def verify_hashes(self) -> None:
        """Hash every shard and the tokenizer.

        Raises:
            DatasetError: contents differ from the record; all files at once.
        """
        problems = []
        for shard in self._all_shards():
            digest = blake3(max_threads=blake3.AUTO).update_mmap(self.directory / shard.file).hexdigest()
            if digest != shard.blake3:
                problems.append(f"{self.directory / shard.file}: contents differ from what dataset.json says; {REMEDY}")
        tokenizer = self.record.tokenizer
        if hashlib.sha256((self.directory / tokenizer.file).read_bytes()).hexdigest() != tokenizer.sha256:
            problems.append(f"{self.directory / tokenizer.file}: is another tokenizer than the shards'; {REMEDY}")
        if problems:
            raise DatasetError(problems)

    def total_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.bytes for shard in self._all_shards())

    def require_sequences(self, context: int) -> None:
        """Refuse splits that do not hold a single sequence.

        Raises:
            DatasetError: naming every split that is too short.
        """
        problems = [
            f"{self.directory}: the {name} split has {split.tokens} tokens, but one sequence of context {context} "
            f"needs {context + 1}; give more text or lower model.context"
            for name, split in self.record.splits.items()
            if split.tokens < context + 1
        ]
        if problems:
            raise DatasetError(problems)

    def _all_shards(self) -> list[ShardRecord]:
        return [shard for split in self.record.splits.values() for shard in split.shards]


def read_record(path: Path) -> DatasetRecord:
    """Read a dataset.json.

    Raises:
        DatasetError: it is missing or not a dataset record.
    """
    try:
        return DatasetRecord.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DatasetError([f"{path}: cannot be read ({error.strerror}), so this is no dataset; {REMEDY}"]) from error
    except ValidationError as error:
        places = "; ".join(f"{'.'.join(map(str, p['loc'])) or 'document'}: {p['msg']}" for p in error.errors())
        raise DatasetError([f"{path}: is not a dataset record ({places}); {REMEDY}"]) from error


def open_dataset(directory: Path) -> Dataset:
    """Open a dataset and check everything that costs no reading of the shards.

    Raises:
        DatasetError: missing or truncated files, an inconsistent record; all problems at once.
    """
    record = read_record(directory / RECORD_FILE)
    problems = [
        f"{directory / RECORD_FILE}: has no {name} split; {REMEDY}"
        for name in ("train", "validation")
        if name not in record.splits
    ]
    width_bytes = np.dtype(record.dtype).itemsize
    if record.vocabulary_size > 1 << (8 * width_bytes):
        problems.append(
            f"{directory / RECORD_FILE}: vocabulary_size {record.vocabulary_size} does not fit {record.dtype}; {REMEDY}"
        )
    for split in record.splits.values():
        for shard in split.shards:
            problems += _shard_problems(directory / shard.file, shard, width_bytes)
        if split.tokens != sum(shard.tokens for shard in split.shards):
            problems.append(f"{directory / RECORD_FILE}: token counts of shards and splits differ; {REMEDY}")
    if not (directory / record.tokenizer.file).is_file():
        problems.append(f"{directory / record.tokenizer.file}: is missing; {REMEDY}")
    if problems:
        raise DatasetError(problems)
    return Dataset(directory, record)


def _shard_problems(path: Path, shard: ShardRecord, width_bytes: int) -> list[str]:
    if shard.bytes != shard.tokens * width_bytes:
        return [f"{path}: dataset.json says {shard.tokens} tokens in {shard.bytes} bytes, which disagree; {REMEDY}"]
    if not path.is_file():
        return [f"{path}: is missing; {REMEDY}"]
    actual_bytes = path.stat().st_size
    if actual_bytes != shard.bytes:
        word = "truncated" if actual_bytes < shard.bytes else "too long"
        return [f"{path}: is {word}: {actual_bytes} bytes instead of {shard.bytes}; {REMEDY}"]
    return []
