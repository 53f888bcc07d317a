"""The state used by the training loop: model, data, checkpoint writer and metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from training.checkpoint.manifest import Manifest, Subject, ValidationRecord
from training.checkpoint.save.writer import CheckpointWriter
from training.checkpoint.state.training_state import Captured, TrainingState
from training.checkpoint.state.values import encode_mapping
from training.checkpoint.storage.backend import Backend
from training.config import TrainingConfig
from training.data.batches import TrainBatches, ValidationBatches
from training.data.dataset import DatasetRecord
from training.data.mapped import MappedTrainBatches, MappedValidationBatches
from training.loop.control_flags import DeferredFlags
from training.loop.early_stopping import Patience
from training.loop.interruption import Interruption
from training.loop.loss_watch import LossWatch
from training.observe.metrics import MetricsFile
from training.process.distributed import Gang
from training.process.precision import Precision
from training.process.reform.buffer_history import BufferHistory
from training.process.reform.ledger import StepLedger
from training.process.replication import Replica


@dataclass
class Run:
    """A run on this rank, built by :func:`training.loop.build.build_run`.

    Attributes:
        model: module that returns a batch's mean loss; compiled if the config enables compilation.
        uncompiled: the same module without compilation.
        replica: ``model`` wrapped by DDP.
        state: parameters, optimizer, gradient scaler, step and data position.
        flops_per_token: floating-point operations per token, forward plus backward; None for a dataset without tokens.
        dataset: the token dataset's record; None for a user-supplied dataset.
        loss_terms_per_sequence: tokens per sequence; 1 for a user-supplied dataset.
        resumed_from_step: step of the checkpoint that the run resumed from; None for a new run.
        validation: newest validation with a finite loss.
        ledger: the completed steps; None unless the gang can be re-formed (`parallel.reform`).
        buffers: the model's buffers before the last steps; None unless the gang can be re-formed.
        is_updating: True inside an optimizer step.
        compiled_sizes: sizes of micro-batches for which the model has been compiled.
    """

    config: TrainingConfig
    gang: Gang
    interruption: Interruption
    metrics: MetricsFile
    model: nn.Module
    uncompiled: nn.Module
    replica: Replica
    precision: Precision
    attention: str
    state: TrainingState
    micro_batch_size: int
    flops_per_token: float | None
    train_batches: TrainBatches | MappedTrainBatches
    validation_batches: ValidationBatches | MappedValidationBatches
    dataset: DatasetRecord | None
    loss_terms_per_sequence: int
    subject: Subject
    backend: Backend
    writer: CheckpointWriter
    flags: DeferredFlags
    watch: LossWatch
    patience: Patience
    generation: int
    run_directory: Path
    resumed_from_step: int | None
    validation: ValidationRecord | None = None
    ledger: StepLedger | None = None
    buffers: BufferHistory | None = None
    is_updating: bool = False
    compiled_sizes: set[int] = field(default_factory=set)

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """The model's parameters. Finding them in the modules takes longer than the rest of gradient clipping."""
        return list(self.model.parameters())

    @property
    def is_gated(self) -> bool:
        """True if each step passes a gate, so that an aborted collective cannot change a weight."""
        return self.ledger is not None and self.gang.world_size > 1

    @property
    def is_main(self) -> bool:
        """True on rank 0, which logs and writes metrics."""
        return self.gang.rank == 0

    def manifest(self, captured: Captured) -> Manifest:
        """Return a manifest for the current state, without parts."""
        return Manifest(
            subject=self.subject,
            step=self.state.step,
            position=self.state.position,
            generation=self.generation,
            world_size=self.gang.world_size,
            config=self.config.model_dump(mode="json"),
            config_digest=self.config.digest(),
            scaler=encode_mapping(self.state.scaler.state_dict(), "scaler"),
            precision=self.precision.format,
            device_type=self.gang.device.type,
            torch_version=str(torch.__version__),
            validation=self.validation,
            extra={
                "watch": self.watch.state(self.flags.reports),
                "patience": self.patience.state(),
                "micro_batch_size": self.micro_batch_size,
            },
            optimizer=captured.optimizer,
            extra_states=captured.extra_states,
            parts=[],
        )
