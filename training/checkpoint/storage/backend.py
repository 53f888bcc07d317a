"""A checkpoint store's storage interface: five operations that every object store supports.

Objects cannot be renamed or appended to. The only atomic operation is :meth:`Backend.create`, which fails if the key
exists.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable


class Backend(Protocol):
    """An object store. Keys are relative and use ``/`` as separator. All operations raise StoreError on failure."""

    url: str

    def put(self, key: str, content: bytes) -> None:
        """Write an object durably, replacing any existing object."""

    def create(self, key: str, content: bytes) -> None:
        """Write an object durably, unless the key exists.

        Raises:
            AlreadyExistsError: The key exists.
        """

    def get(self, key: str) -> bytes:
        """Read an object.

        Raises:
            NotFoundError: The key does not exist.
        """

    def keys(self, prefix: str, limit: int | None = None) -> list[str]:
        """Return the keys that begin with ``prefix`` in ascending order: all keys, or the first ``limit`` keys."""

    def delete(self, keys: list[str]) -> None:
        """Delete objects, ignoring missing keys."""


@runtime_checkable
class ReadsInPlace(Protocol):
    """A backend that can read into existing memory."""

    def read_into(self, key: str, buffers: list[memoryview]) -> int:
        """Fill the buffers in order, starting at the beginning of an object.

        Returns:
            Size of the object in bytes; it may be larger or smaller than the buffers.

        Raises:
            NotFoundError: The key does not exist.
        """


@runtime_checkable
class CopiesFrom(Protocol):
    """A backend that can copy an object from another backend without passing its bytes through this process."""

    def copy_from(self, source: Backend, source_key: str, key: str) -> bool:
        """Copy an object from another backend.

        Returns:
            False if copying from that backend is not supported; nothing was written.

        Raises:
            NotFoundError: The object does not exist in ``source``.
        """


def tiers_of(backend: Backend) -> tuple[Backend, ...]:
    """Return the tiers that may hold a chunk, fastest first."""
    tiers: tuple[Backend, ...] = getattr(backend, "tiers", (backend,))
    return tiers
