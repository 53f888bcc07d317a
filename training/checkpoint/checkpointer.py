"""The checkpoint store for any trainer: save and resume in three lines, under torchrun or alone.

    checkpointer = Checkpointer("s3://bucket/runs/one", model, optimizer)
    step = checkpointer.resume().step                    # 0 for a new run
    while step < steps:
        ...                                              # forward, backward, optimizer.step()
        step += 1
        if step % 500 == 0:
            checkpointer.save(step)                      # copies, and returns; the rest is done beside training
    checkpointer.save(step, wait=True)

Model and optimizer may be bare or wrapped by DistributedDataParallel and torch.compile, in any nesting; every rank
holds the same state, and the ranks share the work. State that is sharded over ranks (FSDP, tensor parallelism) is
refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from training.checkpoint.backend import open_backend
from training.checkpoint.hosts import choose_placement
from training.checkpoint.log import LogWriter
from training.checkpoint.manifest import Manifest, ValidationRecord
from training.checkpoint.resume import resume, rng_name
from training.checkpoint.retention import Retention
from training.checkpoint.saving import SavePlan, SaveResult
from training.checkpoint.state import TrainingState, random_state
from training.checkpoint.writer import CheckpointWriter, known_chunks
from training.distributed import Gang, Votes, adopt_gang, join_gang
from training.errors import ConfigurationError, PeerError


@dataclass(frozen=True)
class Resumption:
    """Where a run goes on.

    Attributes:
        step: optimizer steps done; 0 for a new run.
        extra: what was given to :meth:`Checkpointer.save` with it.
    """

    step: int = 0
    extra: dict[str, Any] = field(default_factory=dict)


class Checkpointer:
    """Saves and resumes one run. All ranks make the same calls in the same order.

    Without a process group one is made: of torchrun's processes, or of this one alone.

    Args:
        url: ``s3://bucket/prefix`` or a directory, the same on every rank.
        model: bare or wrapped, the same on every rank.
        optimizer: of the model's parameters.
        scaler: of fp16 training, if there is one.
        generation: number of this start of the run, if starts are numbered: a process of an earlier one commits nothing
            more once a later one has begun. Of equal numbers the one that began last wins.
        keep_last: newest whole checkpoints that are kept, at least 2.
        keep_best: those with the lowest validation loss that are kept besides.
        keep_every_hours: one more is kept for each such stretch of time; None: no rule.
        seed: from which random states are derived when the world size has changed.
        compress: whether chunks are compressed where it pays.
    """

    def __init__(
        self,
        url: str,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler | None = None,
        *,
        generation: int = 0,
        keep_last: int = 2,
        keep_best: int = 0,
        keep_every_hours: float | None = None,
        seed: int = 0,
        compress: bool = True,
    ) -> None:
        self._retention = Retention(keep_last, keep_best, keep_every_hours)
        _refuse_sharded(model)
        self._gang: Gang = adopt_gang(_device_of(model)) if dist.is_initialized() else join_gang()
        self._backend = open_backend(url)
        self._state = TrainingState(model, optimizer, scaler or torch.amp.GradScaler("cpu", enabled=False))
        self._generation, self._seed, self._compress = generation, seed, compress
        self._writer: CheckpointWriter | None = None
        self._is_near_only = False

    @property
    def is_saving(self) -> bool:
        """Whether a save is in flight on this rank."""
        return self._opened().is_busy

    @property
    def is_near_only(self) -> bool:
        """Whether what it resumed from is on this gang's nodes alone, and no save was begun since: begin one soon."""
        return self._is_near_only

    def resume(self) -> Resumption:
        """Bring model, optimizer, scaler and random states to the newest checkpoint, and own the store from now on.

        Raises:
            ConfigurationError: the checkpoint is of another model; nothing was changed.
            StoreError: the store cannot be read, or holds damaged checkpoints only.
            SupersededError: a later generation owns the store.
        """
        gang, rights = self._gang, []

        def raise_fence() -> int:
            rights.append(LogWriter(self._backend, self._generation))
            return rights[0].epoch

        epoch = gang.ask_rank_zero(raise_fence)
        resumed = resume(gang, self._backend, self._state, None, self._seed)
        placement = choose_placement(
            gang.local_rank, gang.local_world_size, torch.get_num_threads(), on_gpu=gang.device.type == "cuda"
        )
        plan = SavePlan(
            rank=gang.rank,
            world_size=gang.world_size,
            epoch=epoch,
            keep_last=self._retention.keep_last,
            keep_best=self._retention.keep_best,
            keep_every_hours=self._retention.keep_every_hours,
            known=known_chunks([resumed.manifest] if resumed and resumed.chunks_are_kept else []),
            distrusted=resumed.passed_over if resumed else frozenset(),
            threads=placement.threads,
            compress=self._compress,
        )
        writer = CheckpointWriter(self._backend, plan, rights[0] if rights else None, placement, gang.store)
        self._writer = writer
        self._state.optimizer.register_step_pre_hook(lambda *_: writer.before_update())
        if resumed is None:
            return Resumption()
        writer.committed_step = resumed.manifest.step if resumed.is_durable else None
        self._is_near_only = not resumed.is_durable
        if resumed.manifest.optimizer_groups:  # imported weights come without any
            _set_groups(self._state.optimizer, resumed.manifest.optimizer_groups)
        return Resumption(resumed.manifest.step, resumed.manifest.extra)

    def save(
        self,
        step: int,
        extra: dict[str, Any] | None = None,
        *,
        validation_loss: float | None = None,
        wait: bool = False,
    ) -> bool:
        """Begin to save the state as it is after ``step`` optimizer steps.

        Args:
            step: optimizer steps done.
            extra: small state of the caller, of JSON's types: a scheduler's ``state_dict()``, a place in the data.
            validation_loss: of this very state, if it was measured; what ``keep_best`` goes by.
            wait: return when the checkpoint is committed, rather than when it has been copied.

        Returns:
            False if an earlier save is still in flight and this one was left out; never with ``wait``.

        Raises:
            StoreError: this save (with ``wait``) or the one before it failed, on all ranks alike.
            SupersededError: a later start of the run owns the store.
        """
        writer = self._opened()
        if wait:
            writer.wait()
        agreed = self._gang.agree(Votes(busy=float(writer.is_busy), failed=float(writer.error is not None)))
        if agreed.failed:
            self._raise_failure(writer)
        if agreed.busy:
            return False
        manifest = self._manifest(step, extra or {}, validation_loss)
        writer.begin(self._state.tensors(), self._own_tensors(), manifest, "request")
        self._is_near_only = False
        if wait:
            writer.wait()
            self._gang.raise_together(writer.error)
        return True

    def agree(self, votes: Votes) -> Votes:
        """Add up what the ranks say: what all of them can act on alike, such as a wish to stop."""
        return self._gang.agree(votes)

    def take_results(self) -> list[SaveResult]:
        """Checkpoints committed since the last call, with their times and sizes; on rank 0 only."""
        return self._opened().take_results()

    def close(self) -> None:
        """Wait for the save in flight, and let go of the writer process.

        Raises:
            StoreError: that save failed.
        """
        writer = self._opened()
        writer.close()
        self._gang.raise_together(writer.error)

    def _opened(self) -> CheckpointWriter:
        if self._writer is None:
            raise ConfigurationError(["Checkpointer: resume() comes first, also for a new run; call it"])
        return self._writer

    def _raise_failure(self, writer: CheckpointWriter) -> None:
        writer.wait()
        self._gang.raise_together(writer.error)
        raise PeerError("a rank voted that its save failed, and then had no error; this is a bug")

    def _own_tensors(self) -> dict[str, torch.Tensor]:
        states = random_state(self._gang.device)
        return {rng_name(self._gang.rank, generator): state for generator, state in states.items()}

    def _manifest(self, step: int, extra: dict[str, Any], validation_loss: float | None) -> Manifest:
        groups = [
            {key: _plain(value) for key, value in group.items() if key != "params"}
            for group in self._state.optimizer.param_groups
        ]
        return Manifest(
            step=step,
            position=0,
            generation=self._generation,
            world_size=self._gang.world_size,
            config={},
            config_digest="",
            scaler=self._state.scaler.state_dict(),
            precision="",
            device_type=self._gang.device.type,
            torch_version=str(torch.__version__),
            extra=extra,
            validation=_validation(step, validation_loss),
            optimizer_groups=groups,
            parts=[],
        )


def _device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _refuse_sharded(model: nn.Module) -> None:
    sharded = [name for name, parameter in model.named_parameters() if type(parameter.data) is not torch.Tensor]
    if sharded:
        raise ConfigurationError(
            [f"model: {sharded[0]} (of {len(sharded)}) is not a plain tensor; give a model that every rank has whole"]
        )


def _validation(step: int, loss: float | None) -> ValidationRecord | None:
    """A loss that is no number ranks nowhere; the run may well recover from it."""
    return None if loss is None or not math.isfinite(loss) else ValidationRecord(step=step, loss=loss)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def _set_groups(optimizer: torch.optim.Optimizer, saved: list[dict[str, Any]]) -> None:
    """Take over learning rates and whatever else a scheduler may have changed."""
    for group, values in zip(optimizer.param_groups, saved, strict=True):
        group.update({key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})
