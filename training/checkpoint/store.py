"""Reading a checkpoint store: which checkpoints there are, which are whole, and their contents."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from training.checkpoint.backend import Backend
from training.checkpoint.log import newest_first
from training.checkpoint.manifest import ChunkRecord, LogEntry, Manifest
from training.checkpoint.reading import read_chunk, read_part
from training.errors import CorruptCheckpointError

__all__ = ["checkpoint_entries", "list_checkpoints", "read_chunk", "read_manifest", "read_part"]

logger = logging.getLogger(__name__)

CHUNK_PREFIX = "chunks/"


def checkpoint_entries(backend: Backend) -> Iterator[LogEntry]:
    """Committed checkpoints, newest first, whether or not their chunks are still there."""
    for entry in newest_first(backend):
        if entry.kind == "checkpoint":
            yield entry


def read_manifest(backend: Backend, entry: LogEntry) -> Manifest:
    """Read the manifest that an entry commits.

    Raises:
        CorruptCheckpointError: it is missing (collected by retention, perhaps), damaged, or not a manifest.
    """
    if entry.manifest is None:
        raise CorruptCheckpointError(f"log entry {entry.sequence} names no manifest")
    record = ChunkRecord(key=entry.manifest.key, bytes=entry.manifest.bytes, stored_bytes=0)
    try:
        manifest = Manifest.model_validate_json(read_chunk(backend, record))
    except ValidationError as error:
        raise CorruptCheckpointError(f"{entry.manifest.key}: is not a manifest ({error})") from error
    if manifest.step != entry.step:
        raise CorruptCheckpointError(
            f"{entry.manifest.key}: is of step {manifest.step}, log entry {entry.sequence} says {entry.step}"
        )
    return manifest


@dataclass(frozen=True)
class Listed:
    """A committed checkpoint and what is there of it."""

    entry: LogEntry
    manifest: Manifest | None
    missing: list[str]

    @property
    def is_whole(self) -> bool:
        """Whether manifest and all chunks are there; their contents are not read."""
        return self.manifest is not None and not self.missing


def list_checkpoints(backend: Backend, present: set[str] | None = None) -> Iterator[Listed]:
    """Committed checkpoints, newest first, with the chunks that are missing.

    Args:
        backend: the store.
        present: keys of all chunks; listed if not given.
    """
    keys = set(backend.keys(CHUNK_PREFIX)) if present is None else present
    for entry in checkpoint_entries(backend):
        if entry.manifest is None or entry.manifest.key not in keys:
            yield Listed(entry, None, [entry.manifest.key] if entry.manifest else [])
            continue
        try:
            manifest = read_manifest(backend, entry)
        except CorruptCheckpointError as error:
            logger.warning("checkpoint of step %s (log entry %d): %s", entry.step, entry.sequence, error)
            yield Listed(entry, None, [])
            continue
        yield Listed(entry, manifest, sorted({chunk.key for chunk in manifest.chunks} - keys))
