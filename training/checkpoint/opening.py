"""Opens a run's checkpoint store, for this package's trainer and for `Checkpointer`."""

from __future__ import annotations

import secrets

import torch

from training.checkpoint.log import LogWriter
from training.checkpoint.manifest import Subject
from training.checkpoint.resume import Resumed, resume
from training.checkpoint.retention import Retention
from training.checkpoint.save.executors import Placement, choose_placement
from training.checkpoint.save.proof import Verification, prove_loadable
from training.checkpoint.save.rank_save import SavePlan, chunks_by_hash
from training.checkpoint.save.writer import CheckpointWriter
from training.checkpoint.state.training_state import TrainingState
from training.checkpoint.storage.backend import Backend
from training.process.distributed import Gang


def open_store(
    gang: Gang,
    backend: Backend,
    state: TrainingState,
    *,
    generation: int,
    retention: Retention,
    seed: int,
    subject: Subject | None = None,
    compress: bool = True,
    verification: Verification = "part",
) -> tuple[CheckpointWriter, Resumed | None]:
    """Take over a run's store, resume from its newest checkpoint, and start this rank's writer.

    All ranks make the same call. Earlier writers are fenced off first, so that they cannot commit a newer checkpoint.
    A new run then verifies that its checkpoints can be loaded.

    Args:
        gang: this process's gang.
        backend: the checkpoint store.
        state: the run's state. The newest checkpoint, if any, overwrites it, and the writer saves it.
        generation: the gang's generation; rejected if the log has a later one.
        retention: retention rules to apply after each save.
        seed: seed for the RNG states if the world size has changed.
        subject: this run's model, dataset and tokenizer; None: do not compare.
        compress: True to compress chunks where it saves space.
        verification: data that a new run writes and reads back before its first step.

    Returns:
        The writer, and the checkpoint or, for a new run, None.

    Raises:
        ConfigurationError: The checkpoint has another model, tokenizer, dataset or schema version.
        StoreError: The store cannot be read, or all of its checkpoints are damaged.
        SupersededError: A later generation owns the store.
    """
    log: list[LogWriter] = []

    def raise_fence() -> tuple[int, str]:
        log.append(LogWriter(backend, generation))
        return log[0].fence, secrets.token_hex(16)

    fence, secret = gang.ask_rank_zero(raise_fence)
    resumed = resume(gang, backend, state, subject, seed)
    if resumed is None:
        gang.ask_rank_zero(lambda: prove_loadable(backend, fence, state, compress=compress, verification=verification))
    placement = choose_placement(
        gang.local_rank, gang.local_world_size, torch.get_num_threads(), on_gpu=gang.device.type == "cuda"
    )
    plan = SavePlan(
        rank=gang.rank,
        world_size=gang.world_size,
        fence=fence,
        secret=secret,
        retention=retention,
        reusable=chunks_by_hash(resumed.manifest) if resumed is not None and resumed.has_reusable_chunks else {},
        damaged=frozenset() if resumed is None else resumed.damaged,
        threads=placement.threads,
        compress=compress,
        yields=placement.shares_cores,
    )
    writer = _start_writer(gang, backend, state, plan, log[0] if log else None, placement)
    writer.committed_step = resumed.manifest.step if resumed is not None and resumed.is_durable else None
    return writer, resumed


def reopen_store(
    gang: Gang,
    backend: Backend,
    state: TrainingState,
    *,
    generation: int,
    retention: Retention,
    committed_step: int | None,
    earlier: CheckpointWriter,
) -> CheckpointWriter:
    """Take over a run's store for a generation that continues from memory; return this rank's writer.

    All ranks make the same call. If the earlier writer is idle, it is used again. Otherwise, another one is started.

    Raises:
        StoreError: The store cannot be read.
        SupersededError: A later generation owns the store.
    """
    log: list[LogWriter] = []

    def raise_fence() -> tuple[int, str]:
        log.append(LogWriter(backend, generation))
        return log[0].fence, secrets.token_hex(16)

    fence, secret = gang.ask_rank_zero(raise_fence)
    placement = choose_placement(
        gang.local_rank, gang.local_world_size, torch.get_num_threads(), on_gpu=gang.device.type == "cuda"
    )
    plan = SavePlan(
        rank=gang.rank,
        world_size=gang.world_size,
        fence=fence,
        secret=secret,
        retention=retention,
        threads=placement.threads,
        yields=placement.shares_cores,
    )
    right = log[0] if log else None
    writer = earlier
    if not (earlier.release() and earlier.renew(plan, right, gang.store)):
        writer = _start_writer(gang, backend, state, plan, right, placement)
    writer.committed_step = committed_step
    return writer


def no_writer(backend: Backend) -> CheckpointWriter:
    """Return the writer of a rank that has not joined its gang yet. :func:`reopen_store` replaces it."""
    writer = CheckpointWriter(backend, SavePlan(rank=0, world_size=1, fence=0), None)
    writer.abandon()
    return writer


def _start_writer(
    gang: Gang, backend: Backend, state: TrainingState, plan: SavePlan, log: LogWriter | None, placement: Placement
) -> CheckpointWriter:
    writer = CheckpointWriter(backend, plan, log, placement, gang.store)
    hook = state.optimizer.register_step_pre_hook(lambda *_: writer.before_update())
    writer.on_abandon = hook.remove
    return writer
