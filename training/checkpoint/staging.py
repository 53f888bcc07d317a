"""The two legs of a save to two tiers: everything to the near one first, then from there to the durable one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from training.checkpoint import chunks
from training.checkpoint.chunks import ChunkSpan
from training.checkpoint.manifest import ChunkRecord
from training.checkpoint.parallel import results_of
from training.checkpoint.progress import ProgressMeter
from training.checkpoint.tiers import TieredBackend
from training.errors import SaveCancelledError


class _Staged(NamedTuple):
    """A chunk that is near and not durable yet."""

    span: ChunkSpan
    record: ChunkRecord
    stored_blake3: str


class Stage:
    """Chunks of one rank's save on their way through the fast tier.

    Args:
        backend: both tiers.
        threads: that transfer chunks to the durable one.
        compress: whether chunks are compressed where it pays.
    """

    def __init__(self, backend: TieredBackend, threads: int, compress: bool) -> None:
        self._backend = backend
        self._threads = threads
        self._compress = compress
        self._staged: list[_Staged] = []

    def put(self, span: ChunkSpan, record: ChunkRecord, stored: bytes) -> None:
        """First leg of a chunk; straight to the durable tier if the fast one does not work."""
        if self._backend.put_near(record.key, stored):
            self._staged.append(_Staged(span, record, chunks.plain_hash(stored)))
        else:
            self._backend.put_durable(record.key, stored)

    def settle(self, plain: memoryview, cancel: threading.Event, meter: ProgressMeter) -> None:
        """Second leg of all chunks that are near.

        Args:
            plain: the buffer; it still has the save's bytes.
            cancel: set to give the save up.
            meter: told of what is durable.

        Raises:
            StoreError: the durable tier did not take all; SaveCancelledError if that was wanted.
        """
        staged, self._staged = self._staged, []

        def settle_chunk(chunk: _Staged) -> None:
            if cancel.is_set():
                raise SaveCancelledError("the save was given up before all of it was durable")
            stored = self._backend.get_near(chunk.record.key)
            if stored is None or chunks.plain_hash(stored) != chunk.stored_blake3:
                # The disk near by lost or damaged it; memory has not.
                begin, size, element_bytes = chunk.span
                stored = chunks.encode(plain[begin : begin + size], element_bytes, self._compress)
            self._backend.put_durable(chunk.record.key, stored)
            meter.add(chunk.span.bytes, len(stored))

        with ThreadPoolExecutor(self._threads, thread_name_prefix="checkpoint-settle") as pool:
            results_of(pool, [pool.submit(settle_chunk, chunk) for chunk in staged])

    @property
    def staged_bytes(self) -> int:
        """Plain bytes of the chunks that are near and not durable yet."""
        return sum(chunk.span.bytes for chunk in self._staged)

    def clear(self) -> None:
        """Forget what a save that failed has left."""
        self._staged = []
