"""Reads documents from text files in pieces, so that several processes can share a large file."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from blake3 import blake3

from training.data.text import parquet
from training.data.text.decoding import EMPTY, MARK_INVALID, Decoding, decode, settle
from training.data.text.files import TextFile
from training.data.text.formats import MAX_RECORD_CHARACTERS, json_values, lines, too_long
from training.errors import TokenizeError

MAX_DOCUMENT_BYTES = 128 * 1024
MIN_DOCUMENT_BYTES = 4 * 1024
TARGET_DOCUMENTS = 64
"""Long texts are split at line ends into documents of at most 128 KiB. The limit is lower for a small corpus, so that
even a single file provides documents for both train and validation."""
PIECE_BYTES = 1 << 23
"""Length of the pieces of a large file. A piece must fit in memory."""


@dataclass(frozen=True)
class Document:
    """A text that belongs to one split, train or validation."""

    name: str
    text: str

    def place(self) -> float:
        """Return a hash of the name as a number in [0, 1)."""
        return int.from_bytes(blake3(os.fsencode(self.name)).digest(7), "big") / 2.0**56


@dataclass(frozen=True)
class ReadOptions:
    """How files are split into documents.

    Attributes:
        document_bytes: maximum length of a document in a text file.
        text_key: key (JSON) or column (Parquet) with a document's text.
        decoding: policy for bytes that are not text.
    """

    document_bytes: int
    text_key: str
    decoding: Decoding = "strict"


@dataclass(frozen=True)
class Piece:
    """A part of a file.

    Attributes:
        file: the file.
        first: first byte, or row group of Parquet.
        end: exclusive end. A line belongs to the piece in which it begins.
    """

    file: TextFile
    first: int
    end: int

    @property
    def name(self) -> str:
        """The file's name and the start of the piece in the file."""
        return f"{self.file.name}@{self.first}"

    @property
    def bytes(self) -> int:
        """Approximate size of the piece's text."""
        if self.file.form.layout == "parquet":
            return self.file.used_bytes // max(1, self.file.row_groups)
        return self.end - self.first


