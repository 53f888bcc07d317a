"""Determines which chunks exist, with listings of bounded size.

Every node of a run can write under ``chunks/``, so the number of objects there has no limit.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

from training.checkpoint.manifest import CHUNK_PREFIX
from training.checkpoint.storage.backend import Backend
from training.checkpoint.storage.parallel import TRANSFER_THREADS, results_of

MAX_LISTED = 100_000
"""Maximum number of keys in a listing: 100 requests to S3. That many chunks of 8 MiB hold 780 GiB."""


class ChunkListing:
    """The chunks in a store, listed at construction.

    If there are more than `MAX_LISTED` objects, the folders of the requested chunks are listed separately. If a folder
    has more than `MAX_LISTED` objects, its chunks are looked up one by one. The results are exact in every case.

    Args:
        backend: the checkpoint store.

    Attributes:
        is_complete: True if `known` contains all chunks.

    Raises:
        StoreError: The store cannot be read.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        keys = backend.keys(CHUNK_PREFIX, MAX_LISTED + 1)
        self.is_complete = len(keys) <= MAX_LISTED
        self._known = set(keys)
        self._folders: dict[str, bool] = {}

    @property
    def known(self) -> frozenset[str]:
        """The keys that have been found so far, including names that no writer uses."""
        return frozenset(self._known)

    def missing(self, keys: Collection[str]) -> list[str]:
        """Return the keys that do not exist, in ascending order.

        Raises:
            StoreError: The store cannot be read.
        """
        if not self.is_complete:
            for folder in sorted({_folder(key) for key in keys if key not in self._known} - self._folders.keys()):
                found = self._backend.keys(folder, MAX_LISTED + 1)
                self._folders[folder] = len(found) <= MAX_LISTED
                self._known.update(found)
        absent = sorted(key for key in set(keys) if key not in self._known)
        unlisted = [key for key in absent if not self._folders.get(_folder(key), True)]
        self._known |= existing(self._backend, unlisted)
        return [key for key in absent if key not in self._known]


def existing(backend: Backend, keys: Collection[str]) -> set[str]:
    """Return the keys that exist, with one request for each key.

    Raises:
        StoreError: The store cannot be read.
    """
    if not keys:
        return set()
    with ThreadPoolExecutor(TRANSFER_THREADS, thread_name_prefix="checkpoint-lookup") as pool:
        found = results_of(pool, [pool.submit(backend.keys, key, 1) for key in keys])
    return {key for key, first in zip(keys, found, strict=True) if first == [key]}


def _folder(key: str) -> str:
    return key.rpartition("/")[0] + "/"
