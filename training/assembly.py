"""Puts a run together: from a job's paths and config to model, data and checkpoint, ready for the first step."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from training.ballot import Ballot
from training.checkpoint.backend import Backend, open_backend
from training.checkpoint.hosts import choose_placement
from training.checkpoint.log import LogWriter
from training.checkpoint.manifest import Manifest, Subject, ValidationRecord
from training.checkpoint.resume import Resumed, resume, rng_name
from training.checkpoint.saving import SavePlan
from training.checkpoint.state import TrainingState, random_state, seed_random_state
from training.checkpoint.weights import load_weights_together
from training.checkpoint.writer import CheckpointWriter, known_chunks
from training.config import ParallelConfig, TrainingConfig
from training.data.batches import TrainBatches, ValidationBatches
from training.data.dataset import DatasetRecord
from training.data.mapped import MappedTrainBatches, MappedValidationBatches
from training.distributed import Gang, Votes
from training.errors import ConfigurationError
from training.execution import choose_attention
from training.finders.micro_batch import Trial, find_micro_batch
from training.flops import multiplying_parameters, training_flops_per_token
from training.interruption import Interruption
from training.llama import Llama
from training.loss_watch import LossWatch
from training.metrics import MetricsFile
from training.model import GPT
from training.optimization import build_optimizer
from training.own_code import SummedLoss, build_model
from training.patience import Patience
from training.precision import Precision, choose_precision
from training.replication import Replica
from training.source import Source, open_source
from training.stopping import StopBeforeStepsError

logger = logging.getLogger(__name__)

PRIMING_PASSES = 2
"""Forward and backward passes before the first step. DDP rebuilds its buckets after the first one, which changes the
order in which three or more ranks' gradients are added; without this, a resumed run differs from an unbroken one."""


@dataclass(frozen=True)
class Job:
    """What the command line says.

    Attributes:
        config: what is trained.
        dataset: its directory.
        checkpoints: URL of the checkpoint store.
        run_directory: where stop files are found and outcomes and metrics go.
        generation: of the gang.
        dataset_url: where the dataset is that was staged, or is streamed; None: nobody said.
    """

    config: TrainingConfig
    dataset: Path
    checkpoints: str
    run_directory: Path
    generation: int
    dataset_url: str | None = None


