"""The training loop: step, vote, save, validate, stop. Read it from :func:`train` down.

The ranks never act on what only one of them knows. After each step they vote, and collect the votes of the step before;
so a wish to stop, a failed save or a loss that is not a number becomes known to all at the same step.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from training.assembly import Job, Run, assemble, set_up_process
from training.checkpoint.interval import AutomaticInterval
from training.checkpoint.manifest import ValidationRecord
from training.distributed import Votes, join_gang
from training.errors import PeerError, SaveCancelledError
from training.interruption import Interruption
from training.metrics import MetricsFile
from training.optimization import learning_rate
from training.outcome import Ending
from training.stopping import SaveTimes, StopBeforeStepsError, choose_last_save

logger = logging.getLogger(__name__)


SAVE_FAILURE_SECONDS = 10
"""How long the other ranks' shares of a save that failed on one may still take; then they are given up."""


@dataclass
class Progress:
    """How far the run is, kept up to date for whoever has to report its end.

    Attributes:
        step: optimizer steps done.
        checkpoint_step: step of the newest checkpoint known to be committed.
    """

    step: int | None = None
    checkpoint_step: int | None = None


@dataclass
class _Loop:
    """What the loop remembers from step to step."""

    step_ended: float
    wanted_save: str | None = None
    saving_step: int | None = None
    saving_since: float = 0.0
    usual_save_seconds: float | None = None
    automatic: AutomaticInterval | None = None


def train(job: Job, interruption: Interruption, metrics: MetricsFile, progress: Progress) -> tuple[Ending, str]:
    """Train until all steps are done or a stop is agreed; return how it ended and why.

    Raises:
        TrainingError: of the class that says what went wrong.
    """
    gang = join_gang()
    set_up_process(job.config, gang.local_world_size)
    try:
        run = assemble(job, gang, interruption, metrics)
    except StopBeforeStepsError as stop:
        gang.leave()
        return "stopped", str(stop)
    progress.step, progress.checkpoint_step = run.state.step, run.resumed_from_step
    _report_start(run)
    ending, message = _train_steps(run, progress)
    progress.checkpoint_step = gang.ask_rank_zero(lambda: run.writer.committed_step)
    _write_records(run)
    gang.leave()
    return ending, message


def _train_steps(run: Run, progress: Progress) -> tuple[Ending, str]:
    loop = _Loop(step_ended=time.monotonic(), automatic=_automatic_interval(run))
    # Everyone may have been told to stop while the run was put together.
    stop = bool(run.gang.agree(Votes(stop=float(run.interruption.wants_stop))).stop)
    while run.state.step < run.config.steps and not stop:
        rate = learning_rate(run.state.step, run.config)
        loss, gradient_norm = _take_step(run, rate)
        now = time.monotonic()
        run.ballot.add(run.state.step, loss, gradient_norm, rate, now - loop.step_ended)
        if loop.automatic is not None:
            loop.automatic.note_step(now - loop.step_ended, saving=loop.saving_step is not None)
        loop.step_ended = now
        progress.step = run.state.step
        stop = _between_steps(run, loop, progress)
    run.ballot.settle()
    if not stop:
        stop = not _validate(run)
    _write_records(run)
    return _stop(run, loop) if stop else _finish(run)


def _take_step(run: Run, rate: float) -> tuple[Tensor, Tensor]:
    """One optimizer step over the global batch. Returns this rank's share of the loss, and the gradient's norm."""
    config, state, gang = run.config, run.state, run.gang
    share = gang.share_of(config.global_batch_sequences)
    micro_steps = math.ceil(len(share) / config.micro_batch_sequences)
    global_tokens = config.global_batch_sequences * config.model.shape.context
    loss_share = torch.zeros((), device=gang.device)
    batches = run.train_batches.micro_batches(state.position, share, config.micro_batch_sequences)
    for number, (tokens, targets) in enumerate(batches, start=1):
        # Ranks may have different numbers of micro-batches; each exchanges gradients once, at its last.
        exchanges = number == micro_steps
        with contextlib.nullcontext() if exchanges else run.replicated.no_sync():
            with run.precision.autocast():
                loss = run.replicated(tokens, targets) / global_tokens
            # DDP averages over ranks; times their number, that is the sum over the global batch.
            state.scaler.scale(loss * gang.world_size).backward()
        loss_share += loss.detach()
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    state.scaler.unscale_(state.optimizer)
    limit = config.optimizer.gradient_clip
    gradient_norm = torch.nn.utils.clip_grad_norm_(run.model.parameters(), math.inf if limit is None else limit)
    state.scaler.step(state.optimizer)
    state.scaler.update()
    state.optimizer.zero_grad()
    state.step += 1
    state.position += config.global_batch_sequences
    return loss_share, gradient_norm


