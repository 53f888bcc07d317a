"""Saving without stopping: the loop pays for a copy into kept buffers, a thread does the rest.

Every rank uploads its own share of the tensors and hands the list of its chunks to rank 0 through the rendezvous store;
rank 0 writes the manifest and commits it. Threads use no collectives, so that a slow upload never delays a gradient.
One save is in flight at a time. A save that fails on one rank fails on all, with the reason.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from training.checkpoint import chunks
from training.checkpoint.backend import Backend
from training.checkpoint.layout import ChunkSpan, Layout, lay_out, share_out, tensor_at, tensor_bytes
from training.checkpoint.log import LogWriter
from training.checkpoint.manifest import ChunkRecord, Manifest, ManifestReference, PartRecord
from training.checkpoint.store import TRANSFER_THREADS, collect_garbage
from training.errors import PeerError, SaveCancelledError, StoreError

logger = logging.getLogger(__name__)

PARTS_TIMEOUT_SECONDS = 900
"""How long rank 0 waits for the others' parts: as long as a collective would."""
POLL_SECONDS = 0.02
CANCEL_SECONDS = 5
"""How long a save that is given up may take to end: the transfer of the chunks in flight."""


class KeyValueStore(Protocol):
    """What is used of a torch.distributed store."""

    def set(self, key: str, value: str) -> None:
        """Write a value."""

    def get(self, key: str) -> bytes:
        """Read a value that is there."""

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""

    def delete_key(self, key: str) -> bool:
        """Remove a value."""


@dataclass(frozen=True)
class SaveResult:
    """A committed checkpoint, as rank 0 reports it.

    Attributes:
        step: optimizer steps that it holds.
        seconds: from its wish to its commit.
        blocked_seconds: of these, how long the loop stood still.
        written_bytes: stored bytes that it added, over all ranks.
        reason: interval, request, stop or finished.
    """

    step: int
    seconds: float
    blocked_seconds: float
    written_bytes: int
    reason: str


@dataclass
class _Save:
    """One save on its way."""

    serial: int
    manifest: Manifest
    reason: str
    layout: Layout
    flat: Tensor
    started: float
    blocked_seconds: float
    cancel: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None


