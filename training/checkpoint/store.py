"""Reads a store's checkpoints, manifests and tensors, several chunks at a time.

Every chunk is verified against its hash, and read directly to its destination.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from training.checkpoint import chunks
from training.checkpoint.chunk_listing import ChunkListing
from training.checkpoint.log import newest_first
from training.checkpoint.manifest import (
    ChunkRecord,
    LogEntry,
    Manifest,
    ManifestReference,
    PartRecord,
    chunk_key,
    parse_record,
)
from training.checkpoint.storage.backend import Backend, ReadsInPlace, tiers_of
from training.checkpoint.storage.parallel import TRANSFER_THREADS, results_of
from training.errors import CorruptCheckpointError, NotFoundError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Listed:
    """A committed checkpoint found in a listing. Its chunks have not been read.

    Attributes:
        entry: the checkpoint's log entry.
        manifest: the checkpoint's manifest; None if it is missing or damaged.
        missing: keys of the missing chunks.
    """

    entry: LogEntry
    manifest: Manifest | None
    missing: list[str]

    @property
    def is_complete(self) -> bool:
        """True if the manifest and all chunks exist. The chunks' contents are not checked."""
        return self.manifest is not None and not self.missing


def checkpoint_entries(backend: Backend) -> Iterator[LogEntry]:
    """Yield all committed checkpoints, newest first, including checkpoints whose chunks are missing."""
    for entry in newest_first(backend):
        if entry.kind == "checkpoint":
            yield entry


def list_checkpoints(
    backend: Backend, missing: Callable[[Collection[str]], list[str]] | None = None
) -> Iterator[Listed]:
    """Yield committed checkpoints, newest first, with their missing chunks.

    Args:
        backend: the checkpoint store.
        missing: returns the given chunks that do not exist, in ascending order; None: list the chunks.
    """
    missing = missing or ChunkListing(backend).missing
    for entry in checkpoint_entries(backend):
        if entry.manifest is None or missing([entry.manifest.key]):
            yield Listed(entry, None, [entry.manifest.key] if entry.manifest else [])
            continue
        try:
            manifest = read_manifest(backend, entry)
        except CorruptCheckpointError as error:
            logger.warning("checkpoint for step %s (log entry %d): %s", entry.step, entry.sequence, error)
            yield Listed(entry, None, [])
            continue
        yield Listed(entry, manifest, missing([chunk.key for chunk in manifest.chunks]))


def read_manifest(backend: Backend, entry: LogEntry) -> Manifest:
    """Read a log entry's manifest.

    Raises:
        ConfigurationError: Another version of this package wrote the manifest.
        CorruptCheckpointError: The manifest is missing (perhaps collected by retention), damaged, or belongs to another
            step.
    """
    if entry.manifest is None:
        raise CorruptCheckpointError(f"log entry {entry.sequence} does not name a manifest")
    record = ChunkRecord(key=entry.manifest.key, bytes=entry.manifest.bytes, stored_bytes=0)
    manifest = parse_record(Manifest, read_chunk(backend, record), f"{backend.url}/{entry.manifest.key}")
    if manifest.step != entry.step:
        raise CorruptCheckpointError(
            f"{entry.manifest.key}: has step {manifest.step}, but log entry {entry.sequence} has step {entry.step}"
        )
    return manifest


def put_manifest(backend: Backend, fence: int, manifest: Manifest) -> ManifestReference:
    """Store a manifest as a chunk, for the writer with this fence; return the reference for its log entry."""
    content = manifest.model_dump_json().encode()
    key = chunk_key(fence, chunks.plain_hash(content))
    backend.put(key, chunks.encode(content, 1))
    return ManifestReference(key=key, bytes=len(content))


class _Scratch(threading.local):
    """A buffer for each thread, because allocating megabytes for each chunk would cause page faults."""

    def __init__(self) -> None:
        self._space = bytearray()

    def take(self, size_bytes: int) -> memoryview:
        if len(self._space) < size_bytes:
            self._space = bytearray(size_bytes)
        return memoryview(self._space)[:size_bytes]


_stored_scratch = _Scratch()
_plain_scratch = _Scratch()


def read_chunk(backend: Backend, record: ChunkRecord) -> bytearray:
    """Return a chunk's plain bytes.

    Raises:
        CorruptCheckpointError: The chunk is missing or damaged in every tier.
    """
    plain = bytearray(record.bytes)
    read_chunk_into(backend, record, memoryview(plain))
    return plain


