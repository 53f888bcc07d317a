"""Detects compression, encoding and layout of text files from their contents, and opens them as text.

A file's name only adds a requirement: a file with the extension of a format must have that format.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

import zstandard

from training.data.text.decoding import MARK_INVALID
from training.errors import TokenizeError

Layout = Literal["text", "json lines", "json", "parquet"]
Compression = Literal["gzip", "bzip2", "xz", "zstd"]
JsonFiles = Literal["records", "text"]

MAGIC: dict[bytes, Compression] = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    **{bytes([number]) + b"\x2a\x4d\x18": "zstd" for number in range(0x50, 0x60)},
}
"""First bytes of compressed files. Sources: RFC 1952 (gzip), RFC 8878 (zstd, and its skippable frames),
https://tukaani.org/xz/xz-file-format.txt, and https://en.wikipedia.org/wiki/Bzip2#File_format (2026-11)."""
SUFFIXES: dict[str, Compression] = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
BYTE_ORDER_MARKS = (
    (b"\xff\xfe\0\0", "utf-32"),
    (b"\0\0\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
UTF_8 = "utf-8-sig"
PARQUET_MAGIC = b"PAR1"
JSONL_SUFFIXES = (".jsonl", ".ndjson")
BINARY_BYTES = 8000
"""A file with a NUL byte among its first BINARY_BYTES bytes is binary, as in Git (``buffer_is_binary``,
https://github.com/git/git/blob/master/xdiff-interface.c, 2026-11)."""
HEAD_BYTES = 1 << 16
"""Amount of text from which the format is determined."""
MAX_RECORD_CHARACTERS = 1 << 28
"""Maximum length of a line or a JSON record. It limits memory use."""
ZSTD_INPUT_BYTES = 1 << 12
"""Amount of compressed data per call. It limits the memory for a highly compressed file."""
ZSTD_WINDOW_BYTES = 1 << 31
"""Maximum window size, as in files created by ``zstd --long=31``."""


class NotTextError(Exception):
    """A file cannot be used as text; the message contains the reason and a remedy."""


@dataclass(frozen=True)
class Format:
    """A file's format.

    Attributes:
        layout: arrangement of documents.
        compression: compression; None if the file is not compressed.
        encoding: encoding of the decompressed text.
    """

    layout: Layout
    compression: Compression | None = None
    encoding: str = UTF_8

    @property
    def is_stream(self) -> bool:
        """True if the file can only be read from its beginning."""
        return self.layout == "json" or self.compression is not None or self.encoding != UTF_8

    def __str__(self) -> str:
        encoding = "" if self.encoding == UTF_8 or self.layout == "parquet" else f", {self.encoding}"
        return f"{self.layout}{encoding}{f', {self.compression}' if self.compression else ''}"


def detect(path: Path, text_key: str, json_files: JsonFiles) -> Format:
    """Return a file's format.

    Args:
        path: path to a file that is not empty.
        text_key: key of the text in JSON records.
        json_files: ``text``: a JSON file is plain text.

    Raises:
        NotTextError: The file is not text, or its format differs from its extension.
        TokenizeError: The file cannot be decompressed.
    """
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if head.startswith(PARQUET_MAGIC) or suffixes[-1:] == [".parquet"]:
        return Format("parquet")
    compression = next((kind for magic, kind in MAGIC.items() if head.startswith(magic)), None)
    claimed = SUFFIXES.get(suffixes[-1]) if suffixes else None
    if claimed not in (None, compression):
        raise NotTextError(f"not {claimed}, although its name ends in {suffixes[-1]}; rename it, or compress it again")
    if compression is not None:
        with _open_bytes(path, compression) as stream:
            head = stream.read(HEAD_BYTES)
    encoding = next((name for mark, name in BYTE_ORDER_MARKS if head.startswith(mark)), UTF_8)
    if encoding == UTF_8 and (place := head.find(b"\0", 0, BINARY_BYTES)) >= 0:
        raise NotTextError(f"binary: NUL byte at byte {place}; choose files with --extensions, or --skip-files")
    form = Format("text", compression, encoding)
    if json_files == "text":
        return form
    named = suffixes[-2 if claimed else -1 :][:1]
    return replace(form, layout=_json_layout(path, form, named[0] if named else "", text_key, head))


@contextmanager
def open_text(path: Path, form: Format) -> Iterator[io.TextIOWrapper]:
    """Open a file as text, with invalid bytes as MARK, and only "\\n" as a line ending.

    Raises:
        TokenizeError: The file cannot be decompressed; raised by reading.
    """
    with (
        _open_bytes(path, form.compression) as stream,
        io.TextIOWrapper(stream, encoding=form.encoding, errors=MARK_INVALID, newline="\n") as text,
    ):
        yield text


def lines(path: Path, form: Format) -> Iterator[str]:
    """Yield a file's lines with their line endings.

    Raises:
        TokenizeError: The file cannot be decompressed, or a line is too long.
    """
    with open_text(path, form) as text:
        while line := text.readline(MAX_RECORD_CHARACTERS):
            if len(line) == MAX_RECORD_CHARACTERS:
                raise too_long(path, "line")
            yield line


def too_long(path: Path, what: str) -> TokenizeError:
    """Return the error for a line or record that is too long."""
    return TokenizeError([f"{path}: a {what} has more than {MAX_RECORD_CHARACTERS} characters; split it"])


def json_values(path: Path, form: Format) -> Iterator[Any]:
    """Yield the elements of arrays in a JSON file, and the values outside arrays.

    Raises:
        TokenizeError: The file cannot be decompressed, or is not JSON.
    """
    with open_text(path, form) as text:
        yield from _JsonReader(path, text).values()


class _JsonReader:
    """Reads JSON values one at a time from a text of any size."""

    def __init__(self, path: Path, text: io.TextIOBase) -> None:
        self._path, self._text = path, text
        self._decoder = json.JSONDecoder()
        self._buffer = ""
        self._done = 0
        """Number of characters before the buffer."""
        self._at = 0
        self._ended = False

    def values(self) -> Iterator[Any]:
        while True:
            character = self._peek()
            if not character:
                return
            if character != "[":
                yield self._value()
                continue
            self._at += 1
            if self._peek() == "]":
                self._at += 1
                continue
            while True:
                yield self._value()
                separator = self._peek()
                self._at += 1
                if separator == "]":
                    break
                if separator != ",":
                    raise self._error("expected ',' or ']'")
                self._peek()

    def _peek(self) -> str:
        """Return the next character that is not white space; an empty string at the end."""
        while True:
            while self._at < len(self._buffer):
                if self._buffer[self._at] not in " \t\r\n":
                    return self._buffer[self._at]
                self._at += 1
            if self._ended:
                return ""
            self._fill(HEAD_BYTES)

    def _value(self) -> Any:
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._at)
            except RecursionError as error:
                raise self._error("nested too deeply") from error
            except ValueError as error:
                held = len(self._buffer) - self._at
                if self._ended:
                    raise self._error(getattr(error, "msg", str(error))) from error
                if held > MAX_RECORD_CHARACTERS:
                    raise too_long(self._path, "record") from error
                self._fill(max(HEAD_BYTES, held))  # doubles, so that the total work is linear
                continue
            self._at = end
            return value

    def _fill(self, characters: int) -> None:
        more = self._text.read(characters)
        self._ended = not more
        self._done += self._at
        self._buffer, self._at = self._buffer[self._at :] + more, 0

    def _error(self, rule: str) -> TokenizeError:
        place = self._done + self._at
        return TokenizeError(
            [f"{self._path}: character {place}: invalid JSON ({rule}); correct it, or use --json text"]
        )


def _json_layout(path: Path, form: Format, suffix: str, key: str, beginning: bytes) -> Layout:
    """Return the layout of a text that may be JSON, determined from its first record.

    Raises:
        NotTextError: The extension is that of JSON, but the file has no records with text.
    """
    by_lines = suffix in JSONL_SUFFIXES
    claimed = suffix == ".json" or by_lines
    head = beginning.decode(form.encoding, MARK_INVALID)
    first_line = head.lstrip().partition("\n")[0]
    if not first_line.startswith(("{", "[")):
        if suffix == ".json":
            raise NotTextError("not JSON records; use JSON files as plain text with --json text, or --skip-files")
        return "json lines" if by_lines else "text"
    if by_lines and not first_line.startswith("["):
        return "json lines"
    try:
        one_line = isinstance(json.loads(first_line), dict)
    except (ValueError, RecursionError):
        one_line = False
    try:
        values = json_values(path, form) if claimed else _JsonReader(path, io.StringIO(head)).values()
        record: Any = next(values, None)
    except TokenizeError as error:
        if claimed:
            raise NotTextError(error.problems[0].removeprefix(f"{path}: ")) from error
        return "text"
    if isinstance(record, dict) and isinstance(record.get(key, 0), str | None):
        return "json lines" if one_line else "json"
    if claimed:
        found = "no records" if record is None else type(record).__name__
        if isinstance(record, dict):
            found = f"keys {', '.join(record)}"
        raise NotTextError(
            f"JSON without text under the key {key!r} (found: {found[:200]}); choose another key with --text-key, "
            "or use JSON files as plain text with --json text"
        )
    return "text"


@contextmanager
def _open_bytes(path: Path, compression: Compression | None) -> Iterator[BinaryIO]:
    openers: dict[Compression | None, Callable[[Path], Any]] = {
        None: lambda path: path.open("rb"),
        "gzip": gzip.open,
        "bzip2": bz2.open,
        "xz": lzma.open,
        "zstd": lambda path: io.BufferedReader(_ZstdReader(path)),
    }
    try:
        with openers[compression](path) as opened:
            yield opened
    except (gzip.BadGzipFile, EOFError, zlib.error, zstandard.ZstdError, lzma.LZMAError) as error:
        raise _damaged(path, error) from error
    except OSError as error:
        if compression is None or error.errno is not None:
            raise
        raise _damaged(path, error) from error  # bz2 raises a plain OSError


def _damaged(path: Path, error: Exception) -> TokenizeError:
    return TokenizeError([f"{path}: cannot decompress ({error}); compress it again, or move it out of the folder"])


class _ZstdReader(io.RawIOBase):
    """Decompresses all frames. zstandard's own reader stops after the first frame and ignores a truncated frame."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._frame: Any = None
        self._input = b""
        self._output = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        while not self._output:
            self._input = self._input or self._file.read(ZSTD_INPUT_BYTES)
            if not self._input:
                if self._frame is not None:
                    raise EOFError("the last frame is truncated")
                return 0
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES).decompressobj()
            self._output = memoryview(self._frame.decompress(self._input))
            self._input = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = None
        size = min(len(into), len(self._output))
        into[:size] = self._output[:size]
        self._output = self._output[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()
