"""Checkpoints for any trainer: three lines of code save and resume a run, under torchrun or in a single process.

    checkpointer = Checkpointer("s3://bucket/runs/one", model, optimizer)
    step = checkpointer.resume().step                    # 0 for a new run
    while step < steps:
        ...                                              # forward, backward, optimizer.step()
        step += 1
        if step % 500 == 0:
            checkpointer.save(step)                      # copies the state and returns; the upload runs in parallel
    checkpointer.save(step, wait=True)

Model and optimizer may be bare or wrapped by DistributedDataParallel and torch.compile, in any nesting. Every rank
holds the same state, and the ranks share the work. State that is sharded across ranks (FSDP, tensor parallelism) is
rejected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from training.checkpoint.manifest import Manifest, ValidationRecord
from training.checkpoint.opening import open_store
from training.checkpoint.resume import own_tensors
from training.checkpoint.retention import Retention
from training.checkpoint.save.proof import Verification
from training.checkpoint.save.rank_save import SaveResult
from training.checkpoint.save.writer import CheckpointWriter
from training.checkpoint.state.optimizer import bare_optimizer
from training.checkpoint.state.training_state import Captured, TrainingState
from training.checkpoint.state.values import decode, encode_mapping
from training.checkpoint.storage.urls import open_backend
from training.errors import ConfigurationError, PeerError
from training.process.distributed import ControlFlags, Gang, adopt_gang, join_gang


@dataclass(frozen=True)
class Resumption:
    """The point from which a run resumes.

    Attributes:
        step: optimizer steps completed; 0 for a new run.
        extra: the value passed to :meth:`Checkpointer.save` for that step, on rank 0.
        rank_extra: this rank's ``rank_extra`` from the same call; empty if the world size has changed.
        world_size: number of processes that saved the checkpoint; 0 for a new run.
    """

    step: int = 0
    extra: dict[str, Any] = field(default_factory=dict)
    rank_extra: dict[str, Any] = field(default_factory=dict)
    world_size: int = 0


class Checkpointer:
    """Saves and resumes one run. All ranks must make the same calls in the same order.

    If no process group is initialized, the constructor creates one with torchrun's processes, or this process only.

    Args:
        url: checkpoint store, ``s3://bucket/prefix`` or a directory, the same on every rank.
        model: bare or wrapped model, the same on every rank.
        optimizer: optimizer for the model's parameters, bare or wrapped by Accelerate or Lightning.
        scaler: gradient scaler for fp16 training, if used.
        generation: number of this start of the run, if you number its starts. Once a later start has begun, processes
            from earlier starts can no longer commit. If two starts have the same number, the later one wins.
        retention: rules for the checkpoints to keep; by default, the newest two.
        seed: seed for the RNG states if the world size has changed.
        compress: True to compress chunks where it saves space.
        verification: data that a new run writes to the store and reads back in :meth:`resume`. ``part``: the structure
            and one chunk. ``full``: all bytes of the model, which takes as long as a save plus a resume, and needs host
            memory for a copy.

    Raises:
        ConfigurationError: Part of the model's or optimizer's state cannot be saved and loaded; the messages identify
        it.
    """

    def __init__(
        self,
        url: str,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler | None = None,
        *,
        generation: int = 0,
        retention: Retention | None = None,
        seed: int = 0,
        compress: bool = True,
        verification: Verification = "part",
    ) -> None:
        self._retention = retention or Retention()
        self._state = TrainingState(
            model, bare_optimizer(optimizer), scaler or torch.amp.GradScaler("cpu", enabled=False)
        )
        self._gang: Gang = adopt_gang(_device_of(model)) if dist.is_initialized() else join_gang()
        self._backend = open_backend(url)
        self._generation, self._seed, self._compress = generation, seed, compress
        self._verification: Verification = verification
        self._writer: CheckpointWriter | None = None
        self._is_local_only = False

    @property
    def is_saving(self) -> bool:
        """True while a save is in flight on this rank."""
        return self._opened().is_busy

    @property
    def is_local_only(self) -> bool:
        """True if the gang resumed from a checkpoint that exists only in local tiers. It should then save soon."""
        return self._is_local_only

    def resume(self) -> Resumption:
        """Take over the store, and load the newest checkpoint into the model, optimizer, scaler and RNG states.

        Raises:
            ConfigurationError: The checkpoint belongs to another model; nothing was changed.
            StoreError: The store cannot be read, or all of its checkpoints are damaged.
            SupersededError: A later generation owns the store.
        """
        self._writer, resumed = open_store(
            self._gang,
            self._backend,
            self._state,
            generation=self._generation,
            retention=self._retention,
            seed=self._seed,
            compress=self._compress,
            verification=self._verification,
        )
        if resumed is None:
            return Resumption()
        self._is_local_only = not resumed.is_durable
        if resumed.manifest.optimizer is not None:  # imported weights do not include an optimizer
            self._state.restore_groups(resumed.manifest.optimizer)
        manifest = resumed.manifest
        return Resumption(manifest.step, decode(manifest.extra), resumed.rank_extra, manifest.world_size)

    def save(
        self,
        step: int,
        extra: dict[str, Any] | None = None,
        *,
        rank_extra: dict[str, Any] | None = None,
        validation_loss: float | None = None,
        wait: bool = False,
    ) -> bool:
        """Start saving the current state.

        Args:
            step: optimizer steps completed.
            extra: the caller's small state, such as a scheduler's ``state_dict()`` or a data position. It may contain
                None, bool, int, float, str, bytes, list, tuple, set, dict with any of these as keys, NumPy values, and
                tensors, which are returned on the CPU. :meth:`resume` returns equal values of the same types. All
                ranks resume with rank 0's value.
            rank_extra: small state that is specific to this rank, such as a prefetched batch; the same types.
            validation_loss: validation loss of exactly this state, if measured; used by ``Retention(keep_best=...)``.
            wait: True to return after the commit instead of after the copy.

        Returns:
            False if this save was skipped because an earlier save is still in flight; always True with ``wait``.

        Raises:
            ConfigurationError: A value in ``extra`` or in the optimizer's state cannot be saved; nothing was written.
            StoreError: This save (with ``wait``) or the preceding save failed. Raised on all ranks.
            SupersededError: A later start of the run owns the store.
        """
        writer = self._opened()
        kept, own = encode_mapping(extra or {}, "extra"), encode_mapping(rank_extra or {}, "rank_extra")
        if wait:
            writer.wait()
        agreed = self._gang.agree(ControlFlags(busy=float(writer.is_busy), failed=float(writer.error is not None)))
        if agreed.failed:
            self._raise_failure(writer)
        if agreed.busy:
            return False
        captured = self._state.capture()
        manifest = self._manifest(step, captured, kept, validation_loss)
        writer.begin(captured.shared, own_tensors(self._gang, captured, own), manifest, "request")
        self._is_local_only = False
        if wait:
            writer.wait()
            self._gang.raise_together(writer.error)
        return True

    def agree(self, flags: ControlFlags) -> ControlFlags:
        """Return the sum of all ranks' flags, for decisions that all ranks must make together, such as stopping."""
        return self._gang.agree(flags)

    def take_results(self) -> list[SaveResult]:
        """Return the checkpoints committed since the last call, with times and sizes, on rank 0 only."""
        return self._opened().take_results()

    def close(self) -> None:
        """Wait for the save in flight, and end the writer process.

        Raises:
            StoreError: The save failed.
        """
        writer = self._opened()
        writer.close()
        self._gang.raise_together(writer.error)

    def _opened(self) -> CheckpointWriter:
        if self._writer is None:
            raise ConfigurationError(["Checkpointer: resume() was not called; call it first, even for a new run"])
        return self._writer

    def _raise_failure(self, writer: CheckpointWriter) -> None:
        writer.wait()
        self._gang.raise_together(writer.error)
        raise PeerError("a rank reported a failed save but did not raise an error; this is a bug")

    def _manifest(
        self, step: int, captured: Captured, extra: dict[str, Any], validation_loss: float | None
    ) -> Manifest:
        return Manifest(
            step=step,
            position=0,
            generation=self._generation,
            world_size=self._gang.world_size,
            config={},
            config_digest="",
            scaler=encode_mapping(self._state.scaler.state_dict(), "scaler"),
            precision="",
            device_type=self._gang.device.type,
            torch_version=str(torch.__version__),
            extra=extra,
            validation=_validation(step, validation_loss),
            optimizer=captured.optimizer,
            extra_states=captured.extra_states,
            parts=[],
        )


def _device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _validation(step: int, loss: float | None) -> ValidationRecord | None:
    """Drop a non-finite loss: it cannot be ranked, and the run may recover."""
    return None if loss is None or not math.isfinite(loss) else ValidationRecord(step=step, loss=loss)
