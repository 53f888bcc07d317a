"""Two tiers as one checkpoint store: a fast local tier in front of a durable tier.

The durable tier is authoritative: it contains the log, and a checkpoint is committed when it contains all its chunks.
The local tier contains copies of this node's chunks, so that a restart on the same node reads them at disk speed. A
save is first written to the local tier and then copied to the durable tier. `training.checkpoint.save.local_tier`
describes a restart between the two steps. If the local tier is lost, full or damaged, the run is slower and loses at
most the save that is not durable yet.
"""

from __future__ import annotations

import logging

from training.checkpoint.chunk_listing import ChunkListing
from training.checkpoint.manifest import CHUNK_PREFIX, Manifest
from training.checkpoint.storage.backend import Backend, tiers_of
from training.errors import NotFoundError, StoreError

logger = logging.getLogger(__name__)


class TieredBackend:
    """A local tier in front of a durable tier; see :class:`training.checkpoint.storage.backend.Backend`.

    Only chunks are in both tiers, because their contents never change.

    Args:
        local: the fast tier.
        durable: the authoritative tier.

    Attributes:
        tiers: both tiers, local tier first.
    """

    def __init__(self, local: Backend, durable: Backend) -> None:
        self.tiers = (local, durable)
        self.url = f"{local.url},{durable.url}"
        self._local, self._durable = local, durable
        self._local_works = True

    def put(self, key: str, content: bytes) -> None:
        """Write chunks to both tiers, and other objects to the durable tier. Skip the local tier if it has failed."""
        if key.startswith(CHUNK_PREFIX):
            self.put_local(key, content)
        self._durable.put(key, content)

    def put_local(self, key: str, content: bytes) -> bool:
        """Write to the local tier only; return False if this or an earlier write failed."""
        if self._local_works:
            try:
                self._local.put(key, content)
            except StoreError as error:
                self._local_works = False
                logger.warning("%s: no longer used: %s", self._local.url, error)
        return self._local_works

    def get_local(self, key: str) -> bytes | None:
        """Read from the local tier only; return None on failure."""
        try:
            return self._local.get(key)
        except StoreError as error:
            logger.warning("%s: cannot read %s: %s", self._local.url, key, error)
            return None

    def put_durable(self, key: str, content: bytes) -> None:
        """Write to the durable tier only."""
        self._durable.put(key, content)

    def create(self, key: str, content: bytes) -> None:
        """Create an object in the durable tier, which resolves races between writers."""
        self._durable.create(key, content)

    def get(self, key: str) -> bytes:
        """Read a chunk from the local tier if possible, and everything else from the durable tier."""
        if key.startswith(CHUNK_PREFIX):
            try:
                return self._local.get(key)
            except NotFoundError:
                pass
            except StoreError as error:
                logger.warning("%s: reading %s from %s: %s", self._local.url, key, self._durable.url, error)
        return self._durable.get(key)

    def keys(self, prefix: str, limit: int | None = None) -> list[str]:
        """Return the keys in the durable tier."""
        return self._durable.keys(prefix, limit)

    def delete(self, keys: list[str]) -> None:
        """Delete objects from both tiers. Also delete local chunks that another node has deleted from the durable tier.

        Call this method between saves, when every local chunk is durable.
        """
        self._durable.delete(keys)
        self.prune(self.local_keys())

    def local_keys(self) -> list[str]:
        """Return the chunks in the local tier; an empty set if it cannot be listed."""
        try:
            return self._local.keys(CHUNK_PREFIX)
        except StoreError as error:
            logger.warning("%s: cannot be listed: %s", self._local.url, error)
            return []

    def prune(self, keys: list[str]) -> None:
        """Delete the given chunks from the local tier, except those that the durable tier still has."""
        if not keys:
            return
        try:
            self._local.delete(ChunkListing(self._durable).missing(keys))
        except StoreError as error:
            logger.warning("%s: cannot delete old chunks: %s", self._local.url, error)


class TierContents:
    """The chunks in each tier, listed at construction."""

    def __init__(self, backend: Backend) -> None:
        self._tiers = {tier.url: ChunkListing(tier) for tier in tiers_of(backend)}

    def stored_bytes(self, manifest: Manifest) -> dict[str, int]:
        """Return the stored bytes of a checkpoint's chunks in each tier, by the tier's URL."""
        stored = {chunk.key: chunk.stored_bytes for chunk in manifest.chunks}
        return {
            url: sum(stored.values()) - sum(stored[key] for key in listing.missing(stored))
            for url, listing in self._tiers.items()
        }
