"""Which files of a folder are text, and how much of them is used.

The choice depends on paths and contents alone, so that it is the same on every machine.
"""

from __future__ import annotations

import codecs
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from blake3 import blake3

from training.data.parquet import row_group_bytes
from training.errors import TokenizeError

Kind = Literal["text", "jsonl", "packed jsonl", "parquet"]

SKIPPED_DIRECTORIES = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})
"""Folders of other people's programs and of compiled ones; hidden folders are skipped too."""
JSONL_ENDINGS = (".jsonl", ".ndjson")
PACKED_ENDINGS = tuple(f"{name}{packing}" for name in (*JSONL_ENDINGS, ".json") for packing in (".gz", ".zst"))
LOOKED_AT_BYTES = 1 << 24
"""How much of a file is in memory while it is looked at."""
SHOWN_PATHS = 10


@dataclass(frozen=True)
class TextFile:
    """A file whose text is used.

    Attributes:
        path: where it is.
        name: relative to the folder, with forward slashes.
        kind: how documents are stored in it.
        used_bytes: how much of it is used, from its beginning; less than all only for the last file under a limit.
            Of Parquet it is the size of the texts' column.
        row_groups: of Parquet: how many are used.
        blake3: of the used bytes; of Parquet and of compressed files, of all bytes.
        changed_nanoseconds: when the file was last changed.
    """

    path: Path
    name: str
    kind: Kind
    used_bytes: int
    row_groups: int
    blake3: str
    changed_nanoseconds: int

    def require_unchanged(self) -> None:
        """Refuse a file that was written to since it was looked at.

        Raises:
            TokenizeError: it was.
        """
        if self.path.stat().st_mtime_ns != self.changed_nanoseconds:
            raise TokenizeError([f"{self.path}: changed while it was in use; try again when nothing writes there"])


@dataclass(frozen=True)
class Survey:
    """What a folder holds.

    Attributes:
        files: those whose text is used, in the order of use.
        skipped: files that are not UTF-8 text.
    """

    files: list[TextFile]
    skipped: int

    @property
    def total_bytes(self) -> int:
        """Text used, in bytes."""
        return sum(file.used_bytes for file in self.files)


def survey(
    folder: Path,
    extensions: tuple[str, ...] | None,
    max_bytes: int | None,
    text_key: str,
    seen: Callable[[int], None],
) -> Survey:
    """Look at a folder's files, in the order of their names' hashes, until ``max_bytes`` of text are found.

    Args:
        folder: looked through, with all folders in it.
        extensions: of the files to use; None: all.
        max_bytes: of text; None: all.
        text_key: of Parquet: the column that holds texts.
        seen: called with the bytes looked at since it was called last.

    Raises:
        TokenizeError: no folder, no text in it, or files that may not be read (all of them named).
    """
    if not folder.is_dir():
        raise TokenizeError([f"{folder}: is not a folder; give one that holds text files"])
    files: list[TextFile] = []
    problems: list[str] = []
    skipped = used = 0
    for path in _paths_by_hash(folder, extensions, problems):
        left = None if max_bytes is None else max_bytes - used
        if left is not None and left <= 0:
            break
        try:
            found = _look_at(path, path.relative_to(folder).as_posix(), left, text_key)
        except OSError as error:
            problems.append(_cannot_be_read(path, error))
            continue
        except TokenizeError as error:
            problems += error.problems
            continue
        if found is None:
            skipped += 1
        elif found.used_bytes:
            files.append(found)
            used += found.used_bytes
            seen(found.used_bytes)
    if problems:
        more = len(problems) - SHOWN_PATHS
        raise TokenizeError(problems[:SHOWN_PATHS] + ([f"and {more} more files"] if more > 0 else []))
    if not files:
        wanted = f" with extension {', '.join(extensions)}" if extensions else ""
        raise TokenizeError(
            [f"{folder}: holds no UTF-8 text files{wanted} ({skipped} other files); give a folder that does"]
        )
    return Survey(files, skipped)


def _cannot_be_read(path: Path | str, error: OSError) -> str:
    return f"{path}: cannot be read ({error.strerror or error}); correct its permissions or move it away"


def _paths_by_hash(folder: Path, extensions: tuple[str, ...] | None, problems: list[str]) -> list[Path]:
    paths = []
    for root, directories, names in os.walk(
        folder, onerror=lambda error: problems.append(_cannot_be_read(error.filename, error))
    ):
        directories[:] = [name for name in directories if name not in SKIPPED_DIRECTORIES and not name.startswith(".")]
        paths += [Path(root) / name for name in names if extensions is None or name.endswith(extensions)]
    return sorted(paths, key=lambda path: blake3(path.relative_to(folder).as_posix().encode()).digest())


def _look_at(path: Path, name: str, most_bytes: int | None, text_key: str) -> TextFile | None:
    """Look into a file; None if it is not text."""
    if not path.is_file():
        return None  # a socket, a pipe, or a link to nowhere
    status = path.stat()
    kind = _kind(name)
    used, row_groups = status.st_size, 0
    if kind == "parquet":
        sizes = row_group_bytes(path, text_key)
        while row_groups < len(sizes) and (most_bytes is None or sum(sizes[:row_groups]) < most_bytes):
            row_groups += 1
        used = sum(sizes[:row_groups])
    elif kind != "packed jsonl" and most_bytes is not None and used > most_bytes:
        used = _whole_lines(path, most_bytes)
    hashed = _hash_of_text(path, used) if kind in ("text", "jsonl") else _hash(path, status.st_size)
    if hashed is None:
        return None
    return TextFile(path, name, kind, used, row_groups, hashed, status.st_mtime_ns)


def _kind(name: str) -> Kind:
    lower = name.lower()
    if lower.endswith(".parquet"):
        return "parquet"
    if lower.endswith(PACKED_ENDINGS):
        return "packed jsonl"
    return "jsonl" if lower.endswith(JSONL_ENDINGS) else "text"


def _whole_lines(path: Path, most_bytes: int) -> int:
    """Bytes up to the end of the last line within a limit; a line longer than all that is allowed is left out."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.rfind(b"\n", 0, most_bytes) + 1


def _hash_of_text(path: Path, used_bytes: int) -> str | None:
    """Hash of the beginning of a file; None if that is not UTF-8 text."""
    digest, decoder = blake3(), codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        left = used_bytes
        while left:
            content = file.read(min(left, LOOKED_AT_BYTES))
            left -= len(content)
            if not content:
                raise TokenizeError(
                    [f"{path}: became shorter while it was in use; try again when nothing writes there"]
                )
            if b"\0" in content:
                return None
            try:
                decoder.decode(content, final=not left)
            except UnicodeDecodeError:
                return None
            digest.update(content)
    return digest.hexdigest()


def _hash(path: Path, size: int) -> str:
    return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest() if size else blake3().hexdigest()