def _between_steps(run: Run, loop: _Loop, progress: Progress) -> bool:
    """Act on the votes of the step before, save and validate when due, and vote again; True means stop now."""
    agreed = run.ballot.collect()
    if agreed.failed:
        _raise_save_failure(run)
    if loop.saving_step is not None and not agreed.busy:
        progress.checkpoint_step, loop.saving_step = loop.saving_step, None
        loop.usual_save_seconds = time.monotonic() - loop.saving_since
        if loop.automatic is not None:
            loop.automatic.note_commit(run.writer.blocked_seconds, loop.usual_save_seconds)
    _write_records(run)
    if agreed.stop:
        return True
    if run.state.step == run.config.steps:
        return False
    if run.state.step % run.config.validation.interval_steps == 0:
        if not _validate(run):
            return True
        loop.step_ended = time.monotonic()  # a step's seconds are those of training
        if run.config.checkpoint.keep_best:
            loop.wanted_save = loop.wanted_save or "validation"
    if agreed.save:
        loop.wanted_save = "request"
    elif agreed.due or _is_multiple(run.state.step, run.config.checkpoint.interval_steps):
        loop.wanted_save = loop.wanted_save or "interval"
    if loop.wanted_save and not agreed.busy:
        run.ballot.settle()
        _begin_save(run, loop.wanted_save)
        loop.saving_step, loop.wanted_save, loop.saving_since = run.state.step, None, time.monotonic()
        if loop.automatic is not None:
            loop.automatic.note_begin(loop.saving_since)
    run.ballot.post(
        Votes(
            stop=float(run.interruption.wants_stop),
            save=float(run.interruption.wants_save),
            due=float(loop.automatic is not None and loop.automatic.is_due(time.monotonic())),
            busy=float(run.writer.is_busy),
            failed=float(run.writer.error is not None),
        )
    )
    return False


def _automatic_interval(run: Run) -> AutomaticInterval | None:
    """On rank 0 what decides when to save, if the config leaves that open; the vote makes it known to all."""
    checkpoint = run.config.checkpoint
    if checkpoint.interval_steps != "auto" or not run.is_main:
        return None
    return AutomaticInterval(checkpoint.failure_interval_seconds, time.monotonic())


def _is_multiple(step: int, interval_steps: int | Literal["auto"]) -> bool:
    return interval_steps != "auto" and step % interval_steps == 0


def _begin_save(run: Run, reason: str) -> None:
    run.writer.begin(run.state.tensors(), run.own_tensors(), run.manifest(), reason)
    run.interruption.save_taken()


def _raise_save_failure(run: Run) -> None:
    run.writer.wait(time.time() + SAVE_FAILURE_SECONDS)
    error = run.writer.error
    run.gang.raise_together(None if isinstance(error, SaveCancelledError) else error)
    raise PeerError("a rank voted that its save failed, and then had no error; this is a bug")


def _validate(run: Run) -> bool:
    """Measure the validation loss; False, with nothing measured, if a stop was agreed meanwhile."""
    batches, gang = run.validation_batches, run.gang
    round_sequences = run.config.micro_batch_sequences * gang.world_size
    total = torch.zeros((), dtype=torch.float64, device=gang.device)
    run.model.eval()
    try:
        for first in range(0, batches.sequences, round_sequences):
            share = gang.share_of(min(round_sequences, batches.sequences - first))
            if len(share):
                with torch.no_grad(), run.precision.autocast():
                    total += run.model(*batches.rows(range(first + share.start, first + share.stop)))
            if gang.agree(Votes(stop=float(run.interruption.wants_stop))).stop:
                return False
    finally:
        run.model.train()
    tokens = batches.sequences * run.config.model.shape.context
    loss = gang.agree(Votes(loss=total.item() / tokens)).loss
    run.metrics.write(
        "validation",
        step=run.state.step,
        loss=loss,
        bits_per_byte=loss / math.log(2) / run.dataset.bytes_per_token,
        unigram_loss=run.dataset.unigram_entropy_nats,
    )
    if math.isfinite(loss):
        run.validation = ValidationRecord(step=run.state.step, loss=loss)
    if run.is_main:
        logger.info("step %d: validation loss %.4f", run.state.step, loss)
    return True


def _finish(run: Run) -> tuple[Ending, str]:
    _save_and_wait(run, "finished", None)
    return "finished", f"all {run.config.steps} steps are done"


