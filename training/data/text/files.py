"""Selects the text files in a folder, and records the reasons for skipping other files.

Only paths and contents affect the selection, so it is the same on every machine.
"""

from __future__ import annotations

import mmap
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from training.data.text.decoding import REMEDY, Decoding, Utf8Check
from training.data.text.formats import Format, JsonFiles, NotTextError, detect
from training.data.text.parquet import row_group_bytes
from training.errors import TokenizeError

PACKAGE_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})
"""Folders with installed packages or compiled code, which are skipped. Hidden folders are also skipped."""
CHUNK_BYTES = 1 << 24
"""Maximum number of bytes of a file to keep in memory."""
SHOWN_PATHS = 10
EXTENSION, LIMIT, EMPTY, HIDDEN = "other extension", "beyond --max-bytes", "empty", "hidden or package folder"
"""Expected reasons for skipping a file, from the options or the documentation. All other reasons are problems."""


@dataclass(frozen=True)
class Selection:
    """Options that select files.

    Attributes:
        extensions: file extensions to use; None: all.
        max_bytes: maximum size of the text; None: unlimited.
        text_key: key (JSON) or column (Parquet) with a document's text.
        decoding: policy for bytes that are not text.
        json_files: how JSON files are read.
        skip_files: skip files that are not text instead of reporting them as problems.
    """

    extensions: tuple[str, ...] | None = None
    max_bytes: int | None = None
    text_key: str = "text"
    decoding: Decoding = "strict"
    json_files: JsonFiles = "records"
    skip_files: bool = False


@dataclass(frozen=True)
class TextFile:
    """A selected text file.

    Attributes:
        path: path to the file.
        name: path relative to the folder, with forward slashes.
        form: format of the file.
        used_bytes: number of bytes used, from the beginning of the file; less than its size only if `max_bytes`
            truncates it. For Parquet, the size of the text column.
        row_groups: number of row groups used (Parquet).
        blake3: hash of the used bytes; for Parquet and streams, hash of all bytes.
        changed_nanoseconds: modification time.
    """

    path: Path
    name: str
    form: Format
    used_bytes: int
    row_groups: int
    blake3: str
    changed_nanoseconds: int

    def require_unchanged(self) -> None:
        """Check that the file was not modified since the survey.

        Raises:
            TokenizeError: The file was modified.
        """
        if self.path.stat().st_mtime_ns != self.changed_nanoseconds:
            raise TokenizeError([f"{self.path}: modified while in use; try again when no process is writing to it"])


@dataclass(frozen=True)
class Survey:
    """A folder's text files.

    Attributes:
        files: selected files, in order of use.
        skipped: reason for skipping each unused file or folder, keyed by its path relative to the input folder.
    """

    files: list[TextFile] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def total_bytes(self) -> int:
        """Size of the selected text."""
        return sum(file.used_bytes for file in self.files)

    def skipped_by_reason(self) -> dict[str, int]:
        """Return the number of skipped files and folders for each reason."""
        return dict(sorted(Counter(reason.partition(":")[0] for reason in self.skipped.values()).items()))


def survey(folder: Path, selection: Selection, seen: Callable[[int], None]) -> Survey:
    """Select text files in a folder and its subfolders, ordered by name hash, up to ``max_bytes`` of text.

    Args:
        folder: folder to search.
        selection: options.
        seen: callback that receives the size of each selected file.

    Raises:
        TokenizeError: The folder is missing or has no text, or files are unreadable or not text; the message lists
            them.
    """
    if not folder.is_dir():
        raise TokenizeError([f"{folder}: not a folder; specify a folder of text files"])
    found = Survey()
    problems: list[str] = []
    used = 0
    for path, reason in _paths_by_hash(folder, selection.extensions, problems):
        name = path.relative_to(folder).as_posix()
        left = None if selection.max_bytes is None else selection.max_bytes - used
        if reason is None and left is not None and left <= 0:
            reason = LIMIT
        if reason is not None:
            found.skipped[name] = reason
            continue
        try:
            file = _examine(path, name, left, selection)
        except NotTextError as error:
            if selection.skip_files:
                found.skipped[name] = str(error).partition(";")[0]
            else:
                problems.append(f"{path}: {error}")
        except OSError as error:
            problems.append(_unreadable(path, error))
        except TokenizeError as error:
            problems += error.problems
        else:
            if file.used_bytes:
                found.files.append(file)
                used += file.used_bytes
                seen(file.used_bytes)
            else:
                found.skipped[name] = LIMIT if path.stat().st_size else EMPTY
    if problems:
        more = len(problems) - SHOWN_PATHS
        raise TokenizeError(problems[:SHOWN_PATHS] + ([f"and {more} more files"] if more > 0 else []))
    if not found.files:
        wanted = f" with extension {', '.join(selection.extensions)}" if selection.extensions else ""
        counts = ", ".join(f"{reason}: {count}" for reason, count in found.skipped_by_reason().items())
        raise TokenizeError(
            [f"{folder}: no text files{wanted} (skipped: {counts or 'none'}); specify a folder of text files"]
        )
    return found