def read_chunk_into(backend: Backend, record: ChunkRecord, plain: memoryview) -> None:
    """Read a chunk into ``plain``, from the first tier that has an undamaged copy.

    Raises:
        CorruptCheckpointError: The chunk is missing or damaged in every tier; ``plain`` may be partly overwritten.
    """
    tiers = tiers_of(backend)
    for number, tier in enumerate(tiers):
        try:
            _read_from(tier, record, plain)
            return
        except (NotFoundError, CorruptCheckpointError) as error:
            if number == len(tiers) - 1:
                if isinstance(error, NotFoundError):
                    raise CorruptCheckpointError(f"{tier.url}/{record.key}: missing") from error
                raise
            if isinstance(error, CorruptCheckpointError):
                logger.warning("%s: %s; reading it from %s", tier.url, error, tiers[number + 1].url)


def _read_from(tier: Backend, record: ChunkRecord, plain: memoryview) -> None:
    if not isinstance(tier, ReadsInPlace):
        chunks.decode_into(tier.get(record.key), record.blake3, plain)
        return
    if record.stored_bytes == chunks.RAW_HEADER_BYTES + record.bytes:
        header = memoryview(bytearray(chunks.RAW_HEADER_BYTES))
        if tier.read_into(record.key, [header, plain]) == record.stored_bytes and chunks.is_raw_header(
            header, record.bytes
        ):
            chunks.check(plain, record.blake3)
            return
    stored = _stored_scratch.take(record.stored_bytes)
    if not record.stored_bytes or tier.read_into(record.key, [stored]) != record.stored_bytes:
        chunks.decode_into(tier.get(record.key), record.blake3, plain)
        return
    chunks.decode_into(stored, record.blake3, plain)


def read_tensors(
    backend: Backend, part: PartRecord, targets: Mapping[str, memoryview], threads: int = TRANSFER_THREADS
) -> None:
    """Read tensors from a part into memory. Chunks without a requested tensor are not read.

    Args:
        backend: the checkpoint store.
        part: the part that contains the tensors.
        targets: writable memory for each requested tensor, with the length in its record.
        threads: number of chunks to read concurrently.

    Raises:
        CorruptCheckpointError: A chunk is missing or damaged; targets may be partly overwritten.
    """
    places = sorted(
        (part.tensors[name].offset_bytes, len(memory), memory) for name, memory in targets.items() if memory
    )
    with ThreadPoolExecutor(threads, thread_name_prefix="checkpoint-read") as pool:
        pending = []
        begin = first = 0
        for record in part.chunks:
            end = begin + record.bytes
            while first < len(places) and places[first][0] + places[first][1] <= begin:
                first += 1
            wanted = []
            for offset, size, memory in itertools.islice(places, first, None):
                if offset >= end:
                    break
                wanted.append((offset - begin, size, memory))
            if wanted:
                pending.append(pool.submit(_read_pieces, backend, record, wanted))
            begin = end
        results_of(pool, pending)


def _read_pieces(backend: Backend, record: ChunkRecord, wanted: list[tuple[int, int, memoryview]]) -> None:
    """Read the tensor pieces in one chunk.

    Args:
        backend: the checkpoint store.
        record: the chunk's record.
        wanted: each tensor's offset relative to the chunk, size and memory; a tensor may begin before the chunk or end
            after it.
    """
    offset, size, memory = wanted[0]
    if offset <= 0 and offset + size >= record.bytes:
        read_chunk_into(backend, record, memory[-offset : record.bytes - offset])
        return
    plain = _plain_scratch.take(record.bytes)
    read_chunk_into(backend, record, plain)
    for offset, size, memory in wanted:
        begin, end = max(0, offset), min(record.bytes, offset + size)
        memory[begin - offset : end - offset] = plain[begin:end]


def read_part(backend: Backend, part: PartRecord) -> bytearray:
    """Return a part's flat byte range. Reads several chunks at a time, and checks every hash.

    Raises:
        CorruptCheckpointError: A chunk is missing or damaged.
    """
    flat = bytearray(part.plain_bytes)
    memory = memoryview(flat)
    with ThreadPoolExecutor(TRANSFER_THREADS, thread_name_prefix="checkpoint-read") as pool:
        begin = 0
        pending = []
        for record in part.chunks:
            pending.append(pool.submit(read_chunk_into, backend, record, memory[begin : begin + record.bytes]))
            begin += record.bytes
        for future in pending:
            future.result()
    return flat
