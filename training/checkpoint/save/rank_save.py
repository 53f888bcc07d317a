"""One rank's part of a save, from bytes in memory to the commit. It does not use torch, so a small process can run it.

Every rank stores its own chunks and a list of them. Rank 0 gathers the lists, writes the manifest and commits it. The
ranks communicate only through the store, so a save is committed even if every trainer dies after copying its bytes. If
a save fails on one rank, it fails on all ranks for the same reason.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from training.checkpoint import chunks
from training.checkpoint.chunks import ChunkSpan, Layout
from training.checkpoint.gc import GarbageCollector
from training.checkpoint.log import LogWriter
from training.checkpoint.manifest import ChunkRecord, Manifest, PartMessage, PartRecord, chunk_key, tensor_records
from training.checkpoint.retention import Retention
from training.checkpoint.save.local_tier import LocalRecord, LocalStage, write_record
from training.checkpoint.save.other_load import OtherLoad
from training.checkpoint.save.parts import Parts
from training.checkpoint.save.progress import ProgressMeter
from training.checkpoint.storage.backend import Backend
from training.checkpoint.storage.parallel import TRANSFER_THREADS, results_of
from training.checkpoint.storage.tiers import TieredBackend
from training.checkpoint.store import put_manifest
from training.errors import PeerError, SaveCancelledError, StoreError, SupersededError

logger = logging.getLogger(__name__)

PARTS_TIMEOUT_SECONDS = 900
"""Time that rank 0 waits for the other ranks' parts. It equals the timeout for a collective."""
ORPHAN_PATIENCE_SECONDS = 15
"""Time that rank 0 waits for parts after its trainer has died. Other trainers may have died before copying their
shares."""
WRITES_BESIDE_ENCODING = 4
"""Number of chunks in transfer while others are encoded. A transfer that waits for the store uses no core, and a file
system's journal commits several chunks at the cost of one."""
SHORTEST_POLL_SECONDS = 0.02
LONGEST_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class SaveRequest:
    """Describes a save whose bytes are in the buffer.

    Attributes:
        serial: number of the save since the gang started, the same on all ranks.
        manifest: manifest without parts.
        reason: trigger of the save: interval, validation, request, resume, stop or finished.
        layout: the buffer's tensors and chunks; None if they are the same as in the preceding request.
        started_seconds: time of the request on this machine's monotonic clock.
        blocked_seconds: time for which the training loop was blocked.
        skip_local_tier: True if this node, and with it the local tier, is about to be terminated.
    """

    serial: int
    manifest: Manifest
    reason: str
    layout: Layout | None
    started_seconds: float
    blocked_seconds: float
    skip_local_tier: bool = False


@dataclass(frozen=True)
class SaveResult:
    """A committed checkpoint, as reported by rank 0.

    Attributes:
        step: optimizer steps completed in the saved state.
        seconds: time from the request to the commit.
        blocked_seconds: the part of that time during which the training loop was blocked.
        bytes: plain bytes in the state.
        written_bytes: stored bytes added by all ranks.
        reason: trigger of the save: interval, validation, request, resume, stop or finished.
    """

    step: int
    seconds: float
    blocked_seconds: float
    bytes: int
    written_bytes: int
    reason: str

    @property
    def bytes_per_second(self) -> float:
        """The rate at which the state became durable."""
        return self.bytes / self.seconds


@dataclass(frozen=True)
class SavePlan:
    """The settings shared by all of a gang's saves.

    Attributes:
        rank: this process's rank.
        world_size: the gang's world size.
        fence: sequence number of the gang's fence, which names the folder for its chunks.
        secret: text that only the gang's ranks know, so that rank 0 reads only their parts; the same on all ranks.
        retention: rules for the checkpoints to keep.
        reusable: records of chunks, by hash, in complete checkpoints that are certain to be kept.
        damaged: log entries that the retention rules must ignore.
        threads: number of threads that encode chunks.
        compress: True to compress chunks where it saves space.
        yields: True to compress only while training does not use the cores that the encoding threads need.
    """

    rank: int
    world_size: int
    fence: int
    secret: str = ""
    retention: Retention = field(default_factory=Retention)
    reusable: Mapping[str, ChunkRecord] = field(default_factory=dict)
    damaged: frozenset[int] = frozenset()
    threads: int = TRANSFER_THREADS
    compress: bool = True
    yields: bool = False


def chunks_by_hash(manifest: Manifest) -> dict[str, ChunkRecord]:
    """Return a checkpoint's chunks by hash, for use in :attr:`SavePlan.reusable`."""
    return {chunk.blake3: chunk for chunk in manifest.chunks}


