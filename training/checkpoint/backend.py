"""What a checkpoint store asks of the place it is kept in: five operations that every object store has.

There is no rename and no append. The one strong operation is :meth:`Backend.create`, which fails if the key exists.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable
from urllib.parse import urlsplit

from training.errors import ConfigurationError


class Backend(Protocol):
    """Keys are relative, with ``/`` between their parts. All operations raise StoreError in words."""

    url: str

    def put(self, key: str, content: bytes) -> None:
        """Write an object, durably, over any older one."""

    def create(self, key: str, content: bytes) -> None:
        """Write an object, durably, unless the key exists.

        Raises:
            AlreadyExistsError: it exists.
        """

    def get(self, key: str) -> bytes:
        """Read an object whole.

        Raises:
            NotFoundError: there is none.
        """

    def keys(self, prefix: str) -> list[str]:
        """All keys that begin with ``prefix``, in ascending order."""

    def delete(self, keys: list[str]) -> None:
        """Remove objects; those that are gone already are no error."""


@runtime_checkable
class ReadsInPlace(Protocol):
    """A backend that can read to memory that is there already."""

    def read_into(self, key: str, buffers: list[memoryview]) -> int:
        """Fill the buffers, one after another, from the beginning of an object.

        Returns:
            Bytes of the whole object, which may be more or fewer than the buffers hold.

        Raises:
            NotFoundError: there is none.
        """


@runtime_checkable
class CopiesFrom(Protocol):
    """A backend that can take an object over from another without its bytes passing through this process."""

    def copy_from(self, source: Backend, source_key: str, key: str) -> bool:
        """Make an object of the same content as one of another place.

        Returns:
            False if it cannot from there; nothing was done.

        Raises:
            NotFoundError: there is none in ``source``.
        """


def tiers_of(backend: Backend) -> tuple[Backend, ...]:
    """The places in which a chunk may be, the fastest first."""
    tiers: tuple[Backend, ...] = getattr(backend, "tiers", (backend,))
    return tiers


def open_backend(url: str) -> Backend:
    """Open ``s3://bucket/prefix``, a directory, or ``DIRECTORY,URL``: a fast tier and the durable one behind it.

    Raises:
        ConfigurationError: another scheme, no bucket, or more than two tiers.
    """
    if "," in url:
        from training.checkpoint.tiers import TieredBackend

        tiers = url.split(",")
        if len(tiers) != 2 or not all(tiers) or "://" in tiers[0]:
            raise ConfigurationError([f"{url}: is not DIRECTORY,URL; give a local directory and one durable store"])
        return TieredBackend(open_backend(tiers[0]), open_backend(tiers[1]))
    if "://" not in url:
        from training.checkpoint.directory import DirectoryBackend

        return DirectoryBackend(Path(url))
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc:
        raise ConfigurationError([f"{url}: neither a directory nor s3://bucket/prefix; give one of these"])
    from training.checkpoint.s3 import S3Backend

    return S3Backend(parts.netloc, parts.path.strip("/"))
