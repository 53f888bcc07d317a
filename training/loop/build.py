"""Builds a run from a job: its model, optimizer, data and checkpoint writer, ready for the first step."""

from __future__ import annotations

import logging
import sys
from typing import cast

import torch
from torch import nn

from training.checkpoint.manifest import Subject
from training.checkpoint.opening import no_writer, open_store
from training.checkpoint.resume import Resumed
from training.checkpoint.retention import Retention
from training.checkpoint.state.generators import seed_generators, seed_random_state
from training.checkpoint.state.training_state import TrainingState
from training.checkpoint.storage.urls import open_backend
from training.config import TrainingConfig
from training.errors import ConfigurationError
from training.loop.control_flags import DeferredFlags
from training.loop.data_source import Source, open_source
from training.loop.early_stopping import Patience
from training.loop.interruption import Interruption
from training.loop.job import Job
from training.loop.loss_watch import LossWatch
from training.loop.optimizer import build_optimizer
from training.loop.run import Run
from training.models.flops import multiplying_parameters, training_flops_per_token
from training.models.initial_weights import load_initial_weights_together
from training.models.named import build_named_model
from training.models.user_model import MeanLoss, build_model
from training.observe.metrics import MetricsFile
from training.process.distributed import ControlFlags, Gang
from training.process.execution import choose_attention
from training.process.precision import Precision, choose_precision
from training.process.reform.buffer_history import BufferHistory
from training.process.reform.ledger import StepLedger
from training.process.replication import Replica
from training.tuning.micro_batch_size import Trial, find_micro_batch

logger = logging.getLogger(__name__)


class StopBeforeStepsError(Exception):
    """All ranks agreed to stop before the run was ready; there is nothing to save."""


def build_run(job: Job, gang: Gang, interruption: Interruption, metrics: MetricsFile) -> Run:
    """Build a run and restore it from the newest checkpoint. All ranks call it together.

    A rank that joins a running gang builds the run alone, and receives its state from the gang later.

    Raises:
        ConfigurationError: Config, data and hardware are inconsistent, or the checkpoint belongs to another model or
            dataset.
        SupersededError: A later generation owns the checkpoint log.
        StoreError: The checkpoint store failed.
        StopBeforeStepsError: All ranks agreed to stop before the first step.
    """
    config = job.config
    problems = config.problems_at(gang.world_size)
    if problems:
        raise ConfigurationError(problems)
    precision = choose_precision(config.precision, gang.device)
    precision.set_up_process()
    attention = choose_attention(config.execution, config.model.head_channels, precision, config.model.dropout)
    source = open_source(config, job.dataset, job.dataset_url, gang)
    _stop_if_requested(gang, interruption)
    seed_generators(config.seed)
    model, objective = _build_model(config, source, gang)
    state = TrainingState(model, build_optimizer(model, config.optimizer), precision.scaler())
    if config.parallel.reform and state.scaler.is_enabled():
        raise ConfigurationError(["parallel.reform: true: does not support precision fp16; use bf16, or set false"])
    forward = cast(nn.Module, torch.compile(objective)) if config.compile else objective
    micro_batch_size = _micro_batch_size(config, objective, precision, source, gang, interruption)
    replica = Replica(forward, gang, config.parallel)
    batch = source.train.example(micro_batch_size)
    used = replica.prime(model, batch, precision, lambda: _stop_if_requested(gang, interruption))
    if isinstance(objective, MeanLoss):
        objective.used = used
    seed_random_state(config.seed, gang.rank, step=0)
    subject = _subject(config, source)
    backend = open_backend(job.checkpoints)
    resumed: Resumed | None = None
    if job.joins:
        writer = no_writer(backend)
    else:
        writer, resumed = open_store(
            gang,
            backend,
            state,
            generation=job.generation,
            retention=Retention.from_settings(config.checkpoint),
            seed=config.seed,
            subject=subject,
            verification=config.checkpoint.verification,
        )
    kept = {} if resumed is None else resumed.manifest.extra
    if config.micro_batch_size == "auto":
        # With an unchanged size, gradients are added in the same order, so resumed and uninterrupted runs are
        # bit-identical.
        micro_batch_size = min(micro_batch_size, kept.get("micro_batch_size", micro_batch_size))
    if resumed is None and not job.joins and config.initial_weights is not None:
        title = load_initial_weights_together(gang, config.initial_weights, config.model, model, subject)
        logger.info("the run starts from the weights of %s", title)
    ledger = StepLedger(state.step, str(job.generation)) if config.parallel.reform else None
    share = len(gang.share_of(config.global_batch_size))
    return Run(
        config=config,
        gang=gang,
        interruption=interruption,
        metrics=metrics,
        model=forward,
        uncompiled=objective,
        replica=replica,
        precision=precision,
        attention=attention,
        state=state,
        micro_batch_size=micro_batch_size,
        flops_per_token=_flops_per_token(model, config, source),
        train_batches=source.train,
        validation_batches=source.validation,
        dataset=source.tokens,
        loss_terms_per_sequence=source.loss_terms_per_sequence,
        subject=subject,
        backend=backend,
        writer=writer,
        flags=DeferredFlags(gang, state.scaler.is_enabled(), _max_skipped_steps(config), ledger),
        watch=LossWatch(config.recovery, kept.get("watch")),
        patience=Patience(config.early_stopping, kept.get("patience")),
        generation=job.generation,
        run_directory=job.run_directory,
        resumed_from_step=None if resumed is None else resumed.manifest.step,
        validation=None if resumed is None else resumed.manifest.validation,
        ledger=ledger,
        buffers=None if ledger is None else BufferHistory(state.model),
        compiled_sizes={micro_batch_size, share % micro_batch_size} - {0},
    )


