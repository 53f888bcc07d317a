"""Saving without stopping: the loop pays for a copy into a kept buffer, a writer beside it does the rest.

Every rank copies its own share of the state. On a GPU the copy runs beside the next forward and backward passes, which
only read what is copied, and the next optimizer step is made to wait for it. One save is in flight at a time; while it
is, the buffer is its own. What the writer does, and how the ranks' shares meet, is in
:mod:`training.checkpoint.saving`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn

from training.checkpoint.backend import Backend
from training.checkpoint.host_buffer import HostBuffer
from training.checkpoint.hosts import Host, Placement, ProcessHost, ThreadHost
from training.checkpoint.layout import Layout, lay_out, share_out, tensor_at, tensor_bytes
from training.checkpoint.log import LogWriter
from training.checkpoint.manifest import ChunkRecord, Manifest
from training.checkpoint.process import Finished
from training.checkpoint.progress import SaveProgress
from training.checkpoint.saving import SavePlan, SaveRequest, SaveResult
from training.errors import PeerError, SaveCancelledError, StoreError

logger = logging.getLogger(__name__)

CANCEL_SECONDS = 5
"""How long a save that is given up may take to end: the transfer of the chunks in flight."""
LONG_SECONDS = 5
"""A loop that stands still for longer than this at a save is told of, part by part."""
PEER_POLL_SECONDS = 0.25
"""How soon rank 0, when it has nothing to do but wait for a save, hears that another rank failed."""
RANK_FAILURE_KEY = "save/rank-failure"
"""Where a rank says that it ends; a save that fails has a key of its own."""


class KeyValueStore(Protocol):
    """What is used of a torch.distributed store."""

    def set(self, key: str, value: str) -> None:
        """Write a value."""

    def get(self, key: str) -> bytes:
        """Read a value that is there."""

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""


class CheckpointWriter:
    """Saves this rank's share of a run's state.

    Args:
        backend: the checkpoint store.
        plan: what stays the same from save to save.
        log: rank 0's right to commit; None on the others.
        placement: how a writer process shares the machine with training; None: a thread of this process instead, for
            tests and for stores that exist in this process only.
        key_values: store through which a rank tells rank 0 that it failed when it cannot reach the checkpoint store.

    Attributes:
        committed_step: step of the newest checkpoint that rank 0 knows to be committed.
        last_started_step: step of the last save that was begun.
        blocked_seconds: how long the loop stood still for it.
    """

    def __init__(
        self,
        backend: Backend,
        plan: SavePlan,
        log: LogWriter | None,
        placement: Placement | None = None,
        key_values: KeyValueStore | None = None,
    ) -> None:
        self._plan = plan
        self._key_values = key_values
        self._host: Host = (
            ThreadHost(backend, plan, log) if placement is None else ProcessHost(backend.url, plan, log, placement)
        )
        self._buffer: HostBuffer | None = None
        self._serial = 0
        self._in_flight: SaveRequest | None = None
        self._copying: threading.Thread | None = None
        self._copied: torch.cuda.Event | None = None
        self._side_stream: torch.cuda.Stream | None = None
        self._error: Exception | None = None
        self._results: list[SaveResult] = []
        self.committed_step: int | None = None
        self.last_started_step: int | None = None
        self.blocked_seconds = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether a save is in flight on this rank."""
        self._look(0.0)
        return self._in_flight is not None

    @property
    def error(self) -> Exception | None:
        """What the last save failed of; None while it is in flight."""
        return None if self.is_busy else self._error

    def take_results(self) -> list[SaveResult]:
        """Checkpoints committed since the last call; rank 0 only."""
        self._look(0.0)
        results, self._results = self._results, []
        return results

    def take_progress(self) -> SaveProgress | None:
        """How far this rank's share of the save in flight is, if there was word of it since the last call."""
        self._look(0.0)
        progress, self._host.progress = self._host.progress, None
        return progress

    def begin(
        self,
        tensors: Mapping[str, Tensor],
        own: Mapping[str, Tensor],
        manifest: Manifest,
        reason: str,
        node_leaves: bool = False,
    ) -> None:
        """Copy this rank's share and start to save it; the same call on every rank.

        On a GPU the copy is only begun: :meth:`before_update` must come before parameters or optimizer change.

        Args:
            tensors: state that is the same on every rank; each rank saves a share.
            own: state of this rank alone.
            manifest: without parts.
            reason: for the record.
            node_leaves: the form of it that is through soonest: no copy near by, which would be lost.
        """
        assert not self.is_busy, "one save is in flight at a time"
        started = time.monotonic()
        owners = share_out({name: tensor_bytes(tensor) for name, tensor in tensors.items()}, self._plan.world_size)
        share = {name: tensor for name, tensor in tensors.items() if owners[name] == self._plan.rank} | dict(own)
        layout = lay_out(share)
        on_gpu = any(tensor.device.type == "cuda" for tensor in share.values())
        laid_out = time.monotonic()
        buffer = self._buffer_of(layout.total_bytes, on_gpu)
        found_memory = time.monotonic()
        self._copy_out(share, layout, buffer, on_gpu)
        self._serial += 1
        self._error = None
        self.last_started_step = manifest.step
        request = SaveRequest(self._serial, manifest, reason, layout.tensors, layout.spans, started, 0.0, node_leaves)
        self.blocked_seconds = time.monotonic() - started
        self._in_flight = replace(request, blocked_seconds=self.blocked_seconds)
        if self._copied is None:
            self._submit(self._in_flight, buffer)
        else:
            copied = self._copied
            self._copying = threading.Thread(target=self._submit, args=(self._in_flight, buffer, copied), daemon=True)
            self._copying.start()
        _tell_if_long(
            manifest.step, [started, laid_out, found_memory, started + self.blocked_seconds, time.monotonic()]
        )

    def before_update(self) -> None:
        """Make the GPU finish the copy before what it is told next; the process does not wait.

        Call it after the backward pass and before the optimizer's step, or register it there
        (``optimizer.register_step_pre_hook``).
        """
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)
            self._copied = None

    def cancel(self) -> None:
        """Give up the save in flight; it ends soon, committed or not."""
        if self._in_flight is not None:
            self._await_copy()
            self._host.cancel()

    def wait(self, deadline: float | None = None) -> bool:
        """Wait until no save is in flight; past the deadline the save is given up.

        Args:
            deadline: in seconds of `time.monotonic()`, for the machine's clock may be set meanwhile; None: no deadline.

        Returns:
            Whether none is in flight now. False: a request hangs; it is left behind.
        """
        while self._in_flight is not None:
            left_seconds = math.inf if deadline is None else deadline - time.monotonic()
            if left_seconds <= 0:
                self.cancel()
                self._look(CANCEL_SECONDS)
                break
            self._look(min(left_seconds, PEER_POLL_SECONDS))
            self._heed_peers()
        return self._in_flight is None

    def close(self) -> None:
        """See the save in flight through and let go of the writer."""
        self.wait()
        self._host.close()

    def _buffer_of(self, size_bytes: int, pinned: bool) -> HostBuffer:
        """The kept buffer, or another one if the state has another size."""
        size_bytes = max(1, size_bytes)
        if self._buffer is not None and self._buffer.size_bytes != size_bytes:
            self._buffer.close()
            self._buffer = None
        if self._buffer is None:
            self._buffer = HostBuffer(size_bytes, pinned)
        return self._buffer

    def _copy_out(self, share: Mapping[str, Tensor], layout: Layout, buffer: HostBuffer, on_gpu: bool) -> None:
        deferred = {name for name, tensor in share.items() if on_gpu and _changes_in_updates_only(name, tensor)}
        for name in share.keys() - deferred:
            tensor_at(buffer.bytes, layout.tensors[name]).copy_(share[name].detach())
        if not deferred:
            return
        stream = self._side_stream = self._side_stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for name in sorted(deferred):
                tensor_at(buffer.bytes, layout.tensors[name]).copy_(share[name].detach(), non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(stream)

    def _submit(self, request: SaveRequest, buffer: HostBuffer, copied: torch.cuda.Event | None = None) -> None:
        if copied is not None:
            copied.synchronize()
        try:
            self._host.submit(request, buffer)
        except StoreError as error:
            self._error = error

    def _await_copy(self) -> None:
        if self._copying is not None:
            self._copying.join()
            self._copying = None

    def _heed_peers(self) -> None:
        """Give the save up on rank 0 if another rank has said that it failed."""
        if self._in_flight is None or self._key_values is None or self._plan.rank != 0:
            return
        key = self._failure_key(self._in_flight)
        told = next((each for each in (key, RANK_FAILURE_KEY) if self._key_values.check([each])), None)
        if told is None:
            return
        reason = self._key_values.get(told).decode()
        self.cancel()
        self._look(CANCEL_SECONDS)
        if isinstance(self.error, SaveCancelledError):
            self._error = PeerError(reason)

    def tell_failure(self, error: Exception) -> None:
        """This rank ends with an error: rank 0, which may wait for a share that will not come, is not to wait on."""
        self._tell_rank_zero(RANK_FAILURE_KEY, error)

    def _tell_rank_zero(self, key: str, error: Exception) -> None:
        if self._key_values is None or self._plan.rank == 0 or isinstance(error, SaveCancelledError):
            return
        try:
            self._key_values.set(key, f"rank {self._plan.rank}: {error}")
        except RuntimeError as unreachable:
            # The store's host is gone, and with it the gang: the loop's next collective fails on every rank.
            logger.warning("rank 0 could not be told of a failure: %s", unreachable)

    def _failure_key(self, save: SaveRequest) -> str:
        return f"save/{save.serial}/failure"

    def _look(self, timeout_seconds: float) -> None:
        """Take in the end of the save in flight, if it comes within this time."""
        if self._in_flight is None:
            return
        if timeout_seconds == 0 and self._copying is not None and self._copying.is_alive():
            return
        self._await_copy()
        if self._error is not None:
            self._in_flight = None
            return
        try:
            finished = self._host.finished(timeout_seconds)
        except StoreError as error:
            finished = Finished(self._in_flight.serial, None, error)
        if finished is None:
            return
        save, self._in_flight, self._error = self._in_flight, None, finished.error
        self._host.progress = None
        if finished.error is not None:
            self._tell_rank_zero(self._failure_key(save), finished.error)
        if finished.result is not None:
            self.committed_step = finished.result.step
            self._results.append(finished.result)


def _changes_in_updates_only(name: str, tensor: Tensor) -> bool:
    """Whether forward and backward passes leave a tensor alone; they may write to a model's buffers."""
    return tensor.device.type == "cuda" and (isinstance(tensor, nn.Parameter) or name.startswith("optimizer/"))


def _tell_if_long(step: int, moments: list[float]) -> None:
    """Say of what a save held the loop up, if it did: between its moments it was laid out, and so on."""
    if moments[-1] - moments[0] < LONG_SECONDS:
        return
    parts = ("laying it out", "finding memory", "copying", "handing it over")
    told = ", ".join(f"{end - begin:.1f} s {part}" for part, (begin, end) in zip(parts, pairwise(moments), strict=True))
    logger.warning(
        "training stood still for %.1f s to save step %d: %s; this machine may lack memory or processor time",
        moments[-1] - moments[0],
        step,
        told,
    )


def known_chunks(manifests: list[Manifest]) -> dict[str, ChunkRecord]:
    """Chunks that a new save may refer to instead of uploading them: hash to record."""
    return {chunk.blake3: chunk for manifest in manifests for chunk in manifest.chunks}
