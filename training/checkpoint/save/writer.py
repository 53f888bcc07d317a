"""The trainer's side of a save. The loop waits only for a copy to a host buffer; an executor does the remaining work.

Every rank copies its own share of the state. On a GPU, the copy overlaps with the next forward and backward passes,
which only read the copied state, and the next optimizer step waits for the copy. One save is in flight at a time. The
buffer must not change until the save has finished. `rank_save` describes how the ranks' shares become one checkpoint.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from training.checkpoint.chunks import Layout
from training.checkpoint.layout import lay_out, share_out, views_of
from training.checkpoint.log import LogWriter
from training.checkpoint.manifest import Manifest
from training.checkpoint.save.executors import Placement, ProcessExecutor, SaveExecutor, ThreadExecutor
from training.checkpoint.save.host_buffer import HostBuffer
from training.checkpoint.save.parts import PartSetAside
from training.checkpoint.save.progress import SaveProgress, warn_if_long
from training.checkpoint.save.rank_save import SavePlan, SaveRequest, SaveResult
from training.checkpoint.save.writer_process import Finished
from training.checkpoint.storage.backend import Backend
from training.errors import PeerError, SaveCancelledError, StoreError
from training.process.garbage_collection import paused_garbage_collection

logger = logging.getLogger(__name__)

CANCEL_SECONDS = 5
"""Maximum time for a cancelled save to end: the transfer time of the chunks in flight."""
PEER_POLL_SECONDS = 0.25
"""Interval at which rank 0 checks for another rank's failure while it waits for a save."""
RANK_FAILURE_KEY = "save/rank-failure"
"""Key under which a rank reports that it is exiting with an error. A failed save uses a different key."""


class KeyValueStore(Protocol):
    """The methods of a torch.distributed store that this module uses."""

    def set(self, key: str, value: str) -> None:
        """Write a value."""

    def get(self, key: str) -> bytes:
        """Read an existing value."""

    def check(self, keys: list[str]) -> bool:
        """Return True if all keys exist."""


@dataclass
class _Arrangement:
    """The layout of this rank's share, cached between saves.

    Attributes:
        forms: types and shapes of the shared tensors, and of this rank's own tensors.
        layout: the share's tensors and chunks.
    """

    forms: list[dict[str, tuple[torch.dtype, torch.Size]]]
    layout: Layout
    _views: dict[str, Tensor] = field(default_factory=dict)
    _buffer: HostBuffer | None = None

    def views_in(self, buffer: HostBuffer) -> dict[str, Tensor]:
        """Return the tensors' positions in a buffer, by name."""
        if self._buffer is not buffer:
            self._buffer, self._views = buffer, views_of(buffer.bytes, self.layout.tensors)
        return self._views


