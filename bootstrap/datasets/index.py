"""A dataset's index: the names, sizes and hashes of its files (format: docs/architecture.md, section 6)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bootstrap.errors import StepError

INDEX = "dataset.json"
MAX_FILE_BYTES = 1 << 50
MAX_INDEX_BYTES = 1 << 28
EXTENSIONS = {"zstd": ".zst"}
"""File name extension for each encoding's objects."""


@dataclass(frozen=True)
class DatasetFile:
    """A file in the dataset.

    Attributes:
        name: File name.
        bytes: Size of the decoded file, or None if the index does not contain it.
        blake3: Hash of the decoded file.
        sha256: Hash of the decoded file.
        encoding: Encoding of the object in the bucket, or None. The object's name has a matching extension.
        stored_bytes: Size of the object in the bucket.
    """

    name: str
    bytes: int | None
    blake3: str | None = None
    sha256: str | None = None
    encoding: str | None = None
    stored_bytes: int | None = None

    @property
    def object_name(self) -> str:
        """Return the name of the object in the bucket."""
        return f"{self.name}{EXTENSIONS[self.encoding]}" if self.encoding else self.name


def index_files(text: str, source: str) -> list[DatasetFile]:
    """Return the files of a dataset index, in index order.

    Raises:
        StepError: The text is not a dataset index. The message names `source`.
    """
    index = _parse(text, source)
    try:
        shards = [shard for split in index["splits"].values() for shard in split["shards"]]
        files = [_shard(each) for each in shards]
        tokenizer = index.get("tokenizer")  # `publish` does not write a tokenizer
        if tokenizer is not None:
            files.append(DatasetFile(str(tokenizer["file"]), None, sha256=str(tokenizer["sha256"])))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise StepError(
            f"{source}: not a dataset index ({type(error).__name__}: {error})",
            remedy="tokenize the dataset again with this version",
        ) from error
    for each in files:
        if each.encoding not in (None, *EXTENSIONS):
            raise StepError(
                f"{source}: file {each.name}: encoding {each.encoding!r}: must be one of {', '.join(EXTENSIONS)}",
                remedy="deploy the Trainstack version that published the dataset, or publish it again",
            )
        if Path(each.name).name != each.name or each.name in ("", ".", "..", INDEX) or "\0" in each.name:
            raise StepError(
                f"{source}: file {each.name!r}: must be a file name without a directory",
                remedy="tokenize the dataset again",
            )
    return files


def _shard(entry: Mapping[str, Any]) -> DatasetFile:
    size, encoding = _size(entry["bytes"]), entry.get("encoding")
    stored = size if encoding is None else _size(entry["stored_bytes"])
    return DatasetFile(str(entry["file"]), size, str(entry["blake3"]), encoding=encoding, stored_bytes=stored)


def _size(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_FILE_BYTES:
        raise ValueError(f"size {str(value)[:40]}: must be an integer from 0 to {MAX_FILE_BYTES}")
    return value


def _parse(text: str, source: str) -> Mapping[str, Any]:
    try:
        index = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StepError(f"{source}: not JSON ({error})", remedy="tokenize the dataset again") from error
    if not isinstance(index, dict):
        raise StepError(f"{source}: not a JSON object", remedy="tokenize the dataset again")
    return index
