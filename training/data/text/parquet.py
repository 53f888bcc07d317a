"""Reads texts from a column in Parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.errors import TokenizeError

ROWS_READ = 1024
"""Number of rows in memory at a time."""


def row_group_bytes(path: Path, column: str) -> list[int]:
    """Return a text column's uncompressed size in each row group.

    Raises:
        TokenizeError: The file is not Parquet, or does not have a text column with this name.
    """
    with _open(path) as file:
        position = _position(path, file, column)
        groups = range(file.metadata.num_row_groups)
        return [file.metadata.row_group(group).column(position).total_uncompressed_size for group in groups]


def texts(path: Path, column: str, row_group: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield the row number and UTF-8 text of each row in a row group. The text is None if the row has no text."""
    import pyarrow  # type: ignore[import-untyped]  # Imported here: the import takes longer than encoding a small text.

    with _open(path) as file:
        row = 0
        for batch in file.iter_batches(ROWS_READ, row_groups=[row_group], columns=[column], use_threads=False):
            for text in batch.column(0).cast(pyarrow.large_binary()).to_pylist():
                yield row, text
                row += 1


def _open(path: Path) -> Any:
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise TokenizeError(
            [f"{path}: not a valid Parquet file ({error}); regenerate it, or move it out of the folder"]
        ) from error


def _position(path: Path, file: Any, column: str) -> int:
    import pyarrow

    names = file.schema_arrow.names
    if column not in names:
        raise TokenizeError([f"{path}: no column {column!r}; choose one of {', '.join(names)} with --text-key"])
    kind = file.schema_arrow.field(column).type
    if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
        raise TokenizeError(
            [f"{path}: column {column!r} has type {kind}, not text; choose another column with --text-key"]
        )
    paths = [file.metadata.schema.column(index).path for index in range(len(file.metadata.schema))]
    return paths.index(column)