def document_bytes(total_bytes: int) -> int:
    """Return the maximum document length, in bytes, for a corpus of ``total_bytes``."""
    return max(MIN_DOCUMENT_BYTES, min(MAX_DOCUMENT_BYTES, total_bytes // TARGET_DOCUMENTS))


def pieces(file: TextFile) -> Iterator[Piece]:
    """Divide a file into pieces. A stream is one piece."""
    if file.form.layout == "parquet":
        yield from (Piece(file, group, group + 1) for group in range(file.row_groups))
    elif file.form.is_stream:
        yield Piece(file, 0, file.used_bytes)
    else:
        for first in range(0, file.used_bytes, PIECE_BYTES):
            yield Piece(file, first, min(first + PIECE_BYTES, file.used_bytes))


def documents(piece: Piece, options: ReadOptions, losses: Counter[str] | None = None) -> Iterator[Document]:
    """Yield a piece's documents.

    Args:
        piece: the piece.
        options: how the file is split.
        losses: counts of lost characters, lines and records, to be increased.

    Raises:
        TokenizeError: The file has changed since the survey, or has an invalid record.
    """
    file = piece.file
    file.require_unchanged()
    yield from _Reader(piece, options, Counter() if losses is None else losses).documents()
    file.require_unchanged()


class _Reader:
    def __init__(self, piece: Piece, options: ReadOptions, losses: Counter[str]) -> None:
        self._piece, self._file = piece, piece.file
        self._options = options
        self._losses = losses

    def documents(self) -> Iterator[Document]:
        path, form = self._file.path, self._file.form
        match form.layout:
            case "parquet":
                return self._rows()
            case "json":
                return self._records((f"record {n}", n, value) for n, value in enumerate(json_values(path, form)))
            case "json lines":
                return self._records(self._parsed_lines())
            case _:
                return self._split_stream() if form.is_stream else self._split_piece()

    def _settle(self, text: str, place: str) -> str:
        return settle(text, self._file.path, place, self._options.decoding, self._losses)

    def _rows(self) -> Iterator[Document]:
        for row, content in parquet.texts(self._file.path, self._options.text_key, self._piece.first):
            place = f"row group {self._piece.first}, row {row}"
            text = self._settle((content or b"").decode("utf-8", MARK_INVALID), place)
            if text:
                yield Document(f"{self._piece.name}.{row}", text)
            else:
                self._losses[EMPTY] += not content

    def _parsed_lines(self) -> Iterator[tuple[str, int, Any]]:
        """Yield each line's place, number and parsed value."""
        for place, number, line in self._lines():
            if not line or line.isspace():
                continue
            try:
                yield place, number, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise TokenizeError(
                    [f"{self._file.path}: {place}: invalid JSON ({error}); one object per line"]
                ) from error

    def _lines(self) -> Iterator[tuple[str, int, str]]:
        """Yield the place, number and text of each line that begins in the piece."""
        if self._file.form.is_stream:
            for number, line in enumerate(lines(self._file.path, self._file.form)):
                place = f"line {number}"
                yield place, number, self._settle(line, place)
        else:
            for begin, content in _lines(self._piece):
                yield f"byte {begin}", begin, self._decode(content, begin)

    def _decode(self, content: bytes, begin: int) -> str:
        return decode(content, begin, self._file.path, self._options.decoding, self._losses)

    def _records(self, values: Iterator[tuple[str, int, Any]]) -> Iterator[Document]:
        key = self._options.text_key
        for place, number, record in values:
            text = record.get(key, 0) if isinstance(record, dict) else 0
            if not isinstance(text, str | None):
                found = f" (found: {', '.join(map(str, record))})" if isinstance(record, dict) else ""
                raise TokenizeError(
                    [
                        f"{self._file.path}: {place}: no text under the key {key!r}{found}; choose another key with "
                        "--text-key"
                    ]
                )
            if text and (text := self._settle(text, place)):
                yield Document(f"{self._file.name}@{number}", text)
            else:
                self._losses[EMPTY] += not text and record[key] in ("", None)

    def _split_stream(self) -> Iterator[Document]:
        """Split a stream at line ends into documents of about the maximum length, in characters."""
        held: list[str] = []
        size = begins = 0
        for _, number, line in self._lines():
            if held and size + len(line) > self._options.document_bytes:
                yield Document(f"{self._file.name}@{begins}", "".join(held))
                held, size, begins = [], 0, number
            if line:
                held.append(line)
                size += len(line)
        if held:
            yield Document(f"{self._file.name}@{begins}" if begins else self._file.name, "".join(held))

    def _split_piece(self) -> Iterator[Document]:
        """Split a text at line ends into documents of about the maximum length. A short file is one document."""
        max_bytes = self._options.document_bytes
        first, content = _complete_lines(self._piece)
        begins = 0
        while begins < len(content):
            ends = begins + max_bytes
            if self._file.used_bytes <= max_bytes:
                ends = len(content)
            elif ends < len(content):
                # Split at the last line end within the limit or, if there is none, at the end of the line.
                last = content.rfind(b"\n", begins, ends)
                ends = 1 + (last if last >= 0 else content.find(b"\n", ends))
            part = content[begins : ends or None]  # 0: the last line, without a line end
            place = first + begins
            if text := self._decode(part, place):
                name = self._file.name if self._file.used_bytes <= max_bytes else f"{self._file.name}@{place}"
                yield Document(name, text)
            begins += len(part)


def _lines(piece: Piece) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that begin in a piece, and their offsets."""
    with piece.file.path.open("rb") as file:
        place = piece.first
        if place:
            place += _rest_of_line(piece, file)
        while place < piece.end:
            line = file.readline(min(piece.file.used_bytes - place, MAX_RECORD_CHARACTERS))
            if not line:
                return
            _check_length(piece, line)
            yield place, line
            place += len(line)


def _complete_lines(piece: Piece) -> tuple[int, bytes]:
    """Return the offset of the first line that begins in a piece, and all lines that begin in it."""
    with piece.file.path.open("rb") as file:
        first = piece.first
        if first:
            first += _rest_of_line(piece, file)
        content = file.read(max(0, piece.end - first))
        if content and not content.endswith(b"\n"):
            rest = file.readline(min(piece.file.used_bytes - first - len(content), MAX_RECORD_CHARACTERS))
            _check_length(piece, rest)
            content += rest
        return first, content


def _rest_of_line(piece: Piece, file: BinaryIO) -> int:
    """Skip the end of a line that began before the piece; return the number of bytes skipped."""
    file.seek(piece.first - 1)
    line = file.readline(MAX_RECORD_CHARACTERS)
    _check_length(piece, line)
    return len(line) - 1


def _check_length(piece: Piece, line: bytes) -> None:
    if len(line) == MAX_RECORD_CHARACTERS:
        raise too_long(piece.file.path, "line")
