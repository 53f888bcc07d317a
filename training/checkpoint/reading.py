"""Reading chunks: several at a time, each verified, straight to where its bytes belong."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from training.checkpoint import chunks
from training.checkpoint.backend import Backend, ReadsInPlace, tiers_of
from training.checkpoint.manifest import ChunkRecord, PartRecord
from training.checkpoint.parallel import results_of
from training.errors import CorruptCheckpointError, NotFoundError

logger = logging.getLogger(__name__)

TRANSFER_THREADS = 8
"""Transfers in flight per process. One connection to S3 carries some 90 MB/s, so that eight fill 5 Gb/s.
Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance-guidelines.html (2025-06)."""


class _Scratch(threading.local):
    """Work space that a thread keeps: fresh megabytes would be page faults for every chunk."""

    def __init__(self) -> None:
        self._space = bytearray()

    def take(self, size_bytes: int) -> memoryview:
        if len(self._space) < size_bytes:
            self._space = bytearray(size_bytes)
        return memoryview(self._space)[:size_bytes]


_stored_scratch = _Scratch()
_plain_scratch = _Scratch()


def read_chunk(backend: Backend, record: ChunkRecord) -> bytearray:
    """Read a chunk's plain bytes.

    Raises:
        CorruptCheckpointError: it is missing or damaged in every tier.
    """
    plain = bytearray(record.bytes)
    read_chunk_into(backend, record, memoryview(plain))
    return plain


def read_chunk_into(backend: Backend, record: ChunkRecord, plain: memoryview) -> None:
    """Read a chunk to ``plain``, from the first tier in which it is whole.

    Raises:
        CorruptCheckpointError: it is missing or damaged in every tier; ``plain`` may be partly overwritten.
    """
    tiers = tiers_of(backend)
    for number, tier in enumerate(tiers):
        try:
            _read_from(tier, record, plain)
            return
        except (NotFoundError, CorruptCheckpointError) as error:
            if number == len(tiers) - 1:
                if isinstance(error, NotFoundError):
                    raise CorruptCheckpointError(f"{tier.url}/{record.key}: is missing") from error
                raise
            if isinstance(error, CorruptCheckpointError):
                logger.warning("%s: %s; it is fetched from %s", tier.url, error, tiers[number + 1].url)


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
    """Read tensors of a part to their memory; chunks of no wanted tensor are not read.

    Args:
        backend: the store.
        part: that has them.
        targets: writable bytes of each wanted tensor, as many as its record says.
        threads: chunks on their way at once.

    Raises:
        CorruptCheckpointError: a chunk is missing or damaged; targets may be partly overwritten.
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
    """Read one chunk; ``wanted`` are tensors by their place relative to it, which may be before or end behind it."""
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
    """Read a part's flat space, several chunks at a time, every hash checked.

    Raises:
        CorruptCheckpointError: a chunk is missing or damaged.
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
