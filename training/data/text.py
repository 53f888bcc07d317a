"""Documents out of a folder: which files are text, how much of them is used, and where a document begins and ends.

The choice depends on paths and contents alone, so that it is the same on every machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from training.errors import TokenizeError

SKIPPED_DIRECTORIES = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})
"""Folders of other people's programs and of compiled ones; hidden folders are skipped too."""
LARGEST_DOCUMENT_BYTES = 128 * 1024
SMALLEST_DOCUMENT_BYTES = 4 * 1024
DOCUMENTS_WANTED = 64
"""A long file is cut at line ends into documents of at most 128 KiB, and of less when all the text is little, so that
even a single file can be split into train and validation."""
SHOWN_PATHS = 10


@dataclass(frozen=True)
class TextFile:
    """A file whose text is used.

    Attributes:
        path: where it is.
        name: relative to the folder, with forward slashes.
        used_bytes: how much of it is used, from its beginning; less than all only for the last file under a limit.
        blake3: of the used bytes.
    """

    path: Path
    name: str
    used_bytes: int
    blake3: str

    def read(self) -> str:
        """The used text.

        Raises:
            TokenizeError: the file has changed since it was looked at.
        """
        with self.path.open("rb") as file:
            content = file.read(self.used_bytes)
        if blake3(content).hexdigest() != self.blake3:
            raise TokenizeError([f"{self.path}: changed while it was being read; try again when nothing writes there"])
        return content.decode("utf-8-sig")


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


@dataclass(frozen=True)
class Document:
    """A piece of text that is trained on, or validated on, as a whole."""

    name: str
    text: str

    def place(self) -> float:
        """A number from 0 to 1 (excluded) that only the name decides."""
        return int.from_bytes(blake3(self.name.encode()).digest(7), "big") / 2.0**56


def survey(folder: Path, extensions: tuple[str, ...] | None, max_bytes: int | None) -> Survey:
    """Look at a folder's files, in the order of their names' hashes, until ``max_bytes`` of text are found.

    Raises:
        TokenizeError: no folder, no text in it, or files that may not be read (all of them named).
    """
    if not folder.is_dir():
        raise TokenizeError([f"{folder}: is not a folder; give one that holds text files"])
    files: list[TextFile] = []
    unreadable: list[str] = []
    skipped = used = 0
    for path in _paths_by_hash(folder, extensions, unreadable):
        left = None if max_bytes is None else max_bytes - used
        if left is not None and left <= 0:
            break
        try:
            found = _text_file(path, path.relative_to(folder).as_posix(), left)
        except OSError as error:
            unreadable.append(f"{path}: cannot be read ({error.strerror}); correct its permissions or move it away")
            continue
        if found is None:
            skipped += 1
        elif found.used_bytes:
            files.append(found)
            used += found.used_bytes
    if unreadable:
        more = len(unreadable) - SHOWN_PATHS
        raise TokenizeError(unreadable[:SHOWN_PATHS] + ([f"and {more} more that cannot be read"] if more > 0 else []))
    if not files:
        wanted = f" with extension {', '.join(extensions)}" if extensions else ""
        raise TokenizeError(
            [f"{folder}: holds no UTF-8 text files{wanted} ({skipped} other files); give a folder that does"]
        )
    return Survey(files, skipped)


def document_bytes(total_bytes: int) -> int:
    """Length in bytes above which a file of a corpus of ``total_bytes`` is cut into documents."""
    return max(SMALLEST_DOCUMENT_BYTES, min(LARGEST_DOCUMENT_BYTES, total_bytes // DOCUMENTS_WANTED))


def documents(file: TextFile, most_bytes: int) -> Iterator[Document]:
    """Cut a file into documents of at most about ``most_bytes``, at line ends."""
    text = file.read()
    if file.used_bytes <= most_bytes:
        yield Document(file.name, text)
        return
    lines: list[str] = []
    size = number = 0
    for line in text.splitlines(keepends=True):
        if lines and size + len(line) > most_bytes:
            yield Document(f"{file.name}#{number}", "".join(lines))
            lines, size, number = [], 0, number + 1
        lines.append(line)
        size += len(line)
    if lines:
        yield Document(f"{file.name}#{number}", "".join(lines))


def _paths_by_hash(folder: Path, extensions: tuple[str, ...] | None, unreadable: list[str]) -> list[Path]:
    def on_error(error: OSError) -> None:
        unreadable.append(
            f"{error.filename}: cannot be read ({error.strerror}); correct its permissions or move it away"
        )

    paths = []
    for root, directories, names in os.walk(folder, onerror=on_error):
        directories[:] = [name for name in directories if name not in SKIPPED_DIRECTORIES and not name.startswith(".")]
        paths += [Path(root) / name for name in names if extensions is None or name.endswith(extensions)]
    return sorted(paths, key=lambda path: blake3(path.relative_to(folder).as_posix().encode()).digest())


def _text_file(path: Path, name: str, most_bytes: int | None) -> TextFile | None:
    """Look into a file; None if it is not text."""
    if not path.is_file():
        return None  # a socket, a pipe, or a link to nowhere
    content = path.read_bytes()
    if b"\0" in content:
        return None
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if most_bytes is not None and len(content) > most_bytes:
        # To the last whole line; a line longer than all that is allowed is left out.
        content = content[: content.rfind(b"\n", 0, most_bytes) + 1]
    return TextFile(path, name, len(content), blake3(content).hexdigest())
