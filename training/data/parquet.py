"""Texts out of a column of Parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.errors import TokenizeError

ROWS_READ = 1024
"""Rows in memory at a time."""


def row_group_bytes(path: Path, column: str) -> list[int]:
    """Size of the column's texts in each row group, before compression.

    Raises:
        TokenizeError: the file is not Parquet, or has no such column of texts.
    """
    with _open(path) as file:
        place = _place(path, file, column)
        groups = range(file.metadata.num_row_groups)
        return [file.metadata.row_group(group).column(place).total_uncompressed_size for group in groups]


def texts(path: Path, column: str, row_group: int) -> Iterator[tuple[int, str]]:
    """Yield the row and the text of a row group's rows; rows without a text are left out."""
    with _open(path) as file:
        row = 0
        for batch in file.iter_batches(ROWS_READ, row_groups=[row_group], columns=[column], use_threads=False):
            for text in batch.column(0).to_pylist():
                if text is not None:
                    yield row, text
                row += 1


def _open(path: Path) -> Any:
    # Not at the top: the import takes longer than a small text is encoded.
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise TokenizeError(
            [f"{path}: is not a whole Parquet file ({error}); write it again, or move it away"]
        ) from error


def _place(path: Path, file: Any, column: str) -> int:
    import pyarrow

    names = file.schema_arrow.names
    if column not in names:
        raise TokenizeError([f"{path}: has no column {column!r}; name one of {', '.join(names)} with --text-key"])
    kind = file.schema_arrow.field(column).type
    if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
        raise TokenizeError([f"{path}: column {column!r} holds {kind}, not text; name another with --text-key"])
    paths = [file.metadata.schema.column(index).path for index in range(len(file.metadata.schema))]
    return paths.index(column)
