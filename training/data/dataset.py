"""Dataset directories: reads the record `dataset.json` and token ranges, and checks their integrity."""

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
"""Number of tokens that a search compares at a time. It limits the search's memory."""
SplitName = Literal["train", "validation"]
REMEDY = "stage it again, or recreate it with `python -m training tokenize`"


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class ShardRecord(_Record):
    """A file with little-endian token ids and no header. Staging decompresses it if it has an encoding."""

    file: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    tokens: int = Field(ge=1)
    bytes: int = Field(ge=1)
    blake3: str = Field(pattern=r"^[0-9a-f]{64}$")
    encoding: str | None = None


class SplitRecord(_Record):
    """A split's shards, in order."""

    tokens: int = Field(ge=0)
    documents: int = Field(ge=0)
    shards: list[ShardRecord]


class TokenizerRecord(_Record):
    """The tokenizer's file and hash."""

    file: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class SourceRecord(_Record):
    """A dataset's source. The digest covers the texts and all settings that affect the result.

    The counts are per format, per reason for skipping a file, and per kind of loss in the used files.
    """

    digest: str
    files: int = Field(ge=0)
    bytes: int = Field(ge=0)
    formats: dict[str, int] = {}
    skipped: dict[str, int] = {}
    losses: dict[str, int] = {}


