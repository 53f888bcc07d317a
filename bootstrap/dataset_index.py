"""The index of a dataset: its files, their lengths and hashes (format: docs/architecture.md, section 6)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bootstrap.errors import StepError

INDEX = "dataset.json"


@dataclass(frozen=True)
class DatasetFile:
    """A file of the dataset; `bytes` None where the index does not say."""

    name: str
    bytes: int | None
    blake3: str | None = None
    sha256: str | None = None


def index_files(text: str, source: str) -> list[DatasetFile]:
    """Return the files that the text of a dataset index names, in its order.

    Raises:
        StepError: It is no such index; `source` says whose.
    """
    index = _parse(text, source)
    try:
        shards = [shard for split in index["splits"].values() for shard in split["shards"]]
        files = [DatasetFile(str(each["file"]), int(each["bytes"]), blake3=str(each["blake3"])) for each in shards]
        tokenizer = index.get("tokenizer")  # files of one's own have none
        if tokenizer is not None:
            files.append(DatasetFile(str(tokenizer["file"]), None, sha256=str(tokenizer["sha256"])))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StepError(
            f"{source}: is no dataset index ({type(error).__name__}: {error})",
            remedy="tokenize the dataset again with this version",
        ) from error
    for each in files:
        if Path(each.name).name != each.name or each.name in ("", ".", "..", INDEX):
            raise StepError(
                f"{source}: file {each.name!r}: must be a plain file name", remedy="tokenize the dataset again"
            )
    return files


def _parse(text: str, source: str) -> Mapping[str, Any]:
    try:
        index = json.loads(text)
    except ValueError as error:
        raise StepError(f"{source}: is not JSON ({error})", remedy="tokenize the dataset again") from error
    if not isinstance(index, dict):
        raise StepError(f"{source}: is not a JSON object", remedy="tokenize the dataset again")
    return index
