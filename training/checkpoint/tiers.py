"""Two places as one checkpoint store: a fast one near by, and a durable one behind it.

The durable tier is the store: it holds the log, and a checkpoint is committed when all of it is there. The fast tier
holds copies of this node's chunks, so that a restart on the same node reads them at the speed of its disk. It may be
lost, full or damaged at any time without anything but speed being lost.
"""

from __future__ import annotations

import logging

from training.checkpoint.backend import Backend
from training.checkpoint.manifest import Manifest
from training.errors import NotFoundError, StoreError

logger = logging.getLogger(__name__)

CHUNKS = "chunks/"
"""What keys begin with whose contents never change, and which may therefore be in both tiers."""


class TieredBackend:
    """See :class:`training.checkpoint.backend.Backend`.

    Args:
        fast: the near place.
        durable: the place that decides.

    Attributes:
        tiers: both, the fast one first.
    """

    def __init__(self, fast: Backend, durable: Backend) -> None:
        self.tiers = (fast, durable)
        self.url = f"{fast.url},{durable.url}"
        self._fast, self._durable = fast, durable
        self._fast_works = True

    def put(self, key: str, content: bytes) -> None:
        """Write to the fast tier, if it works and the key is a chunk's, and to the durable one."""
        if key.startswith(CHUNKS) and self._fast_works:
            try:
                self._fast.put(key, content)
            except StoreError as error:
                self._fast_works = False
                logger.warning("%s: is done without from now on: %s", self._fast.url, error)
        self._durable.put(key, content)

    def create(self, key: str, content: bytes) -> None:
        """Create in the durable tier, which decides every race."""
        self._durable.create(key, content)

    def get(self, key: str) -> bytes:
        """Read a chunk from the fast tier if it has it; everything else from the durable one."""
        if key.startswith(CHUNKS):
            try:
                return self._fast.get(key)
            except NotFoundError:
                pass
            except StoreError as error:
                logger.warning("%s: %s is read from %s: %s", self._fast.url, key, self._durable.url, error)
        return self._durable.get(key)

    def keys(self, prefix: str) -> list[str]:
        """Keys of the durable tier."""
        return self._durable.keys(prefix)

    def delete(self, keys: list[str]) -> None:
        """Remove from both, and from the fast tier also what other nodes have removed from the durable one."""
        self._durable.delete(keys)
        self.prune()

    def prune(self) -> None:
        """Remove from the fast tier what the durable one does not have: it was collected, by whichever node."""
        try:
            stale = set(self._fast.keys(CHUNKS)) - set(self._durable.keys(CHUNKS))
            self._fast.delete(sorted(stale))
        except StoreError as error:
            logger.warning("%s: old chunks could not be removed: %s", self._fast.url, error)


def holdings(backend: Backend, manifest: Manifest) -> dict[str, int]:
    """Which tier has what of a checkpoint: URL of the tier to stored bytes of its chunks that are there."""
    stored = {chunk.key: chunk.stored_bytes for chunk in manifest.chunks}
    tiers: tuple[Backend, ...] = getattr(backend, "tiers", (backend,))
    return {tier.url: sum(stored[key] for key in set(tier.keys(CHUNKS)) & stored.keys()) for tier in tiers}