class CheckpointWriter:
    """Saves this rank's share of a run's state.

    Args:
        backend: the checkpoint store.
        plan: the settings of all saves.
        log: rank 0's right to commit, or None on other ranks.
        placement: the writer process's cores and priority; None: use a thread in this process, for tests and for stores
            that exist only in this process.
        key_values: store for reporting a failure to rank 0 when the checkpoint store is unreachable.

    Attributes:
        committed_step: step of the newest checkpoint known to be committed, on rank 0.
        last_started_step: step of the last save that began.
        blocked_seconds: time for which that save blocked the training loop.
        on_abandon: called by :meth:`abandon`.
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
        self._executor: SaveExecutor = (
            ThreadExecutor(backend, plan, log)
            if placement is None
            else ProcessExecutor(backend.url, plan, log, placement)
        )
        self._buffer: HostBuffer | None = None
        self._arrangement: _Arrangement | None = None
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
        self.on_abandon: Callable[[], None] = lambda: None
        self._is_abandoned = False

    @property
    def is_busy(self) -> bool:
        """True while a save is in flight on this rank."""
        self._poll(0.0)
        return self._in_flight is not None

    @property
    def error(self) -> Exception | None:
        """The last save's error; None while the save is in flight."""
        return None if self.is_busy else self._error

    def take_results(self) -> list[SaveResult]:
        """Return the checkpoints committed since the last call; rank 0 only."""
        self._poll(0.0)
        results, self._results = self._results, []
        return results

    def take_progress(self) -> SaveProgress | None:
        """Return the latest progress of this rank's save in flight; None if it has not changed since the last call."""
        self._poll(0.0)
        progress, self._executor.progress = self._executor.progress, None
        return progress

    def take_set_aside(self) -> list[PartSetAside]:
        """Return the objects found in place of parts since the last call; rank 0 only."""
        self._poll(0.0)
        found, self._executor.set_aside = self._executor.set_aside, []
        return found

    @paused_garbage_collection()
    def begin(
        self,
        tensors: Mapping[str, Tensor],
        own: Mapping[str, Tensor],
        manifest: Manifest,
        reason: str,
        skip_local_tier: bool = False,
    ) -> None:
        """Copy this rank's share and start saving it. All ranks make the same call.

        On a GPU, the copy is only started: call :meth:`before_update` before parameters or optimizer state change.

        Args:
            tensors: state that is the same on every rank; each rank saves a share of it.
            own: state that only this rank has.
            manifest: manifest without parts.
            reason: reason to record in the log entry.
            skip_local_tier: True if this node is about to be terminated, which would destroy a local copy.
        """
        assert not self.is_busy, "one save is in flight at a time"
        started = time.monotonic()
        arrangement = self._arrange(tensors, own)
        share = {name: own[name] if name in own else tensors[name] for name in arrangement.layout.tensors}
        on_gpu = any(tensor.device.type == "cuda" for tensor in share.values())
        laid_out = time.monotonic()
        buffer = self._buffer_of(arrangement.layout.total_bytes, on_gpu)
        views = arrangement.views_in(buffer)
        allocated = time.monotonic()
        self._copy_out(share, views, on_gpu)
        self._serial += 1
        self._error = None
        self.last_started_step = manifest.step
        request = SaveRequest(self._serial, manifest, reason, arrangement.layout, started, 0.0, skip_local_tier)
        self.blocked_seconds = time.monotonic() - started
        self._in_flight = replace(request, blocked_seconds=self.blocked_seconds)
        if self._copied is None:
            self._submit(self._in_flight, buffer)
        else:
            copied = self._copied
            self._copying = threading.Thread(target=self._submit, args=(self._in_flight, buffer, copied), daemon=True)
            self._copying.start()
        warn_if_long(manifest.step, [started, laid_out, allocated, started + self.blocked_seconds, time.monotonic()])

    def before_update(self) -> None:
        """Make the GPU finish the copy before any later work in its stream. This process does not wait.

        Call it after the backward pass and before the optimizer's step, or register it there
        (``optimizer.register_step_pre_hook``).
        """
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)
            self._copied = None

    def cancel(self) -> None:
        """Cancel the save in flight. It ends soon afterwards, whether or not it has been committed."""
        if self._in_flight is not None:
            self._await_copy()
            self._executor.cancel()

    def wait(self, deadline: float | None = None) -> bool:
        """Wait until no save is in flight; cancel the save at the deadline.

        Args:
            deadline: deadline in seconds of `time.monotonic()`; None: no deadline.

        Returns:
            True if no save is in flight. False if a request hung, and the save was abandoned.
        """
        while self._in_flight is not None:
            left_seconds = math.inf if deadline is None else deadline - time.monotonic()
            if left_seconds <= 0:
                self.cancel()
                self._poll(CANCEL_SECONDS)
                break
            self._poll(min(left_seconds, PEER_POLL_SECONDS))
            self._check_peers()
        return self._in_flight is None

    def close(self) -> None:
        """Wait for the save in flight, and release the executor."""
        self.wait()
        self._executor.close()

    def release(self) -> bool:
        """Release the store of a gang that is formed again; return True if :meth:`renew` is then possible.

        While a save is in flight, or after one has failed, the writer is abandoned instead.
        """
        self._key_values = None
        if not self._is_abandoned and (self.is_busy or self._error is not None):
            self.abandon()
        return not self._is_abandoned

    def abandon(self) -> None:
        """Cancel the save in flight, and release the executor in the background. The writer cannot be used again.

        The save may still be committed before the next generation's fence.
        """
        self._is_abandoned = True
        self.on_abandon()
        threading.Thread(target=self._end, name="abandoned checkpoint writer", daemon=True).start()

    def renew(self, plan: SavePlan, log: LogWriter | None, key_values: KeyValueStore) -> bool:
        """Save for another generation from now on, after :meth:`release`. Return False if the writer process has died.

        The writer is then abandoned.
        """
        try:
            self._executor.renew(plan, log)
        except StoreError as error:
            logger.warning("%s", error)
            self.abandon()
            return False
        self._plan, self._key_values, self._arrangement = plan, key_values, None
        self._serial, self.last_started_step = 0, None  # parts are found by the serial, which all ranks have to share
        return True

    def _end(self) -> None:
        try:
            self.wait(time.monotonic())
            self._executor.close()
        except (StoreError, OSError) as error:
            logger.warning("the writer of the earlier generation: %s", error)

    def _buffer_of(self, size_bytes: int, pinned: bool) -> HostBuffer:
        """Return the existing buffer, or a new buffer if the state's size has changed."""
        size_bytes = max(1, size_bytes)
        if self._buffer is not None and self._buffer.size_bytes != size_bytes:
            self._buffer.close()
            self._buffer = None
        if self._buffer is None:
            self._buffer = HostBuffer(size_bytes, pinned)
        return self._buffer

    def _arrange(self, tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> _Arrangement:
        """Return this rank's share and its layout. Compute them again only if a name, type or shape has changed."""
        forms = [{name: (tensor.dtype, tensor.shape) for name, tensor in each.items()} for each in (tensors, own)]
        if self._arrangement is None or self._arrangement.forms != forms:
            owners = share_out({name: tensor.nbytes for name, tensor in tensors.items()}, self._plan.world_size)
            share = {name: tensor for name, tensor in tensors.items() if owners[name] == self._plan.rank} | dict(own)
            self._arrangement = _Arrangement(forms, lay_out(share))
        return self._arrangement

    def _copy_out(self, share: Mapping[str, Tensor], views: Mapping[str, Tensor], on_gpu: bool) -> None:
        deferred = {name for name, tensor in share.items() if on_gpu and _changes_in_updates_only(name, tensor)}
        _copy(share, views, sorted(share.keys() - deferred), non_blocking=False)
        if not deferred:
            return
        stream = self._side_stream = self._side_stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            _copy(share, views, sorted(deferred), non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(stream)

    def _submit(self, request: SaveRequest, buffer: HostBuffer, copied: torch.cuda.Event | None = None) -> None:
        if copied is not None:
            copied.synchronize()
        try:
            self._executor.submit(request, buffer)
        except StoreError as error:
            self._error = error

    def _await_copy(self) -> None:
        if self._copying is not None:
            self._copying.join()
            self._copying = None

    def _check_peers(self) -> None:
        """Cancel the save on rank 0 if another rank has reported a failure."""
        if self._in_flight is None or self._key_values is None or self._plan.rank != 0:
            return
        keys = (self._failure_key(self._in_flight), RANK_FAILURE_KEY)
        reported = next((key for key in keys if self._key_values.check([key])), None)
        if reported is None:
            return
        reason = self._key_values.get(reported).decode()
        self.cancel()
        self._poll(CANCEL_SECONDS)
        if isinstance(self.error, SaveCancelledError):
            self._error = PeerError(reason)

    def report_failure(self, error: Exception) -> None:
        """Report to rank 0 that this rank has failed, so that rank 0 stops waiting for this rank's share."""
        self._report_to_rank_zero(RANK_FAILURE_KEY, error)

    def _report_to_rank_zero(self, key: str, error: Exception) -> None:
        if self._key_values is None or self._plan.rank == 0 or isinstance(error, SaveCancelledError):
            return
        try:
            self._key_values.set(key, f"rank {self._plan.rank}: {error}")
        except RuntimeError as unreachable:
            # The process that hosts the store has died, so the next collective fails on every rank.
            logger.warning("cannot report a failure to rank 0: %s", unreachable)

    def _failure_key(self, save: SaveRequest) -> str:
        return f"save/{save.serial}/failure"

    def _poll(self, timeout_seconds: float) -> None:
        """Handle the result of the save in flight if it finishes within the timeout."""
        if self._in_flight is None:
            return
        if timeout_seconds == 0 and self._copying is not None and self._copying.is_alive():
            return
        self._await_copy()
        if self._error is not None:
            self._in_flight = None
            return
        try:
            finished = self._executor.finished(timeout_seconds)
        except StoreError as error:
            finished = Finished(self._in_flight.serial, None, error)
        if finished is None:
            return
        save, self._in_flight, self._error = self._in_flight, None, finished.error
        self._executor.progress = None
        if finished.error is not None:
            self._report_to_rank_zero(self._failure_key(save), finished.error)
        if finished.result is not None:
            self.committed_step = finished.result.step
            self._results.append(finished.result)


def _copy(share: Mapping[str, Tensor], views: Mapping[str, Tensor], names: list[str], non_blocking: bool) -> None:
    if names:  # one call: a call per tensor takes longer than copying a small tensor
        with torch.no_grad():
            torch._foreach_copy_([views[name] for name in names], [share[name] for name in names], non_blocking)


def _changes_in_updates_only(name: str, tensor: Tensor) -> bool:
    """Return True if forward and backward passes do not change a tensor. They may write to a model's buffers."""
    return tensor.device.type == "cuda" and (isinstance(tensor, nn.Parameter) or name.startswith("optimizer/"))