class Saver:
    """Runs saves one after another.

    Args:
        backend: the checkpoint store.
        plan: the settings of all saves.
        log: rank 0's right to commit; None on other ranks.

    Attributes:
        parts: the parts that the ranks exchange.
        orphaned: event to set when the trainer has died, so that no further saves are requested.
        meter: the current save's progress.
    """

    def __init__(self, backend: Backend, plan: SavePlan, log: LogWriter | None) -> None:
        self._backend = backend
        self._plan = plan
        self._log = log
        self._reusable = dict(plan.reusable)
        self._encoding = threading.Semaphore(plan.threads)
        self._has_swept = False
        self._reported: set[str] = set()
        self._layout: Layout | None = None
        self._collector = GarbageCollector(backend, plan.retention)
        self._tiers = backend if isinstance(backend, TieredBackend) else None
        self._stage = None if self._tiers is None else LocalStage(self._tiers, plan.threads, plan.compress)
        self._prunable: list[str] = []
        self.parts = Parts(backend, plan.fence, plan.secret)
        self.orphaned = threading.Event()
        self.meter = ProgressMeter()

    def save(self, request: SaveRequest, plain: memoryview, cancel: threading.Event) -> SaveResult | None:
        """Store this rank's share. On rank 0, also commit the checkpoint.

        Args:
            request: the requested save.
            plain: the buffer, which must not change until this method returns.
            cancel: event that cancels the save when it is set.

        Returns:
            The committed checkpoint on rank 0; None on other ranks.

        Raises:
            StoreError: The save was not committed; SaveCancelledError if cancelled.
            SupersededError: A newer gang owns the log.
            PeerError: Another rank failed.
        """
        self._layout = request.layout or self._layout
        try:
            self._prune()
            part = self._store_chunks(request, plain, cancel)
            self._copy_to_durable(request, part, plain, cancel)
            self._reusable = {chunk.blake3: chunk for chunk in part.chunks}
            if self._log is not None:
                return self._commit(request, [part, *self._gather_parts(request, cancel)], cancel)
            self.parts.send(request.serial, self._plan.rank, PartMessage(part=part))
        except Exception as error:
            if self._log is None:
                self._report_failure(request, error, cancel.is_set())
            raise
        return None

    def _prune(self) -> None:
        """Delete collected chunks from this node's local tier. Rank 0 does this when it collects.

        Delete only chunks that are older than this save: other ranks on this node may have begun saves whose chunks are
        not durable yet.
        """
        if self._tiers is not None and self._log is None:
            self._tiers.prune(self._prunable)

    def _copy_to_durable(
        self, request: SaveRequest, part: PartRecord, plain: memoryview, cancel: threading.Event
    ) -> None:
        """With two tiers, record that this share is in the local tier, and copy it to the durable tier."""
        if self._tiers is None or self._stage is None or request.reason == "stop":
            return
        record = LocalRecord(fence=self._plan.fence, serial=request.serial, manifest=request.manifest, part=part)
        write_record(self._tiers, self._plan.rank, record)
        self._prunable = self._tiers.local_keys()
        self.meter.begin(request.manifest.step, self._tiers.tiers[1].url, self._stage.pending_bytes)
        self._stage.copy_to_durable(plain, cancel, self.meter)

    def _store_chunks(self, request: SaveRequest, plain: memoryview, cancel: threading.Event) -> PartRecord:
        layout = self._layout
        assert layout is not None, "the first request has a layout"
        url = self._backend.url if self._tiers is None or request.reason == "stop" else self._tiers.tiers[0].url
        self.meter.begin(request.manifest.step, url, sum(span.bytes for span in layout.spans))
        if self._stage is not None:
            self._stage.clear()
        workers = self._plan.threads + WRITES_BESIDE_ENCODING
        with ThreadPoolExecutor(workers, thread_name_prefix="checkpoint-chunk") as pool:
            # A measurement that began before the save would include the training before it.
            load = OtherLoad(self._plan.threads)
            pending = [pool.submit(self._store_chunk, request, plain, span, load, cancel) for span in layout.spans]
            written = results_of(pool, pending)
        return PartRecord(
            tensors=tensor_records(layout),
            chunks=[record for record, _ in written],
            written_bytes=sum(added_bytes for _, added_bytes in written),
        )

    def _store_chunk(
        self, request: SaveRequest, plain: memoryview, span: ChunkSpan, load: OtherLoad, cancel: threading.Event
    ) -> tuple[ChunkRecord, int]:
        if cancel.is_set():
            raise SaveCancelledError(f"saving step {request.manifest.step} was cancelled before its upload finished")
        content = plain[span.offset_bytes : span.offset_bytes + span.bytes]
        with self._encoding:
            name = chunks.plain_hash(content)
            reusable = self._reusable.get(name)
            if reusable is not None:
                self.meter.add(span.bytes, 0)
                return reusable, 0
            compress = self._plan.compress and not (self._plan.yields and load.is_high)
            stored = chunks.encode(content, span.element_bytes, compress)
        record = ChunkRecord(key=chunk_key(self._plan.fence, name), bytes=span.bytes, stored_bytes=len(stored))
        if self._tiers is not None and request.skip_local_tier:
            self._tiers.put_durable(record.key, stored)
        elif self._stage is None or request.reason == "stop":
            # The next gang needs the chunks saved at a stop. Write to both tiers at the same time, because writing to
            # the local tier first would only delay the commit.
            self._backend.put(record.key, stored)
        else:
            self._stage.put(span, record, stored)
        self.meter.add(span.bytes, len(stored))
        return record, len(stored)

    def _report_failure(self, request: SaveRequest, error: Exception, cancelled: bool) -> None:
        try:
            failure = PartMessage(error=f"rank {self._plan.rank}: {error}", cancelled=cancelled)
            self.parts.send(request.serial, self._plan.rank, failure)
        except StoreError as unreachable:
            # The trainers' control flags report the failure to the other ranks. The message only shortens rank 0's
            # wait.
            logger.warning("cannot report a failed save to rank 0: %s", unreachable)

    def _gather_parts(self, request: SaveRequest, cancel: threading.Event) -> list[PartRecord]:
        """Wait until the parts from ranks 1 and up are in the store; return them in rank order."""
        waiting = set(range(1, self._plan.world_size))
        parts: dict[int, PartRecord] = {}
        began = time.monotonic()
        pause = SHORTEST_POLL_SECONDS
        while waiting:
            for rank, message in self.parts.received(request.serial, request.manifest.step, waiting).items():
                parts[rank] = _part_of(message)
            waiting -= parts.keys()
            if waiting:
                self._refuse_to_wait(request, sorted(waiting), time.monotonic() - began, cancel)
                # Add jitter, because many runs may share the store.
                cancel.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311
                pause = min(pause * 1.5, LONGEST_POLL_SECONDS)
        return [parts[rank] for rank in sorted(parts)]

    def _refuse_to_wait(self, request: SaveRequest, ranks: list[int], waited: float, cancel: threading.Event) -> None:
        assert self._log is not None, "rank 0 gathers"
        if cancel.is_set():
            raise SaveCancelledError(f"saving step {request.manifest.step} was cancelled before all ranks finished")
        if self.orphaned.is_set():
            if waited > ORPHAN_PATIENCE_SECONDS:
                raise StoreError(f"the trainer died, and ranks {ranks} did not save their parts of that step")
            if self._log.is_superseded():
                raise SupersededError("the trainer died, and a newer gang already owns the checkpoint log")
        if waited > PARTS_TIMEOUT_SECONDS:
            raise StoreError(f"ranks {ranks} did not save their parts within {PARTS_TIMEOUT_SECONDS} s; see their logs")

    def _commit(self, request: SaveRequest, parts: list[PartRecord], cancel: threading.Event) -> SaveResult:
        assert self._log is not None, "rank 0 commits"
        manifest = request.manifest.model_copy(update={"parts": parts})
        reference = put_manifest(self._backend, self._plan.fence, manifest)
        if cancel.is_set():
            raise SaveCancelledError(f"saving step {manifest.step} was cancelled before its commit")
        written_bytes = sum(part.written_bytes for part in parts)
        plain_bytes = sum(part.plain_bytes for part in parts)
        self._log.append_checkpoint(
            step=manifest.step,
            manifest=reference,
            reason=request.reason,
            bytes=plain_bytes,
            written_bytes=written_bytes,
            validation=manifest.validation,
        )
        seconds = time.monotonic() - request.started_seconds
        if request.reason != "stop":
            # Collect before the next save begins on any rank, because that save's chunks would look like garbage.
            self._delete_old()
        return SaveResult(manifest.step, seconds, request.blocked_seconds, plain_bytes, written_bytes, request.reason)

    def _delete_old(self) -> None:
        try:
            if self._plan.world_size > 1 or not self._has_swept:
                self._backend.delete(self.parts.stale())
                self._has_swept = True
            self._collector.collect(self._plan.fence, self._plan.damaged)
        except StoreError as error:
            # The checkpoint is committed. Remaining old checkpoints cost money, but do not affect the run.
            if str(error) not in self._reported:
                self._reported.add(str(error))
                logger.warning("cannot delete old checkpoints: %s", error)


def _part_of(message: PartMessage) -> PartRecord:
    """Return a rank's part, or raise the error that ended its save."""
    if message.part is None:
        raise (SaveCancelledError if message.cancelled else PeerError)(message.error or "failed without a reason")
    return message.part
