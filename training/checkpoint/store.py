"""Reading a checkpoint store: which checkpoints there are, which are whole, and their contents; and its retention."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from training.checkpoint.backend import Backend
from training.checkpoint.log import newest_first
from training.checkpoint.manifest import ChunkRecord, LogEntry, Manifest
from training.checkpoint.reading import read_chunk, read_part
from training.errors import CorruptCheckpointError

__all__ = ["checkpoint_entries", "collect_garbage", "list_checkpoints", "read_chunk", "read_manifest", "read_part"]

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
        return Manifest.model_validate_json(read_chunk(backend, record))
    except ValidationError as error:
        raise CorruptCheckpointError(f"{entry.manifest.key}: is not a manifest ({error})") from error


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


def collect_garbage(backend: Backend, epoch: int, keep_last: int, distrusted: Collection[int] = ()) -> int:
    """Delete the chunks that none of the newest ``keep_last`` whole checkpoints needs; return how many.

    For the process that owns the log, between its saves. It is safe beside a newer owner that this process does not
    know of yet: that one writes to a folder of its own, named by its fence, which is left alone here, and reuses only
    chunks of the newest two checkpoints, which are kept here.

    Args:
        backend: the store.
        epoch: the caller's (:attr:`training.checkpoint.log.LogWriter.epoch`).
        keep_last: whole checkpoints to keep, at least 2.
        distrusted: sequences of entries whose contents turned out to be damaged; they do not count.
    """
    assert keep_last >= 2, "a damaged newest checkpoint needs a predecessor"
    present = set(backend.keys(CHUNK_PREFIX))
    needed: set[str] = set()
    kept = 0
    for listed in list_checkpoints(backend, present):
        if kept == keep_last:
            break
        if listed.is_whole and listed.entry.sequence not in distrusted:
            assert listed.manifest is not None and listed.entry.manifest is not None, "a whole checkpoint has one"
            needed.add(listed.entry.manifest.key)
            needed.update(chunk.key for chunk in listed.manifest.chunks)
            kept += 1
    garbage = sorted(key for key in present - needed if _epoch_of(key) <= epoch)
    # With fewer whole checkpoints than asked for there may be a damaged one whose remains are worth an inspection.
    if kept < keep_last or not garbage:
        return 0
    backend.delete(garbage)
    return len(garbage)


def _epoch_of(key: str) -> int:
    return int(key.removeprefix(CHUNK_PREFIX).partition("/")[0])