def _unreadable(path: Path | str, error: OSError) -> str:
    return f"{path}: cannot read ({error.strerror or error}); correct its permissions, or move it out of the folder"


def _paths_by_hash(
    folder: Path, extensions: tuple[str, ...] | None, problems: list[str]
) -> list[tuple[Path, str | None]]:
    """Return all files, each with the reason for skipping it, and the folders that are not searched."""
    paths: list[tuple[Path, str | None]] = []
    for root, directories, names in os.walk(
        folder, onerror=lambda error: problems.append(_unreadable(error.filename, error))
    ):
        for name in [*directories]:
            path = Path(root) / name
            if name in PACKAGE_FOLDERS or name.startswith("."):
                directories.remove(name)
                paths.append((path, HIDDEN))
            elif path.is_symlink():
                paths.append((path, None))  # os.walk does not follow links; _examine reports it
        for name in names:
            paths.append((Path(root) / name, None if extensions is None or name.endswith(extensions) else EXTENSION))
    return sorted(paths, key=lambda each: blake3(os.fsencode(each[0].relative_to(folder).as_posix())).digest())


def _examine(path: Path, name: str, max_bytes: int | None, selection: Selection) -> TextFile:
    """Return a text file's description.

    Raises:
        NotTextError: The file is not text.
        TokenizeError: The file is damaged, or has no text under the key.
    """
    if path.is_dir():
        raise NotTextError("symbolic link to a folder; specify the folder as --input, or --skip-files")
    if not path.is_file():
        raise NotTextError("not a regular file; move it out of the folder, or specify --skip-files")
    status = path.stat()
    used, row_groups = status.st_size, 0
    if not used:
        return TextFile(path, name, Format("text"), 0, 0, "", status.st_mtime_ns)
    form = detect(path, selection.text_key, selection.json_files)
    if form.layout == "parquet":
        sizes = row_group_bytes(path, selection.text_key)
        while row_groups < len(sizes) and (max_bytes is None or sum(sizes[:row_groups]) < max_bytes):
            row_groups += 1
        used = sum(sizes[:row_groups])
    elif not form.is_stream and max_bytes is not None and used > max_bytes:
        used = _complete_lines_bytes(path, max_bytes)
    if form.is_stream or form.layout == "parquet":
        hashed = blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()
    else:
        hashed = _hash_text(path, used, selection.decoding)
    return TextFile(path, name, form, used, row_groups, hashed, status.st_mtime_ns)


def _complete_lines_bytes(path: Path, max_bytes: int) -> int:
    """Return the size of the complete lines within a limit; 0 if the first line exceeds it."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.rfind(b"\n", 0, max_bytes) + 1


def _hash_text(path: Path, size: int, decoding: Decoding) -> str:
    """Return the hash of the first ``size`` bytes.

    Raises:
        NotTextError: These bytes are not UTF-8, and the policy is strict.
    """
    digest, check = blake3(), Utf8Check()
    with path.open("rb") as file:
        while size:
            content = file.read(min(size, CHUNK_BYTES))
            if not content:
                raise TokenizeError([f"{path}: truncated while in use; try again when no process is writing to it"])
            size -= len(content)
            digest.update(content)
            if decoding == "strict":
                check.update(content, final=not size)
            if check.invalid is not None:
                raise NotTextError(f"not UTF-8: byte {check.invalid}; {REMEDY}, or skip the file with --skip-files")
    return digest.hexdigest()