class DatasetRecord(_Record):
    """Contents of dataset.json. The file is written last, so a directory without it is not a dataset."""

    schema_version: Literal[1]
    name: str
    dtype: Literal["uint16", "uint32"]
    vocabulary_size: int = Field(ge=2)
    tokenizer: TokenizerRecord
    end_of_text_id: int = Field(ge=0)
    bytes_per_token: float = Field(gt=0.0, description="UTF-8 bytes per token in the validation split.")
    unigram_entropy_nats: float = Field(
        gt=0.0,
        description="Cross-entropy of the validation split under the train split's token frequencies (add-one "
        "smoothing), in nats per token: a unigram model's loss.",
    )
    splits: dict[SplitName, SplitRecord]
    source: SourceRecord

    def identity(self) -> str:
        """Return the SHA-256 of the tokenizer and train shards. Datasets with equal identities train identically."""
        parts = [self.tokenizer.sha256, self.dtype, *(shard.blake3 for shard in self.splits["train"].shards)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class TokenSplit:
    """One split's token stream, memory-mapped over its shards.

    Attributes:
        tokens: length of the stream.
    """

    def __init__(self, directory: Path, dtype: str, vocabulary_size: int, shards: Sequence[ShardRecord]) -> None:
        self._directory = directory
        file_dtype = np.dtype(dtype).newbyteorder("<")
        # Use plain arrays over the maps: slicing a memmap is several times slower than slicing an array.
        self._shards = [np.asarray(np.memmap(directory / shard.file, file_dtype, "r")) for shard in shards]
        self._starts = np.cumsum([0, *(len(shard) for shard in self._shards)])
        self._vocabulary_size = vocabulary_size
        self.tokens = int(self._starts[-1])

    def rows(self, starts: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
        """Return a new array with ``length`` tokens from each start; see :meth:`read_rows`."""
        result = np.empty((len(starts), length), dtype=np.int64)
        self.read_rows(starts, result)
        return result

    def read_rows(self, starts: npt.NDArray[np.int64], into: npt.NDArray[np.int64]) -> None:
        """Fill each row of ``into`` with the tokens that begin at its start. A row may span several shards.

        Shapes: starts [rows] int64; into [rows, length] int64.

        Raises:
            DatasetError: A token id is outside the vocabulary.
        """
        length = into.shape[1]
        shards = np.searchsorted(self._starts, starts, side="right") - 1
        offsets = starts - self._starts[shards]
        for row, shard, offset in zip(into, shards.tolist(), offsets.tolist(), strict=True):
            piece = self._shards[shard][offset : offset + length]
            if piece.size == length:
                row[:] = piece
            else:
                self._read_across_shards(row, shard, offset)
        if into.size and (largest := int(into.max())) >= self._vocabulary_size:
            raise DatasetError(
                [
                    f"{self._directory}: token id {largest}: must be below vocabulary_size {self._vocabulary_size}; "
                    f"shards and dataset.json are from different tokenizers; {REMEDY}"
                ]
            )

    def _read_across_shards(self, row: npt.NDArray[np.int64], shard: int, offset: int) -> None:
        done = 0
        while done < row.size:
            piece = self._shards[shard][offset : offset + row.size - done]
            assert piece.size, "a row must end inside the stream"
            row[done : done + piece.size] = piece
            done += piece.size
            shard, offset = shard + 1, 0

    def positions_of(self, token_id: int) -> npt.NDArray[np.int64]:
        """Return all positions of a token in the stream, in order. Reads all shards."""
        found = [
            start + first + np.flatnonzero(shard[first : first + SCANNED_TOKENS] == token_id)
            for start, shard in zip(self._starts.tolist(), self._shards, strict=False)
            for first in range(0, len(shard), SCANNED_TOKENS)
        ]
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


class Dataset:
    """A validated dataset directory.

    Attributes:
        record: contents of the directory's dataset.json.
    """

    def __init__(self, directory: Path, record: DatasetRecord) -> None:
        self.directory = directory
        self.record = record

    def split(self, name: SplitName) -> TokenSplit:
        """Map a split into memory."""
        shards = self.record.splits[name].shards
        return TokenSplit(self.directory, self.record.dtype, self.record.vocabulary_size, shards)

    def verify_hashes(self) -> None:
        """Compare the hashes of all shards and the tokenizer with the record.

        Raises:
            DatasetError: Hashes differ; the message lists all affected files.
        """
        problems = []
        for shard in self._all_shards():
            digest = blake3(max_threads=blake3.AUTO).update_mmap(self.directory / shard.file).hexdigest()
            if digest != shard.blake3:
                problems.append(f"{self.directory / shard.file}: hash differs from dataset.json; {REMEDY}")
        tokenizer = self.record.tokenizer
        if hashlib.sha256((self.directory / tokenizer.file).read_bytes()).hexdigest() != tokenizer.sha256:
            problems.append(f"{self.directory / tokenizer.file}: hash differs from dataset.json; {REMEDY}")
        if problems:
            raise DatasetError(problems)

    def total_bytes(self) -> int:
        """Return the total size of all shards in bytes."""
        return sum(shard.bytes for shard in self._all_shards())

    def require_sequences(self, sequence_length: int) -> None:
        """Check that each split contains at least one sequence.

        Raises:
            DatasetError: A split is too short; the message lists all such splits.
        """
        problems = [
            f"{self.directory}: the {name} split has {split.tokens} tokens, but a sequence with sequence_length "
            f"{sequence_length} needs {sequence_length + 1}; add text or lower model.sequence_length"
            for name, split in self.record.splits.items()
            if split.tokens < sequence_length + 1
        ]
        if problems:
            raise DatasetError(problems)

    def _all_shards(self) -> list[ShardRecord]:
        return [shard for split in self.record.splits.values() for shard in split.shards]


def read_record(path: Path) -> DatasetRecord:
    """Read a dataset.json.

    Raises:
        DatasetError: The file is missing, or is not a dataset record.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DatasetError([f"{path}: cannot read the dataset record ({error.strerror}); {REMEDY}"]) from error
    return parse_record(content, str(path))


def parse_record(content: bytes, source: str) -> DatasetRecord:
    """Parse a dataset.json that was read from ``source``.

    Raises:
        DatasetError: The content is not a dataset record.
    """
    try:
        return DatasetRecord.model_validate_json(content)
    except ValidationError as error:
        places = "; ".join(f"{'.'.join(map(str, p['loc'])) or 'document'}: {p['msg']}" for p in error.errors())
        raise DatasetError([f"{source}: not a dataset record ({places}); {REMEDY}"]) from error


def open_dataset(directory: Path) -> Dataset:
    """Open a dataset, and run all checks that do not read the shards.

    Raises:
        DatasetError: Files are missing or truncated, or the record is inconsistent; the message lists all problems.
    """
    record = read_record(directory / RECORD_FILE)
    problems = [
        f"{directory / RECORD_FILE}: no {name} split; {REMEDY}"
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
        problems.append(f"{directory / record.tokenizer.file}: missing; {REMEDY}")
    if problems:
        raise DatasetError(problems)
    return Dataset(directory, record)


def _shard_problems(path: Path, shard: ShardRecord, width_bytes: int) -> list[str]:
    if shard.bytes != shard.tokens * width_bytes:
        return [f"{path}: dataset.json has {shard.tokens} tokens in {shard.bytes} bytes, which do not match; {REMEDY}"]
    if not path.is_file():
        return [f"{path}: missing; {REMEDY}"]
    actual_bytes = path.stat().st_size
    if actual_bytes != shard.bytes:
        word = "truncated" if actual_bytes < shard.bytes else "too long"
        return [f"{path}: {word}: {actual_bytes} bytes, expected {shard.bytes}; {REMEDY}"]
    return []
