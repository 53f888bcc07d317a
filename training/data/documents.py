"""Documents out of files, a piece of a file at a time, so that several processes can work on a large one."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import zstandard
from blake3 import blake3

from training.data import parquet
from training.data.text import TextFile
from training.errors import TokenizeError

LARGEST_DOCUMENT_BYTES = 128 * 1024
SMALLEST_DOCUMENT_BYTES = 4 * 1024
DOCUMENTS_WANTED = 64
"""A long text is cut at line ends into documents of at most 128 KiB, and of less when all the text is little, so that
even a single file can be split into train and validation."""
PIECE_BYTES = 1 << 23
"""Length of the pieces that a large file is read in; all of a piece may be in memory."""


@dataclass(frozen=True)
class Document:
    """A piece of text that is trained on, or validated on, as a whole."""

    name: str
    text: str

    def place(self) -> float:
        """A number from 0 to 1 (excluded) that only the name decides."""
        return int.from_bytes(blake3(self.name.encode()).digest(7), "big") / 2.0**56


@dataclass(frozen=True)
class Reading:
    """How documents are made of files.

    Attributes:
        document_bytes: length at which texts are cut.
        text_key: of JSON Lines the key, of Parquet the column, that holds a document's text.
    """

    document_bytes: int
    text_key: str


@dataclass(frozen=True)
class Piece:
    """A part of a file.

    Attributes:
        file: which.
        first: where it begins: a byte, or a row group of Parquet.
        end: where it ends; a line belongs to the piece in which it begins.
    """

    file: TextFile
    first: int
    end: int

    @property
    def name(self) -> str:
        """Of the file, and where it begins in it."""
        return f"{self.file.name}@{self.first}"

    @property
    def bytes(self) -> int:
        """About how much text it is."""
        if self.file.kind == "parquet":
            return self.file.used_bytes // max(1, self.file.row_groups)
        return self.end - self.first


def document_bytes(total_bytes: int) -> int:
    """Length in bytes above which a text of a corpus of ``total_bytes`` is cut into documents."""
    return max(SMALLEST_DOCUMENT_BYTES, min(LARGEST_DOCUMENT_BYTES, total_bytes // DOCUMENTS_WANTED))


def pieces(file: TextFile) -> Iterator[Piece]:
    """Divide a file; what is compressed can only be read from its beginning, and stays whole."""
    if file.kind == "parquet":
        yield from (Piece(file, group, group + 1) for group in range(file.row_groups))
    elif file.kind == "packed jsonl":
        yield Piece(file, 0, file.used_bytes)
    else:
        for first in range(0, file.used_bytes, PIECE_BYTES):
            yield Piece(file, first, min(first + PIECE_BYTES, file.used_bytes))


def documents(piece: Piece, reading: Reading) -> Iterator[Document]:
    """Yield the documents of a piece.

    Raises:
        TokenizeError: the file has changed since it was looked at, or a line is not what JSON Lines asks for.
    """
    file = piece.file
    file.require_unchanged()
    if file.kind == "parquet":
        for row, text in parquet.texts(file.path, reading.text_key, piece.first):
            yield Document(f"{piece.name}.{row}", text)
    elif file.kind == "packed jsonl":
        yield from _records(file, enumerate(_unpacked(file.path)), reading.text_key)
    elif file.kind == "jsonl":
        yield from _records(file, _lines(piece), reading.text_key)
    else:
        yield from _cut(piece, reading.document_bytes)
    file.require_unchanged()


def _lines(piece: Piece) -> Iterator[tuple[int, bytes]]:
    """Lines that begin in a piece, and where they begin."""
    with piece.file.path.open("rb") as file:
        place = piece.first
        if place:
            file.seek(place - 1)
            place += len(file.readline()) - 1
        while place < piece.end:
            line = file.readline(piece.file.used_bytes - place)
            if not line:
                return
            yield place, line
            place += len(line)


def _records(file: TextFile, lines: Iterator[tuple[int, bytes]], key: str) -> Iterator[Document]:
    where = "line" if file.kind == "packed jsonl" else "byte"
    for place, line in lines:
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise TokenizeError([f"{file.path}: {where} {place}: is not JSON ({error}); one object a line"]) from error
        text = record.get(key) if isinstance(record, dict) else None
        if not isinstance(text, str):
            known = f"; its keys: {', '.join(map(str, record))}" if isinstance(record, dict) else ""
            raise TokenizeError(
                [f"{file.path}: {where} {place}: has no text under {key!r}; name another key with --text-key{known}"]
            )
        if text:
            # What JSON can say and UTF-8 cannot: halves of surrogate pairs.
            yield Document(f"{file.name}@{place}", text.encode("utf-8", "replace").decode())


def _unpacked(path: Path) -> Iterator[bytes]:
    """Lines of a compressed file."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as packed:
                yield from packed
        else:
            with zstandard.open(path, "rb") as packed:
                yield from io.BufferedReader(packed)
    except (gzip.BadGzipFile, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise TokenizeError([f"{path}: cannot be unpacked ({error}); compress it again, or move it away"]) from error


def _cut(piece: Piece, most_bytes: int) -> Iterator[Document]:
    """Documents of at most about ``most_bytes`` out of a text, cut at line ends; a short file is one document."""
    file = piece.file
    first, content = _whole_lines(piece)
    if file.used_bytes <= most_bytes:
        yield Document(file.name, content.decode("utf-8-sig"))
        return
    begins = 0
    while begins < len(content):
        ends = begins + most_bytes
        if ends < len(content):
            # The last line end within the limit; of a line that is longer, its own.
            last = content.rfind(b"\n", begins, ends)
            ends = 1 + (last if last >= 0 else content.find(b"\n", ends))
        text = content[begins : ends or None]  # 0: it is the last line, and has none
        place = first + begins
        yield Document(f"{file.name}@{place}", text.decode("utf-8" if place else "utf-8-sig"))
        begins += len(text)


def _whole_lines(piece: Piece) -> tuple[int, bytes]:
    """The lines that begin in a piece, and where the first one begins."""
    with piece.file.path.open("rb") as file:
        first = piece.first
        if first:
            file.seek(first - 1)
            first += len(file.readline()) - 1
        content = file.read(max(0, piece.end - first))
        if not content.endswith(b"\n"):
            content += file.readline(piece.file.used_bytes - first - len(content)) if content else b""
        return first, content