class CheckpointWriter:
    """Saves this rank's share of a run's state.

    Args:
        backend: the checkpoint store.
        rank: of this process.
        world_size: of the gang.
        key_values: store through which ranks hand their parts to rank 0.
        log: rank 0's right to commit; None on the others.
        epoch: of ``log``, on every rank.
        keep_last: whole checkpoints that retention keeps.
        known: chunks of whole checkpoints that the store is sure to keep: hash to record.
        distrusted: log entries that retention must not count.
    """

    def __init__(
        self,
        backend: Backend,
        rank: int,
        world_size: int,
        key_values: KeyValueStore,
        log: LogWriter | None,
        epoch: int,
        keep_last: int,
        known: Mapping[str, ChunkRecord],
        distrusted: frozenset[int] = frozenset(),
    ) -> None:
        self._backend = backend
        self._rank = rank
        self._world_size = world_size
        self._key_values = key_values
        self._log = log
        self._epoch = epoch
        self._keep_last = keep_last
        self._known = dict(known)
        self._distrusted = distrusted
        self._serial = 0
        self._flat: Tensor | None = None
        self._save: _Save | None = None
        self._thread: threading.Thread | None = None
        self._results: list[SaveResult] = []
        self.committed_step: int | None = None
        self.last_started_step: int | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a save is in flight on this rank."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def error(self) -> Exception | None:
        """What the last save failed of; None while it is in flight."""
        return None if self.is_busy or self._save is None else self._save.error

    def take_results(self) -> list[SaveResult]:
        """Checkpoints committed since the last call; rank 0 only."""
        results, self._results = self._results, []
        return results

    def begin(self, tensors: Mapping[str, Tensor], own: Mapping[str, Tensor], manifest: Manifest, reason: str) -> None:
        """Copy this rank's share and start to save it; the same call on every rank.

        Args:
            tensors: state that is the same on every rank; each rank saves a share.
            own: state of this rank alone.
            manifest: without parts.
            reason: for the record.
        """
        assert not self.is_busy, "one save is in flight at a time"
        started = time.monotonic()
        owners = share_out({name: tensor_bytes(tensor) for name, tensor in tensors.items()}, self._world_size)
        share = {name: tensor for name, tensor in tensors.items() if owners[name] == self._rank} | dict(own)
        layout = lay_out(share)
        flat = self._copy_out(share, layout)
        self._serial += 1
        save = _Save(self._serial, manifest, reason, layout, flat, started, time.monotonic() - started)
        self._save = save
        self.last_started_step = manifest.step
        self._thread = threading.Thread(target=self._run, args=(save,), name="checkpoint-save", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Give up the save in flight; it ends soon, committed or not."""
        if self._save is not None:
            self._save.cancel.set()

    def wait(self, deadline_unix_seconds: float | None = None) -> bool:
        """Wait until no save is in flight; past the deadline the save is given up.

        Returns:
            Whether none is in flight now. False: a request hangs; the thread is left behind.
        """
        if self._thread is None:
            return True
        if deadline_unix_seconds is None:
            self._thread.join()
            return True
        self._thread.join(max(0.0, deadline_unix_seconds - time.time()))
        if self._thread.is_alive():
            self.cancel()
            self._thread.join(CANCEL_SECONDS)
        return not self._thread.is_alive()

    def _copy_out(self, share: Mapping[str, Tensor], layout: Layout) -> Tensor:
        on_gpu = any(tensor.device.type == "cuda" for tensor in share.values())
        if self._flat is None or self._flat.numel() != layout.total_bytes:
            self._flat = torch.zeros(layout.total_bytes, dtype=torch.uint8, pin_memory=on_gpu)
        for name, tensor in share.items():
            tensor_at(self._flat, layout.tensors[name]).copy_(tensor.detach(), non_blocking=True)
        if on_gpu:
            torch.cuda.current_stream().synchronize()
        return self._flat

    def _run(self, save: _Save) -> None:
        """Thread: upload, exchange, and on rank 0 commit."""
        try:
            part = self._upload(save)
            self._hand_over(save, {"part": part.model_dump(mode="json")})
            if self._log is not None:
                self._commit(save, self._gather_parts(save))
            self._known = {chunk.blake3: chunk for chunk in part.chunks}
        # A thread's top level: the loop raises the error when the ranks have agreed that there is one.
        except Exception as error:  # noqa: BLE001
            save.error = error
            if not isinstance(error, SaveCancelledError):
                logger.error("saving step %d failed: %s", save.manifest.step, error)
            self._report_failure(save, error)

    def _upload(self, save: _Save) -> PartRecord:
        plain = save.flat.numpy().data
        with ThreadPoolExecutor(TRANSFER_THREADS, thread_name_prefix="checkpoint-chunk") as pool:
            pending = [pool.submit(self._upload_chunk, save, plain, span) for span in save.layout.spans]
            try:
                written = [future.result() for future in pending]
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        records = [record for record, _ in written]
        return PartRecord(
            tensors=save.layout.tensors, chunks=records, written_bytes=sum(added_bytes for _, added_bytes in written)
        )

    def _upload_chunk(self, save: _Save, plain: memoryview, span: ChunkSpan) -> tuple[ChunkRecord, int]:
        if save.cancel.is_set():
            raise SaveCancelledError(f"saving step {save.manifest.step} was given up before all was uploaded")
        content = plain[span.offset_bytes : span.offset_bytes + span.bytes]
        name = chunks.plain_hash(content)
        known = self._known.get(name)
        if known is not None:
            return known, 0
        stored = chunks.encode(content, span.element_bytes)
        record = ChunkRecord(key=f"chunks/{self._epoch:08d}/{name}", bytes=span.bytes, stored_bytes=len(stored))
        self._backend.put(record.key, stored)
        return record, len(stored)

    def _part_key(self, save: _Save, rank: int) -> str:
        return f"save/{save.serial}/{rank}"

    def _hand_over(self, save: _Save, message: dict[str, Any]) -> None:
        self._key_values.set(self._part_key(save, self._rank), json.dumps(message))

    def _report_failure(self, save: _Save, error: Exception) -> None:
        try:
            self._hand_over(save, {"error": f"rank {self._rank}: {error}", "cancelled": save.cancel.is_set()})
        except RuntimeError as unreachable:
            # The store's host is gone, and with it the gang: the loop's next collective fails on every rank.
            logger.warning("the other ranks could not be told that a save failed: %s", unreachable)

    def _gather_parts(self, save: _Save) -> list[PartRecord]:
        deadline = time.monotonic() + PARTS_TIMEOUT_SECONDS
        parts = []
        for rank in range(self._world_size):
            key = self._part_key(save, rank)
            while not self._key_values.check([key]):
                if save.cancel.is_set():
                    raise SaveCancelledError(
                        f"saving step {save.manifest.step} was given up before all ranks were done"
                    )
                if time.monotonic() > deadline:
                    raise StoreError(f"rank {rank} did not save its part in {PARTS_TIMEOUT_SECONDS} s; see its log")
                time.sleep(POLL_SECONDS)
            message = json.loads(self._key_values.get(key))
            self._key_values.delete_key(key)
            if "error" in message:
                raise (SaveCancelledError if message["cancelled"] else PeerError)(message["error"])
            parts.append(PartRecord.model_validate(message["part"]))
        return parts

    def _commit(self, save: _Save, parts: list[PartRecord]) -> None:
        assert self._log is not None, "rank 0 commits"
        manifest = save.manifest.model_copy(update={"parts": parts})
        content = manifest.model_dump_json().encode()
        key = f"chunks/{self._epoch:08d}/{chunks.plain_hash(content)}"
        self._backend.put(key, chunks.encode(content, 1))
        if save.cancel.is_set():
            raise SaveCancelledError(f"saving step {manifest.step} was given up before its commit")
        written_bytes = sum(part.written_bytes for part in parts)
        self._log.append_checkpoint(
            step=manifest.step,
            manifest=ManifestReference(key=key, bytes=len(content)),
            reason=save.reason,
            bytes=sum(part.plain_bytes for part in parts),
            written_bytes=written_bytes,
        )
        self.committed_step = manifest.step
        seconds = time.monotonic() - save.started
        self._results.append(SaveResult(manifest.step, seconds, save.blocked_seconds, written_bytes, save.reason))
        if save.reason != "stop":
            self._retain()

    def _retain(self) -> None:
        try:
            collect_garbage(self._backend, self._epoch, self._keep_last, self._distrusted)
        except StoreError as error:
            # The checkpoint is committed; that older ones stay costs money, not the run.
            logger.warning("old checkpoints could not be removed: %s", error)


def known_chunks(manifests: list[Manifest]) -> dict[str, ChunkRecord]:
    """Chunks that a new save may refer to instead of uploading them: hash to record."""
    return {chunk.blake3: chunk for manifest in manifests for chunk in manifest.chunks}
