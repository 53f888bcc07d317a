"""Saves to two tiers: first to the node's local tier, then from there to the durable tier.

When a rank's share is complete in the local tier, the rank writes a record there, and then copies the share to the
durable tier. When all ranks have done so, rank 0 commits the log entry. If a gang starts on the same nodes before the
commit, it finds the records of all ranks and loses no steps (`training.checkpoint.resume`). If the nodes differ, or if
a share is missing, outdated or damaged, the gang resumes from the newest checkpoint in the log.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from pydantic import Field, ValidationError

from training.checkpoint import chunks
from training.checkpoint.chunks import ChunkSpan
from training.checkpoint.log import newest_first
from training.checkpoint.manifest import ChunkRecord, Manifest, PartRecord, Record
from training.checkpoint.save.progress import ProgressMeter
from training.checkpoint.storage.backend import Backend
from training.checkpoint.storage.parallel import results_of
from training.checkpoint.storage.tiers import TieredBackend
from training.errors import NotFoundError, SaveCancelledError, StoreError

logger = logging.getLogger(__name__)

_RANK_PREFIX = "local/rank-"


class _LocalChunk(NamedTuple):
    """A chunk in the local tier that is not durable yet."""

    span: ChunkSpan
    record: ChunkRecord
    stored_blake3: str


class LocalStage:
    """The chunks of one rank's save while they move through the local tier.

    Args:
        backend: the two-tier backend.
        threads: number of threads that transfer chunks to the durable tier.
        compress: True to compress chunks where it saves space.
    """

    def __init__(self, backend: TieredBackend, threads: int, compress: bool) -> None:
        self._backend = backend
        self._threads = threads
        self._compress = compress
        self._chunks: list[_LocalChunk] = []

    def put(self, span: ChunkSpan, record: ChunkRecord, stored: bytes) -> None:
        """Write a chunk to the local tier, or to the durable tier if the local tier has failed."""
        if self._backend.put_local(record.key, stored):
            self._chunks.append(_LocalChunk(span, record, chunks.plain_hash(stored)))
        else:
            self._backend.put_durable(record.key, stored)

    def copy_to_durable(self, plain: memoryview, cancel: threading.Event, meter: ProgressMeter) -> None:
        """Copy all chunks from the local tier to the durable tier.

        Args:
            plain: the buffer, which still holds the save's bytes.
            cancel: event that cancels the save when it is set.
            meter: counter for chunks that have become durable.

        Raises:
            StoreError: Some chunks could not be written to the durable tier; SaveCancelledError if cancelled.
        """
        pending, self._chunks = self._chunks, []

        def copy(chunk: _LocalChunk) -> None:
            if cancel.is_set():
                raise SaveCancelledError("the save was cancelled before all of its data was durable")
            stored = self._backend.get_local(chunk.record.key)
            if stored is None or chunks.plain_hash(stored) != chunk.stored_blake3:
                # The local disk lost or damaged the chunk; the buffer still has the bytes.
                begin, size, element_bytes = chunk.span
                stored = chunks.encode(plain[begin : begin + size], element_bytes, self._compress)
            self._backend.put_durable(chunk.record.key, stored)
            meter.add(chunk.span.bytes, len(stored))

        with ThreadPoolExecutor(self._threads, thread_name_prefix="checkpoint-copy") as pool:
            results_of(pool, [pool.submit(copy, chunk) for chunk in pending])

    @property
    def pending_bytes(self) -> int:
        """Plain bytes of the chunks that are in the local tier but not durable yet."""
        return sum(chunk.span.bytes for chunk in self._chunks)

    def clear(self) -> None:
        """Drop a failed save's chunks."""
        self._chunks = []


class LocalRecord(Record):
    """One rank's share of a save. Each of its chunks is in the local tier or known to be durable.

    Attributes:
        fence: sequence number of the gang's fence.
        serial: number of the save since the gang started.
        manifest: the checkpoint's manifest, without parts.
        part: this rank's share.
    """

    fence: int = Field(ge=0)
    serial: int = Field(ge=1)
    manifest: Manifest
    part: PartRecord

    @property
    def save(self) -> tuple[int, int, int, int]:
        """The save's identity, the same in all ranks' records."""
        return (self.fence, self.serial, self.manifest.step, self.manifest.world_size)


def write_record(backend: TieredBackend, rank: int, record: LocalRecord) -> None:
    """Write a rank's record to the local tier, replacing the previous one; do nothing if the tier has failed."""
    backend.put_local(_key(rank), record.model_dump_json().encode())


def read_record(backend: Backend, rank: int) -> LocalRecord | None:
    """Return a rank's record from this node's local tier; None if there is no readable record."""
    if not isinstance(backend, TieredBackend):
        return None
    local, _ = backend.tiers
    try:
        return LocalRecord.model_validate_json(local.get(_key(rank)))
    except NotFoundError:
        return None
    except (StoreError, ValidationError) as error:
        logger.warning("skipping %s/%s: %s", local.url, _key(rank), error)
        return None


def read_records(backend: Backend) -> list[LocalRecord]:
    """Return the records of all ranks that save to this node's local tier; skip unreadable records with a warning."""
    if not isinstance(backend, TieredBackend):
        return []
    names = [key.removeprefix(_RANK_PREFIX).removesuffix(".json") for key in backend.tiers[0].keys(_RANK_PREFIX)]
    records = [read_record(backend, int(name)) for name in names if name.isdecimal()]
    return [record for record in records if record is not None]


def delete_record(backend: Backend, rank: int) -> None:
    """Delete a rank's record from this node's local tier."""
    if isinstance(backend, TieredBackend):
        backend.tiers[0].delete([_key(rank)])


class LastGang(NamedTuple):
    """The last gang that wrote: its fence, and the step of its newest checkpoint (-1 if none)."""

    fence: int
    step: int


def last_gang(backend: Backend, own_fences: int) -> LastGang:
    """Find the last gang in the log, ignoring the caller's own newest fences."""
    fence, step, fences = -1, -1, 0
    for entry in newest_first(backend):
        if entry.kind == "fence":
            fences += 1
            if fences == own_fences + 1:
                fence = entry.sequence
        elif entry.step is not None and step < 0:
            step = entry.step
        if fence >= 0 and step >= 0:
            break
    return LastGang(fence, step)


def _key(rank: int) -> str:
    return f"{_RANK_PREFIX}{rank:05d}.json"
