"""Two places as one checkpoint store: a fast one near by, and a durable one behind it.

The durable tier is the store: it holds the log, and a checkpoint is committed when all of it is there. The fast tier
holds copies of this node's chunks, so that a restart on the same node reads them at the speed of its disk. A save is
stored there first, all of it, and then copied to the durable tier; see :mod:`training.checkpoint.near` for what a
restart between the two finds. The fast tier may be lost, full or damaged at any time: that costs speed, and at most the
save that is not durable yet.
"""

from __future__ import annotations

import logging

from training.checkpoint.backend import Backend, tiers_of
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
        if key.startswith(CHUNKS):
            self.put_near(key, content)
        self._durable.put(key, content)

    def put_near(self, key: str, content: bytes) -> bool:
        """Write to the fast tier alone; False if it does not work, now or ever since."""
        if self._fast_works:
            try:
                self._fast.put(key, content)
            except StoreError as error:
                self._fast_works = False
                logger.warning("%s: is done without from now on: %s", self._fast.url, error)
        return self._fast_works

    def get_near(self, key: str) -> bytes | None:
        """Read from the fast tier alone; None if it cannot."""
        try:
            return self._fast.get(key)
        except StoreError as error:
            logger.warning("%s: %s could not be read again: %s", self._fast.url, key, error)
            return None

    def put_durable(self, key: str, content: bytes) -> None:
        """Write to the durable tier alone."""
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
        """Remove from both, and from the fast tier also what other nodes have removed from the durable one.

        A rank that does this between its gang's saves finds no chunk near that is still to become durable.
        """
        self._durable.delete(keys)
        self.prune(self.near_keys())

    def near_keys(self) -> list[str]:
        """Chunks in the fast tier; none if it cannot be listed."""
        try:
            return self._fast.keys(CHUNKS)
        except StoreError as error:
            logger.warning("%s: cannot be listed: %s", self._fast.url, error)
            return []

    def prune(self, keys: list[str]) -> None:
        """Remove those of these from the fast tier that the durable one does not have: collected, by whichever node."""
        if not keys:
            return
        try:
            self._fast.delete(sorted(set(keys) - set(self._durable.keys(CHUNKS))))
        except StoreError as error:
            logger.warning("%s: old chunks could not be removed: %s", self._fast.url, error)


class Holdings:
    """Which tier has what, as it was when this was made."""

    def __init__(self, backend: Backend) -> None:
        self._present = {tier.url: frozenset(tier.keys(CHUNKS)) for tier in tiers_of(backend)}

    def of(self, manifest: Manifest) -> dict[str, int]:
        """URL of each tier to the stored bytes of a checkpoint's chunks that are there."""
        stored = {chunk.key: chunk.stored_bytes for chunk in manifest.chunks}
        return {url: sum(stored[key] for key in present & stored.keys()) for url, present in self._present.items()}
