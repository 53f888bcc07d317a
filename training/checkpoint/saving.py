"""One rank's part of a save, from bytes in memory to the commit; needs no torch, so that a small process can run it.

Every rank stores its own chunks and leaves a list of them in the store; rank 0 gathers the lists, writes the manifest
and commits it. The ranks meet in the store and nowhere else: so a save whose bytes have been copied is committed even
if every trainer dies meanwhile. A save that fails on one rank fails on all, with the reason.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pydantic import ValidationError

from training.checkpoint import chunks
from training.checkpoint.backend import Backend
from training.checkpoint.chunks import ChunkSpan
from training.checkpoint.gc import GarbageCollector
from training.checkpoint.log import LogWriter, entry_key
from training.checkpoint.manifest import (
    ChunkRecord,
    Manifest,
    ManifestReference,
    PartMessage,
    PartRecord,
    TensorRecord,
)
from training.checkpoint.near import NearRecord, leave_record
from training.checkpoint.parallel import results_of
from training.checkpoint.progress import ProgressMeter
from training.checkpoint.reading import TRANSFER_THREADS
from training.checkpoint.retention import Retention
from training.checkpoint.staging import Stage
from training.checkpoint.tiers import TieredBackend
from training.errors import PeerError, SaveCancelledError, StoreError, SupersededError

logger = logging.getLogger(__name__)

PARTS_PREFIX = "parts/"
PARTS_TIMEOUT_SECONDS = 900
"""How long rank 0 waits for the others' parts: as long as a collective would."""
ORPHAN_PATIENCE_SECONDS = 15
"""How long rank 0 waits for them when its trainer is dead: another may have died before it had copied its share."""
WRITES_BESIDE_ENCODING = 4
"""Chunks that are on their way to the store while others are encoded: they wait for the store and need no core, and a
file system's journal commits several at once for the price of one."""
SHORTEST_POLL_SECONDS = 0.02
LONGEST_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class SaveRequest:
    """What is to be saved; its bytes are in the buffer.

    Attributes:
        serial: number of the save in this gang's life, the same on all ranks.
        manifest: without parts.
        reason: interval, validation, request, resume, stop or finished.
        tensors: this rank's share, by name.
        spans: how the buffer is cut into chunks.
        started_seconds: monotonic clock of this machine when the save was wanted.
        blocked_seconds: how long the loop stood still.
        node_leaves: whether this node is about to go, and what is near by with it.
    """

    serial: int
    manifest: Manifest
    reason: str
    tensors: dict[str, TensorRecord]
    spans: list[ChunkSpan]
    started_seconds: float
    blocked_seconds: float
    node_leaves: bool = False


@dataclass(frozen=True)
class SaveResult:
    """A committed checkpoint, as rank 0 reports it.

    Attributes:
        step: optimizer steps that it holds.
        seconds: from its wish to its commit.
        blocked_seconds: of these, how long the loop stood still.
        bytes: plain bytes of the state.
        written_bytes: stored bytes that it added, over all ranks.
        reason: interval, validation, request, resume, stop or finished.
    """

    step: int
    seconds: float
    blocked_seconds: float
    bytes: int
    written_bytes: int
    reason: str

    @property
    def bytes_per_second(self) -> float:
        """Rate at which the state became durable."""
        return self.bytes / self.seconds


@dataclass(frozen=True)
class SavePlan:
    """What stays the same from save to save.

    Attributes:
        rank: of this process.
        world_size: of the gang.
        epoch: sequence of the gang's fence; names the folder of its chunks.
        keep_last: newest whole checkpoints that retention keeps.
        keep_best: whole checkpoints with the lowest validation loss that it keeps besides.
        keep_every_hours: it keeps one more for each such stretch of time; None: no rule.
        known: chunks of whole checkpoints that the store is sure to keep: hash to record.
        distrusted: log entries that retention must not count.
        threads: that encode chunks.
        compress: whether chunks are compressed where it pays.
    """

    rank: int
    world_size: int
    epoch: int
    keep_last: int
    known: Mapping[str, ChunkRecord] = field(default_factory=dict)
    distrusted: frozenset[int] = frozenset()
    threads: int = TRANSFER_THREADS
    compress: bool = True
    keep_best: int = 0
    keep_every_hours: float | None = None

    @property
    def retention(self) -> Retention:
        """What retention keeps."""
        return Retention(self.keep_last, self.keep_best, self.keep_every_hours)