def _stop(run: Run, loop: _Loop) -> tuple[Ending, str]:
    """Save what is not saved yet, before the deadline if there is one."""
    asked, wanted = run.interruption, run.interruption.wants_stop
    reasons = [reason for reason in run.gang.gather(asked.reason() if wanted else None) if reason is not None]
    deadline = _earliest(run, asked.deadline_unix_seconds())
    expected_kill = _earliest(run, asked.expected_kill_unix_seconds())
    message = f"{reasons[0] if reasons else 'asked to stop'}; stopped after step {run.state.step}"
    choice = run.gang.ask_rank_zero(lambda: choose_last_save(_save_times(run, loop, expected_kill)))
    logger.info("%s; last save: %s", message, choice)
    try:
        if choice == "under way":
            _wait_for_save(run, deadline)
            return "stopped", f"{message}; a save of it would not be through in time, one of {loop.saving_step} is"
        _save_and_wait(run, "stop", deadline)
    except SaveCancelledError as error:
        newest = run.gang.ask_rank_zero(lambda: run.writer.committed_step)
        return "stopped", f"{message}, but its save missed the deadline ({error}); the newest checkpoint is of {newest}"
    return "stopped", message


def _earliest(run: Run, unix_seconds: float | None) -> float | None:
    return min((each for each in run.gang.gather(unix_seconds) if each is not None), default=None)


def _save_times(run: Run, loop: _Loop, expected_kill_unix_seconds: float | None) -> SaveTimes:
    under_way = run.writer.is_busy and run.writer.last_started_step != run.state.step
    return SaveTimes(
        now_unix_seconds=time.time(),
        usual_seconds=loop.usual_save_seconds,
        under_way_seconds=time.monotonic() - loop.saving_since if under_way else None,
        expected_kill_unix_seconds=expected_kill_unix_seconds,
    )


def _save_and_wait(run: Run, reason: str, deadline_unix_seconds: float | None) -> None:
    """Save this very step and see it committed; a save of an earlier step that is under way makes room at a stop."""
    writer, gang = run.writer, run.gang
    if reason == "stop" and writer.last_started_step != run.state.step:
        writer.cancel()
    idle = writer.wait(deadline_unix_seconds)
    earlier = None if isinstance(writer.error, SaveCancelledError) else writer.error
    gang.raise_together(earlier if idle else _hanging())
    if gang.ask_rank_zero(lambda: writer.committed_step) == run.state.step:
        return
    _begin_save(run, reason)
    _wait_for_save(run, deadline_unix_seconds)


def _wait_for_save(run: Run, deadline_unix_seconds: float | None) -> None:
    """See the save in flight through; what becomes of it on one rank is raised on all."""
    idle = run.writer.wait(deadline_unix_seconds)
    run.gang.raise_together(run.writer.error if idle else _hanging())


def _hanging() -> SaveCancelledError:
    return SaveCancelledError("a request to the checkpoint store got no answer in time")


def _write_records(run: Run) -> None:
    if not run.is_main:
        return
    tokens = run.config.global_batch_sequences * run.config.model.shape.context
    for report in run.ballot.take_reports():
        if report.step % run.config.log_interval_steps == 0 or report.step == run.config.steps:
            run.metrics.write(
                "step",
                step=report.step,
                loss=report.loss,
                learning_rate=report.learning_rate,
                gradient_norm=report.gradient_norm,
                tokens_per_second=tokens / report.step_seconds,
                step_seconds=report.step_seconds,
            )
    for result in run.writer.take_results():
        run.metrics.write(
            "checkpoint",
            step=result.step,
            seconds=result.seconds,
            blocked_seconds=result.blocked_seconds,
            bytes=result.bytes,
            bytes_written=result.written_bytes,
            bytes_per_second=result.bytes_per_second,
            reason=result.reason,
        )
        logger.info("step %d: checkpoint committed in %.2f s (%s)", result.step, result.seconds, result.reason)


def _report_start(run: Run) -> None:
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    run.metrics.write(
        "start",
        step=run.state.step,
        resumed_from_step=run.resumed_from_step,
        world_size=run.gang.world_size,
        parameters=parameters,
        precision=run.precision.format,
        device=str(run.gang.device),
        steps_total=run.config.steps,
        config_digest=run.config.digest(),
        bytes_per_token=run.dataset.bytes_per_token,
    )
    if run.is_main:
        came_from = "the beginning" if run.resumed_from_step is None else f"checkpoint {run.resumed_from_step}"
        logger.info(
            "training %d parameters on %d processes in %s, from %s to step %d",
            parameters,
            run.gang.world_size,
            run.precision.format,
            came_from,
            run.config.steps,
        )