def _max_skipped_steps(config: TrainingConfig) -> int:
    if config.recovery.non_finite == "roll_back":
        return sys.maxsize  # recovery.max_rollbacks limits them instead
    return config.recovery.max_skipped_steps if config.recovery.non_finite == "skip" else 0


def _build_model(config: TrainingConfig, source: Source, gang: Gang) -> tuple[nn.Module, nn.Module]:
    """Return the model to train, and a module that returns its mean loss over a batch."""
    if config.model.function is None:
        if source.tokens is None:
            raise ConfigurationError(
                [
                    f"data.function: {config.data.function} does not return tokens, which a GPT requires; set "
                    "model.function too"
                ]
            )
        recomputes = config.execution.activation_checkpointing
        named = build_named_model(config.model, source.tokens.vocabulary_size, recomputes).to(gang.device)
        return named, named
    about_tokens = {}
    if source.tokens is not None:
        about_tokens = {
            "vocabulary_size": source.tokens.vocabulary_size,
            "sequence_length": config.model.shape.sequence_length,
        }
    model = build_model(config.model.function, config.model.options, **about_tokens).to(gang.device)
    return model, MeanLoss(model, config.model.function)


def _stop_if_requested(gang: Gang, interruption: Interruption) -> None:
    """Raise on all ranks if any rank received a stop request. Before the first step, there is nothing to save."""
    if gang.agree(ControlFlags(stop=float(interruption.wants_stop))).stop:
        reasons = gang.gather(interruption.reason() if interruption.wants_stop else None)
        reason = next((each for each in reasons if each is not None), "stop requested")
        raise StopBeforeStepsError(f"{reason}; stopped before the first step, with nothing to save")


def _micro_batch_size(
    config: TrainingConfig,
    model: nn.Module,
    precision: Precision,
    source: Source,
    gang: Gang,
    interruption: Interruption,
) -> int:
    """Return the micro-batch size. If it is ``auto`` in the config, determine it by trial.

    Trials run without compilation, because the model would be recompiled for each size. A compiled model needs less
    memory, so a size that fits without compilation also fits with compilation.
    """
    share = len(gang.share_of(config.global_batch_size))
    if config.micro_batch_size != "auto":
        return min(config.micro_batch_size, share)
    if gang.device.type != "cuda":
        raise ConfigurationError(["micro_batch_size: auto requires a GPU, but none was found; set a number, such as 8"])

    def passes(sequences: int) -> None:
        with precision.autocast():
            loss = model(*source.train.example(sequences).arguments)
        loss.backward()

    return find_micro_batch(Trial(model, passes, share, lambda: _stop_if_requested(gang, interruption)), gang)


def _flops_per_token(model: nn.Module, config: TrainingConfig, source: Source) -> float | None:
    """Return FLOPs per token. None without tokens: the parameter count does not determine the work per sample."""
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
        seed=config.seed,
        samples=source.samples,
        dataset_probe=source.probe,
    )