@dataclass
class Run:
    """Everything that the loop works with; of a dataset of the user's own there is no ``dataset`` record."""

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
    micro_batch_sequences: int
    flops_per_token: float | None
    train_batches: TrainBatches | MappedTrainBatches
    validation_batches: ValidationBatches | MappedValidationBatches
    dataset: DatasetRecord | None
    sequence_terms: int
    subject: Subject
    backend: Backend
    writer: CheckpointWriter
    ballot: Ballot
    watch: LossWatch
    patience: Patience
    generation: int
    run_directory: Path
    resumed_from_step: int | None
    validation: ValidationRecord | None = None

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that reports."""
        return self.gang.rank == 0

    def manifest(self) -> Manifest:
        """Manifest of the state as it is, without parts."""
        return Manifest(
            subject=self.subject,
            step=self.state.step,
            position=self.state.position,
            generation=self.generation,
            world_size=self.gang.world_size,
            config=self.config.model_dump(mode="json"),
            config_digest=self.config.digest(),
            scaler=self.state.scaler.state_dict(),
            precision=self.precision.format,
            device_type=self.gang.device.type,
            torch_version=str(torch.__version__),
            validation=self.validation,
            extra={
                "watch": self.watch.state(self.ballot.reports),
                "patience": self.patience.state(),
                "micro_batch_sequences": self.micro_batch_sequences,
            },
            parts=[],
        )

    def own_tensors(self) -> dict[str, torch.Tensor]:
        """State of this rank alone."""
        states = random_state(self.gang.device)
        return {rng_name(self.gang.rank, generator): state for generator, state in states.items()}


def assemble(job: Job, gang: Gang, interruption: Interruption, metrics: MetricsFile) -> Run:
    """Build everything and bring it to the newest checkpoint.

    Raises:
        ConfigurationError: config, data and hardware do not fit together, or the checkpoint is of something else.
        SupersededError: a later generation owns the checkpoint log.
        StoreError: the checkpoint store does not work.
        StopBeforeStepsError: all ranks agreed to stop before there was anything to save.
    """
    config = job.config
    problems = config.problems_at(gang.world_size)
    if problems:
        raise ConfigurationError(problems)
    precision = choose_precision(config.precision, gang.device)
    precision.set_up_process()
    attention = choose_attention(config.execution, config.model.head_channels, precision, config.model.dropout)
    source = open_source(config, job.dataset, job.dataset_url, gang)
    _stop_if_asked(gang, interruption)
    torch.manual_seed(config.seed)
    model, summed = _build_model(config, source, gang)
    state = TrainingState(model, build_optimizer(model, config.optimizer), precision.scaler())
    forward = cast(nn.Module, torch.compile(summed)) if config.compile else summed
    micro_batch_sequences = _micro_batch(config, summed, precision, source, gang, interruption)
    replica = Replica(forward, gang, config.parallel)
    _prime(replica, model, precision, source, micro_batch_sequences, config.parallel, gang, interruption)
    seed_random_state(config.seed, gang.rank, step=0)
    subject = _subject(config, source)
    backend = open_backend(job.checkpoints)
    writer, resumed = _open_checkpoints(job, gang, backend, state, subject)
    kept = {} if resumed is None else resumed.manifest.extra
    if config.micro_batch_sequences == "auto":
        # The same size adds gradients in the same order: a resumed run has the bits of an unbroken one.
        micro_batch_sequences = min(micro_batch_sequences, kept.get("micro_batch_sequences", micro_batch_sequences))
    if resumed is None and config.initial_weights is not None:
        title = load_weights_together(gang, config.initial_weights, model, subject)
        logger.info("the run begins with the weights of %s", title)
    return Run(
        config=config,
        gang=gang,
        interruption=interruption,
        metrics=metrics,
        model=forward,
        uncompiled=summed,
        replica=replica,
        precision=precision,
        attention=attention,
        state=state,
        micro_batch_sequences=micro_batch_sequences,
        flops_per_token=_flops_per_token(model, config, source),
        train_batches=source.train,
        validation_batches=source.validation,
        dataset=source.tokens,
        sequence_terms=source.loss_terms_per_sequence,
        subject=subject,
        backend=backend,
        writer=writer,
        ballot=Ballot(gang, state.scaler.is_enabled(), _most_skipped_steps(config)),
        watch=LossWatch(config.recovery, kept.get("watch")),
        patience=Patience(config.early_stopping, kept.get("patience")),
        generation=job.generation,
        run_directory=job.run_directory,
        resumed_from_step=None if resumed is None else resumed.manifest.step,
        validation=None if resumed is None else resumed.manifest.validation,
    )


def _most_skipped_steps(config: TrainingConfig) -> int:
    if config.recovery.non_finite == "roll_back":
        return sys.maxsize  # how often the run may go back is what bounds them
    return config.recovery.most_skipped_steps if config.recovery.non_finite == "skip" else 0


def _build_model(config: TrainingConfig, source: Source, gang: Gang) -> tuple[nn.Module, nn.Module]:
    """The model whose parameters are trained, and what gives the sum of its losses over a batch."""
    if config.model.function is None:
        if source.tokens is None:
            raise ConfigurationError(
                [f"data.function: {config.data.function} gives no tokens for a GPT; name your model.function too"]
            )
        named = _named_model(config, source.tokens.vocabulary_size).to(gang.device)
        return named, named
    about_tokens = {}
    if source.tokens is not None:
        about_tokens = {"vocabulary_size": source.tokens.vocabulary_size, "context": config.model.shape.context}
    model = build_model(config.model.function, config.model.options, **about_tokens).to(gang.device)
    return model, SummedLoss(model, source.tokens is not None, config.model.function)


def _named_model(config: TrainingConfig, vocabulary_size: int) -> nn.Module:
    shape, recomputes = config.model.shape, config.execution.activation_checkpointing
    if config.model.is_llama:
        return Llama(shape, vocabulary_size, config.model.shared_heads, recomputes)
    return GPT(shape, vocabulary_size, config.model.dropout, recomputes)


def _stop_if_asked(gang: Gang, interruption: Interruption) -> None:
    """End the start here, on all ranks alike, if one was asked to stop: there is nothing yet that is worth a save."""
    if gang.agree(Votes(stop=float(interruption.wants_stop))).stop:
        reasons = gang.gather(interruption.reason() if interruption.wants_stop else None)
        reason = next((each for each in reasons if each is not None), "asked to stop")
        raise StopBeforeStepsError(f"{reason}; stopped before the first step, with nothing to save")


def _micro_batch(
    config: TrainingConfig,
    model: nn.Module,
    precision: Precision,
    source: Source,
    gang: Gang,
    interruption: Interruption,
) -> int:
    """The most sequences of a micro-batch. It is found without compilation, which would be done anew for each size.

    A compiled model needs less memory, so what fits without fits with it.
    """
    share = len(gang.share_of(config.global_batch_sequences))
    if config.micro_batch_sequences != "auto":
        return min(config.micro_batch_sequences, share)
    if gang.device.type != "cuda":
        raise ConfigurationError(
            [
                "micro_batch_sequences: auto tries out a GPU's memory, and this process has none; give a number, such "
                "as 8"
            ]
        )

    def passes(sequences: int) -> None:
        with precision.autocast():
            loss = model(*source.train.example(sequences))
        loss.backward()

    return find_micro_batch(Trial(model, passes, share, lambda: _stop_if_asked(gang, interruption)), gang)


def _prime(
    replica: Replica,
    model: nn.Module,
    precision: Precision,
    source: Source,
    micro_batch_sequences: int,
    parallel: ParallelConfig,
    gang: Gang,
    interruption: Interruption,
) -> None:
    batch = source.train.example(micro_batch_sequences)
    copes_with_unused = gang.world_size == 1 or parallel.find_unused_parameters or parallel.static_graph
    for _ in range(PRIMING_PASSES):
        with precision.autocast():
            loss = replica(*batch)
        loss.backward()  # type: ignore[no-untyped-call]
        unused = [name for name, parameter in model.named_parameters() if _has_no_gradient(parameter)]
        if unused and not copes_with_unused:
            raise ConfigurationError(
                [
                    f"parallel.find_unused_parameters: false, and the loss does not depend on {', '.join(unused[:5])}"
                    f"{', ...' if len(unused) > 5 else ''}, for whose gradients the other ranks would wait; set it to "
                    "true, or let the model do without them (requires_grad = False)"
                ]
            )
        model.zero_grad()
        _stop_if_asked(gang, interruption)


def _has_no_gradient(parameter: nn.Parameter) -> bool:
    return parameter.requires_grad and parameter.grad is None


def _flops_per_token(model: nn.Module, config: TrainingConfig, source: Source) -> float | None:
    """None for a dataset without tokens: parameters say nothing about the work for an image."""
    return (
        None if source.tokens is None else training_flops_per_token(multiplying_parameters(model), config.model.shape)
    )


def _subject(config: TrainingConfig, source: Source) -> Subject:
    tokens = source.tokens
    return Subject(
        **config.model.shape._asdict(),
        vocabulary_size=0 if tokens is None else tokens.vocabulary_size,
        dataset_name=source.name,
        dataset_identity=source.identity,
        tokenizer_sha256="" if tokens is None else tokens.tokenizer.sha256,
    )


def _open_checkpoints(
    job: Job, gang: Gang, backend: Backend, state: TrainingState, subject: Subject
) -> tuple[CheckpointWriter, Resumed | None]:
    """Fence off older generations first, so that the newest checkpoint stays the newest; then resume from it."""
    log: list[LogWriter] = []

    def raise_fence() -> int:
        log.append(LogWriter(backend, job.generation))
        return log[0].epoch

    epoch = gang.ask_rank_zero(raise_fence)
    resumed = resume(gang, backend, state, subject, job.config.seed)
    usable: list[Any] = [resumed.manifest] if resumed is not None and resumed.chunks_are_kept else []
    placement = choose_placement(
        gang.local_rank, gang.local_world_size, torch.get_num_threads(), on_gpu=gang.device.type == "cuda"
    )
    plan = SavePlan(
        rank=gang.rank,
        world_size=gang.world_size,
        epoch=epoch,
        keep_last=job.config.checkpoint.keep_last,
        keep_best=job.config.checkpoint.keep_best,
        keep_every_hours=job.config.checkpoint.keep_every_hours,
        known=known_chunks(usable),
        threads=placement.threads,
        distrusted=frozenset() if resumed is None else resumed.passed_over,
    )
    writer = CheckpointWriter(backend, plan, log[0] if log else None, placement, gang.store)
    state.optimizer.register_step_pre_hook(lambda *_: writer.before_update())
    writer.committed_step = resumed.manifest.step if resumed is not None and resumed.is_durable else None
    return writer, resumed
