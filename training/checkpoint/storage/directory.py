"""A directory as a checkpoint store, on a local disk or on a file system that several nodes mount.

An object is written to a temporary file in the same directory, and then linked or renamed into place. Each step is
synced, so readers see either the complete object or nothing, even if a process or the machine crashes.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from training.checkpoint.storage.backend import Backend
from training.errors import AlreadyExistsError, NotFoundError, StoreError

TEMPORARY = ".unfinished-"
_CANNOT_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)
"""Errors from linking across file systems, on a file system without hard links, or to a file with too many links."""
_NOT_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP)
"""Errors from open and write on a file system without direct writes, such as tmpfs."""
_DIRECT_FROM_BYTES = 1024 * 1024
"""Objects of at least this size bypass the page cache. Copying to the cache and writing back cost several times as much
as the write itself, and would evict the dataset."""
_BLOCK_BYTES = 4096
"""Alignment for direct writes. Address and length must be multiples of the device's logical block size, which is 512 or
4096 bytes.
Source: https://man7.org/linux/man-pages/man2/open.2.html, O_DIRECT (2025-02)."""


class DirectoryBackend:
    """Stores objects as files under ``root``; see :class:`training.checkpoint.storage.backend.Backend`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = str(root)

    def put(self, key: str, content: bytes) -> None:
        """Write a file and rename it into place."""
        path = self.root / key
        with _store_errors(f"{path}: cannot be written"), _temporary_file(path, content) as temporary:
            temporary.replace(path)
            _sync_directory(path.parent)

    def create(self, key: str, content: bytes) -> None:
        """Write a file and hard-link it into place, which fails if the path exists."""
        path = self.root / key
        with _store_errors(f"{path}: cannot be written"), _temporary_file(path, content) as temporary:
            try:
                os.link(temporary, path)
            except FileExistsError as error:
                raise AlreadyExistsError(f"{path}: already exists") from error
            _sync_directory(path.parent)

    def get(self, key: str) -> bytes:
        """Read a file."""
        path = self.root / key
        with _store_errors(f"{path}: cannot be read"):
            try:
                return path.read_bytes()
            except FileNotFoundError as error:
                raise NotFoundError(f"{path}: does not exist") from error

    def read_into(self, key: str, buffers: list[memoryview]) -> int:
        """Read the beginning of a file; return the file's size, or the number of bytes read if the read ended early."""
        path = self.root / key
        with _store_errors(f"{path}: cannot be read"):
            try:
                with path.open("rb", buffering=0) as file:
                    wanted = sum(len(buffer) for buffer in buffers)
                    found = os.readv(file.fileno(), buffers)
                    size = os.fstat(file.fileno()).st_size
                    return size if found == min(wanted, size) else found
            except FileNotFoundError as error:
                raise NotFoundError(f"{path}: does not exist") from error

    def copy_from(self, source: Backend, source_key: str, key: str) -> bool:
        """Hard-link a file from another directory store instead of copying it. Each store can delete its own link."""
        if not isinstance(source, DirectoryBackend):
            return False
        path = self.root / key
        temporary = path.parent / f"{TEMPORARY}{uuid.uuid4().hex}"
        with _store_errors(f"{path}: cannot be linked"):
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
                # Renaming a link over another link to the same file leaves both in place.
                temporary.unlink(missing_ok=True)
            _sync_directory(path.parent)
        return True

    def keys(self, prefix: str, limit: int | None = None) -> list[str]:
        """Walk only the deepest directory in the prefix."""
        start = self.root / prefix.rpartition("/")[0]
        with _store_errors(f"{start}: cannot be listed"):
            keys = [
                path.relative_to(self.root).as_posix()
                for path in start.rglob("*")
                if not path.name.startswith(TEMPORARY) and path.is_file()
            ]
        return sorted(key for key in keys if key.startswith(prefix))[:limit]

    def delete(self, keys: list[str]) -> None:
        """Unlink files."""
        for key in keys:
            with _store_errors(f"{self.root / key}: cannot be deleted"):
                (self.root / key).unlink(missing_ok=True)


@contextmanager
def _temporary_file(path: Path, content: bytes) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f"{TEMPORARY}{uuid.uuid4().hex}"
    try:
        if len(content) < _DIRECT_FROM_BYTES or not _write_directly(temporary, content):
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


class _Scratch(threading.local):
    """Page-aligned memory for direct writes, kept per thread."""

    memory: mmap.mmap | None = None

    def of(self, size_bytes: int) -> mmap.mmap:
        """Return a buffer of at least this size."""
        if self.memory is None or len(self.memory) < size_bytes:
            self.memory = mmap.mmap(-1, size_bytes)
        return self.memory


_scratch = _Scratch()


def _write_directly(path: Path, content: bytes) -> bool:
    """Write a file with O_DIRECT and sync it; return False if the file system or the OS does not support that."""
    direct = getattr(os, "O_DIRECT", None)
    if direct is None:
        return False
    padded_bytes = -(-len(content) // _BLOCK_BYTES) * _BLOCK_BYTES
    memory = _scratch.of(padded_bytes)
    memory[: len(content)] = content
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | direct, 0o666)
    except OSError as error:
        if error.errno in _NOT_DIRECT:
            return False
        raise
    try:
        written_bytes = 0
        with memoryview(memory) as view:
            while written_bytes < padded_bytes:
                written_bytes += os.write(descriptor, view[written_bytes:padded_bytes])
        os.ftruncate(descriptor, len(content))
        os.fsync(descriptor)
    except OSError as error:
        if error.errno in _NOT_DIRECT:
            return False
        raise
    finally:
        os.close(descriptor)
    return True


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _store_errors(problem: str) -> Iterator[None]:
    """Convert OSError to StoreError with this description of the problem."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{problem}: {error.strerror}; free space or correct its permissions") from error
