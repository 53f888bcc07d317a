"""The index of a dataset: its files, their lengths and hashes (format: docs/architecture.md, section 6)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bootstrap.errors import StepError

INDEX = "dataset.json"
ENDINGS = {"zstd": ".zst"}
"""Of the objects of an encoding."""


@dataclass(frozen=True)
class DatasetFile:
    """A file of the dataset; `bytes` None where the index does not say.

    With an encoding the bucket has it as an object of `stored_bytes`, with an ending more; hash and `bytes` are of the
    plain file.
    """

    name: str
    bytes: int | None
    blake3: str | None = None
    sha256: str | None = None
    encoding: str | None = None
    stored_bytes: int | None = None

    @property
    def object_name(self) -> str:
        """Its name in the bucket."""
        return f"{self.name}{ENDINGS[self.encoding]}" if self.encoding else self.name


def index_files(text: str, source: str) -> list[DatasetFile]:
    """Return the files that the text of a dataset index names, in its order.

    Raises:
        StepError: It is no such index; `source` says whose.
    """
    index = _parse(text, source)
    try:
        shards = [shard for split in index["splits"].values() for shard in split["shards"]]
        files = [_shard(each) for each in shards]
        tokenizer = index.get("tokenizer")  # files of one's own have none
        if tokenizer is not None:
            files.append(DatasetFile(str(tokenizer["file"]), None, sha256=str(tokenizer["sha256"])))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StepError(
            f"{source}: is no dataset index ({type(error).__name__}: {error})",
            remedy="tokenize the dataset again with this version",
        ) from error
    for each in files:
        if each.encoding not in (None, *ENDINGS):
            raise StepError(
                f"{source}: file {each.name}: encoding {each.encoding!r}: is not one of {', '.join(ENDINGS)}",
                remedy="deploy the node bundle of the version that published it, or publish it again",
            )
        if Path(each.name).name != each.name or each.name in ("", ".", "..", INDEX):
            raise StepError(
                f"{source}: file {each.name!r}: must be a plain file name", remedy="tokenize the dataset again"
            )
    return files


def _shard(entry: Mapping[str, Any]) -> DatasetFile:
    size, encoding = int(entry["bytes"]), entry.get("encoding")
    stored = size if encoding is None else int(entry["stored_bytes"])
    return DatasetFile(str(entry["file"]), size, str(entry["blake3"]), encoding=encoding, stored_bytes=stored)


def _parse(text: str, source: str) -> Mapping[str, Any]:
    try:
        index = json.loads(text)
    except ValueError as error:
        raise StepError(f"{source}: is not JSON ({error})", remedy="tokenize the dataset again") from error
    if not isinstance(index, dict):
        raise StepError(f"{source}: is not a JSON object", remedy="tokenize the dataset again")
    return index
