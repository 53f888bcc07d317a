"""The training loop: step, vote, save, validate, stop. Read it from :func:`train` down.

The ranks never act on what only one of them knows. After each step they vote, and collect the votes of the step before;
so a wish to stop, a failed save or a loss that is not a number becomes known to all at the same step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from training.assembly import Job, Run, assemble, set_up_process
from training.distributed import Votes, join_gang
from training.interruption import Interruption
from training.metrics import MetricsFile
from training.optimization import learning_rate
from training.outcome import Ending
from training.reporting import report_start, write_records
from training.saves import Saves
from training.step import take_step
from training.stopping import StopBeforeStepsError
from training.validation import validate


@dataclass
class Progress:
    """How far the run is, kept up to date for whoever has to report its end.

    Attributes:
        step: optimizer steps done.
        checkpoint_step: step of the newest checkpoint known to be committed.
    """

    step: int | None = None
    checkpoint_step: int | None = None


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
    report_start(run)
    ending, message = _train_steps(run, progress)
    progress.checkpoint_step = gang.ask_rank_zero(lambda: run.writer.committed_step)
    write_records(run)
    gang.leave()
    return ending, message


def _train_steps(run: Run, progress: Progress) -> tuple[Ending, str]:
    saves = Saves(run)
    step_ended = time.monotonic()
    # Everyone may have been told to stop while the run was put together.
    stop = bool(run.gang.agree(Votes(stop=float(run.interruption.wants_stop))).stop)
    while run.state.step < run.config.steps and not stop:
        rate = learning_rate(run.state.step, run.config)
        loss, gradient_norm = take_step(run, rate)
        now = time.monotonic()
        run.ballot.add(run.state.step, loss, gradient_norm, rate, now - step_ended)
        saves.note_step(now - step_ended)
        step_ended = now
        progress.step = run.state.step
        stop, validated = _between_steps(run, saves, progress)
        if validated:
            step_ended = time.monotonic()  # a step's seconds are those of training
    run.ballot.settle()
    if not stop:
        stop = not validate(run)
    write_records(run)
    return saves.stop() if stop else saves.finish()


def _between_steps(run: Run, saves: Saves, progress: Progress) -> tuple[bool, bool]:
    """Act on the votes of the step before, validate and save when due, vote again; return (stop now, validated)."""
    agreed = run.ballot.collect()
    progress.checkpoint_step = saves.note_votes(agreed) or progress.checkpoint_step
    write_records(run)
    if agreed.stop:
        return True, False
    if run.state.step == run.config.steps:
        return False, False
    validates = run.state.step % run.config.validation.interval_steps == 0
    if validates and not validate(run):
        return True, False
    saves.want(agreed, validates)
    saves.begin_wanted(agreed)
    run.ballot.post(
        Votes(
            stop=float(run.interruption.wants_stop),
            save=float(run.interruption.wants_save),
            due=float(saves.is_due),
            busy=float(run.writer.is_busy),
            failed=float(run.writer.error is not None),
        )
    )
    return False, validates
