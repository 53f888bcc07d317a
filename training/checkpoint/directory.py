"""A directory as a checkpoint store: a local disk, or a file system that several nodes mount.

An object is written beside its place and then linked or renamed to it, each synced, so that a reader sees all of it or
nothing, whatever dies when.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from training.checkpoint.backend import Backend
from training.errors import AlreadyExistsError, NotFoundError, StoreError

TEMPORARY = ".unfinished-"
_CANNOT_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)
"""Another file system, one without hard links, or a file with as many links as it may have."""


class DirectoryBackend:
    """Objects are files under ``root``; see :class:`training.checkpoint.backend.Backend`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = str(root)

    def put(self, key: str, content: bytes) -> None:
        """Write a file and rename it into place."""
        path = self.root / key
        with _in_words(f"{path}: cannot be written"), _temporary_file(path, content) as temporary:
            temporary.replace(path)
            _sync_directory(path.parent)

    def create(self, key: str, content: bytes) -> None:
        """Write a file and hard-link it into place, which fails if the place is taken."""
        path = self.root / key
        with _in_words(f"{path}: cannot be written"), _temporary_file(path, content) as temporary:
            try:
                os.link(temporary, path)
            except FileExistsError as error:
                raise AlreadyExistsError(f"{path}: exists already") from error
            _sync_directory(path.parent)

    def get(self, key: str) -> bytes:
        """Read a file."""
        path = self.root / key
        with _in_words(f"{path}: cannot be read"):
            try:
                return path.read_bytes()
            except FileNotFoundError as error:
                raise NotFoundError(f"{path}: does not exist") from error

    def read_into(self, key: str, buffers: list[memoryview]) -> int:
        """Read from the beginning of a file; return its size, or what was read if the system stopped early."""
        path = self.root / key
        with _in_words(f"{path}: cannot be read"):
            try:
                with path.open("rb", buffering=0) as file:
                    wanted = sum(len(buffer) for buffer in buffers)
                    found = os.readv(file.fileno(), buffers)
                    size = os.fstat(file.fileno()).st_size
                    return size if found == min(wanted, size) else found
            except FileNotFoundError as error:
                raise NotFoundError(f"{path}: does not exist") from error

    def copy_from(self, source: Backend, source_key: str, key: str) -> bool:
        """Hard-link a file of another directory store: no bytes are copied, and either store may delete its name."""
        if not isinstance(source, DirectoryBackend):
            return False
        path = self.root / key
        temporary = path.parent / f"{TEMPORARY}{uuid.uuid4().hex}"
        with _in_words(f"{path}: cannot be linked"):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source.root / source_key, temporary)
                temporary.replace(path)
            except FileNotFoundError as error:
                raise NotFoundError(f"{source.root / source_key}: does not exist") from error
            except OSError as error:
                if error.errno in _CANNOT_LINK:
                    return False
                raise
            finally:
                # Renaming a link to where another name of the same file is leaves both.
                temporary.unlink(missing_ok=True)
            _sync_directory(path.parent)
        return True

    def keys(self, prefix: str) -> list[str]:
        """Walk the deepest directory that the prefix names."""
        start = self.root / prefix.rpartition("/")[0]
        with _in_words(f"{start}: cannot be listed"):
            keys = [
                path.relative_to(self.root).as_posix()
                for path in start.rglob("*")
                if not path.name.startswith(TEMPORARY) and path.is_file()
            ]
        return sorted(key for key in keys if key.startswith(prefix))

    def delete(self, keys: list[str]) -> None:
        """Unlink files."""
        for key in keys:
            with _in_words(f"{self.root / key}: cannot be deleted"):
                (self.root / key).unlink(missing_ok=True)


@contextmanager
def _temporary_file(path: Path, content: bytes) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f"{TEMPORARY}{uuid.uuid4().hex}"
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _in_words(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{what}: {error.strerror}; free space or correct its permissions") from error