class Saver:
    """Stores saves one after another.

    Args:
        backend: the checkpoint store.
        plan: what stays the same.
        log: rank 0's right to commit; None on the others.

    Attributes:
        orphaned: to be set when the trainer is dead: nobody will ask for another save.
        meter: how far the save under way is.
    """

    def __init__(self, backend: Backend, plan: SavePlan, log: LogWriter | None) -> None:
        self._backend = backend
        self._plan = plan
        self._log = log
        self._known = dict(plan.known)
        self._encoding = threading.Semaphore(plan.threads)
        self._has_swept = False
        self._collector = GarbageCollector(backend, plan.retention)
        self._tiers = backend if isinstance(backend, TieredBackend) else None
        self._stage = None if self._tiers is None else Stage(self._tiers, plan.threads, plan.compress)
        self._near_before: list[str] = []
        self.orphaned = threading.Event()
        self.meter = ProgressMeter()

    def save(self, request: SaveRequest, plain: memoryview, cancel: threading.Event) -> SaveResult | None:
        """Store a share, and on rank 0 see the whole committed.

        Args:
            request: what it is.
            plain: the buffer; it may not change until this returns.
            cancel: set to give the save up.

        Returns:
            On rank 0 what was committed; None on the others.

        Raises:
            StoreError: it was not committed; SaveCancelledError if that was wanted.
            SupersededError: a newer gang owns the log.
            PeerError: another rank failed.
        """
        try:
            self._prune()
            part = self._upload(request, plain, cancel)
            self._settle(request, part, plain, cancel)
            self._known = {chunk.blake3: chunk for chunk in part.chunks}
            if self._log is not None:
                return self._commit(request, [part, *self._gather_parts(request, cancel)], cancel)
            self._hand_over(request, PartMessage(part=part))
        except Exception as error:
            if self._log is None:
                self._report_failure(request, error, cancel.is_set())
            raise
        return None

    def _prune(self) -> None:
        """Tidy this node's fast tier; rank 0 does it when it collects.

        Only of what was there before this save: the other ranks of this node may have begun theirs, whose chunks are
        not durable yet.
        """
        if self._tiers is not None and self._log is None:
            self._tiers.prune(self._near_before)

    def _settle(self, request: SaveRequest, part: PartRecord, plain: memoryview, cancel: threading.Event) -> None:
        """With two tiers: note that this share is near, and bring it to the durable one."""
        if self._tiers is None or self._stage is None or request.reason == "stop":
            return
        record = NearRecord(epoch=self._plan.epoch, serial=request.serial, manifest=request.manifest, part=part)
        leave_record(self._tiers, self._plan.rank, record)
        self._near_before = self._tiers.near_keys()
        self.meter.begin(request.manifest.step, self._tiers.tiers[1].url, self._stage.staged_bytes)
        self._stage.settle(plain, cancel, self.meter)

    def _upload(self, request: SaveRequest, plain: memoryview, cancel: threading.Event) -> PartRecord:
        place = self._backend.url if self._tiers is None or request.reason == "stop" else self._tiers.tiers[0].url
        self.meter.begin(request.manifest.step, place, sum(span.bytes for span in request.spans))
        if self._stage is not None:
            self._stage.clear()
        workers = self._plan.threads + WRITES_BESIDE_ENCODING
        with ThreadPoolExecutor(workers, thread_name_prefix="checkpoint-chunk") as pool:
            pending = [pool.submit(self._upload_chunk, request, plain, span, cancel) for span in request.spans]
            written = results_of(pool, pending)
        return PartRecord(
            tensors=request.tensors,
            chunks=[record for record, _ in written],
            written_bytes=sum(added_bytes for _, added_bytes in written),
        )

    def _upload_chunk(
        self, request: SaveRequest, plain: memoryview, span: ChunkSpan, cancel: threading.Event
    ) -> tuple[ChunkRecord, int]:
        if cancel.is_set():
            raise SaveCancelledError(f"saving step {request.manifest.step} was given up before all was uploaded")
        content = plain[span.offset_bytes : span.offset_bytes + span.bytes]
        with self._encoding:
            name = chunks.plain_hash(content)
            known = self._known.get(name)
            if known is not None:
                self.meter.add(span.bytes, 0)
                return known, 0
            stored = chunks.encode(content, span.element_bytes, self._plan.compress)
        record = ChunkRecord(key=f"chunks/{self._plan.epoch:08d}/{name}", bytes=span.bytes, stored_bytes=len(stored))
        if self._tiers is not None and request.node_leaves:
            self._tiers.put_durable(record.key, stored)
        elif self._stage is None or request.reason == "stop":
            # What the next gang needs goes to both at once: all of it near by first would only be later.
            self._backend.put(record.key, stored)
        else:
            self._stage.put(span, record, stored)
        self.meter.add(span.bytes, len(stored))
        return record, len(stored)

    def _hand_over(self, request: SaveRequest, message: PartMessage) -> None:
        self._backend.put(self._part_key(request, self._plan.rank), message.model_dump_json().encode())

    def _part_key(self, request: SaveRequest, rank: int) -> str:
        return f"{PARTS_PREFIX}{self._plan.epoch:08d}/{request.serial:06d}/{rank:05d}.json"

    def _report_failure(self, request: SaveRequest, error: Exception, cancelled: bool) -> None:
        try:
            self._hand_over(request, PartMessage(error=f"rank {self._plan.rank}: {error}", cancelled=cancelled))
        except StoreError as unreachable:
            # The trainers' votes tell the others; this only spares rank 0 the wait.
            logger.warning("rank 0 could not be told that a save failed: %s", unreachable)

    def _gather_parts(self, request: SaveRequest, cancel: threading.Event) -> list[PartRecord]:
        """Parts of ranks 1 and up, in order, as they arrive in the store."""
        waiting = {self._part_key(request, rank): rank for rank in range(1, self._plan.world_size)}
        if not waiting:
            return []
        parts: dict[int, PartRecord] = {}
        began = time.monotonic()
        pause = SHORTEST_POLL_SECONDS
        while waiting:
            for key in self._backend.keys(self._part_key(request, 0).rpartition("/")[0] + "/"):
                if key in waiting:
                    parts[waiting.pop(key)] = self._read_part(key)
            if waiting:
                self._refuse_to_wait(request, sorted(waiting.values()), time.monotonic() - began, cancel)
                # Jitter: many runs may share the store.
                cancel.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311
                pause = min(pause * 1.5, LONGEST_POLL_SECONDS)
        return [parts[rank] for rank in sorted(parts)]

    def _read_part(self, key: str) -> PartRecord:
        try:
            message = PartMessage.model_validate_json(self._backend.get(key))
        except ValidationError as error:
            raise StoreError(f"{self._backend.url}/{key}: is not a part of a save ({error})") from error
        if message.part is None:
            raise (SaveCancelledError if message.cancelled else PeerError)(message.error or "failed without a word")
        return message.part

    def _refuse_to_wait(self, request: SaveRequest, ranks: list[int], waited: float, cancel: threading.Event) -> None:
        assert self._log is not None, "rank 0 gathers"
        if cancel.is_set():
            raise SaveCancelledError(f"saving step {request.manifest.step} was given up before all ranks were done")
        if self.orphaned.is_set():
            if waited > ORPHAN_PATIENCE_SECONDS:
                raise StoreError(f"the trainer died, and ranks {ranks} did not save their parts of that step")
            if self._backend.keys(entry_key(self._log.next_sequence)):
                raise SupersededError("the trainer died, and a newer gang owns the checkpoint log already")
        if waited > PARTS_TIMEOUT_SECONDS:
            raise StoreError(f"ranks {ranks} did not save their parts in {PARTS_TIMEOUT_SECONDS} s; see their logs")

    def _commit(self, request: SaveRequest, parts: list[PartRecord], cancel: threading.Event) -> SaveResult:
        assert self._log is not None, "rank 0 commits"
        manifest = request.manifest.model_copy(update={"parts": parts})
        content = manifest.model_dump_json().encode()
        key = f"chunks/{self._plan.epoch:08d}/{chunks.plain_hash(content)}"
        self._backend.put(key, chunks.encode(content, 1))
        if cancel.is_set():
            raise SaveCancelledError(f"saving step {manifest.step} was given up before its commit")
        written_bytes = sum(part.written_bytes for part in parts)
        plain_bytes = sum(part.plain_bytes for part in parts)
        self._log.append_checkpoint(
            step=manifest.step,
            manifest=ManifestReference(key=key, bytes=len(content)),
            reason=request.reason,
            bytes=plain_bytes,
            written_bytes=written_bytes,
            validation=manifest.validation,
        )
        seconds = time.monotonic() - request.started_seconds
        if request.reason != "stop":
            # Before the next save begins on any rank: its chunks would look like garbage.
            self._tidy()
        return SaveResult(manifest.step, seconds, request.blocked_seconds, plain_bytes, written_bytes, request.reason)

    def _tidy(self) -> None:
        try:
            if self._plan.world_size > 1 or not self._has_swept:
                self._backend.delete(self._stale_parts())
                self._has_swept = True
            self._collector.collect(self._plan.epoch, self._plan.distrusted)
        except StoreError as error:
            # The checkpoint is committed; that older ones stay costs money, not the run.
            logger.warning("old checkpoints could not be removed: %s", error)

    def _stale_parts(self) -> list[str]:
        """Lists of chunks that have been gathered, or that nobody will gather."""
        own = f"{PARTS_PREFIX}{self._plan.epoch:08d}/"
        return [key for key in self._backend.keys(PARTS_PREFIX) if key < own or key.startswith(own)]
