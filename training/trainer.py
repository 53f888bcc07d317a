"""The training loop: step, vote, save, validate, stop. Read it from :func:`train` down.

The ranks never act on what only one of them knows. After each step they vote, and collect the votes of the step before;
so a wish to stop, a failed save or a loss that is not a number becomes known to all at the same step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from training.assembly import Job, Run, assemble
from training.distributed import Votes, join_gang
from training.errors import NonFiniteLossError
from training.execution import GarbageCollection, set_up_process
from training.faults import require_same_parameters, where_it_began
from training.interruption import Interruption
from training.memory import explain_out_of_memory, is_out_of_memory
from training.metric_sinks import open_sinks
from training.metrics import MetricsFile
from training.network_check import require_sound_network
from training.observation_settings import ProfileConfig
from training.optimization import learning_rate
from training.outcome import Ending
from training.profiling import Profiler
from training.rank_report import RankReport
from training.recovery import roll_back
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
    metrics.also_to(open_sinks(job.config.observation, job.run_directory, gang.rank))
    set_up_process(job.config, gang.local_world_size, job.run_directory)
    require_sound_network(job.config.parallel, gang, metrics)
    try:
        run = assemble(job, gang, interruption, metrics)
    except StopBeforeStepsError as stop:
        gang.leave()
        return "stopped", str(stop)
    progress.step, progress.checkpoint_step = run.state.step, run.writer.committed_step
    report_start(run)
    try:
        ending, message = _train_steps(run, progress)
    except Exception as error:
        run.writer.tell_failure(error)
        raise
    progress.checkpoint_step = gang.ask_rank_zero(lambda: run.writer.committed_step)
    write_records(run, [])
    gang.leave()
    return ending, message


def _train_steps(run: Run, progress: Progress) -> tuple[Ending, str]:
    loop = Loop(run, progress)
    # Everyone may have been told to stop while the run was put together.
    stop = bool(run.gang.agree(Votes(stop=float(run.interruption.wants_stop))).stop)
    try:
        while run.state.step < run.config.steps and not stop and not run.patience.is_exhausted:
            stop = loop.advance()
        run.ballot.settle()
    except NonFiniteLossError as error:
        raise error.at(where_it_began(run, error.step)) from error
    except RuntimeError as error:
        if is_out_of_memory(error):
            recomputes = run.config.execution.activation_checkpointing
            raise explain_out_of_memory(error, run.micro_batch_sequences, recomputes) from error
        raise
    finally:
        loop.close()
    if not stop and not run.patience.is_exhausted:
        stop = not validate(run)
    reports = run.ballot.take_reports()
    write_records(run, reports)
    for report in reports:
        run.watch.note(report)  # what is saved now says whether it is in doubt
    return loop.saves.stop() if stop else loop.saves.finish()


class Loop:
    """The steps of a run, one at a time.

    Args:
        run: what is trained.
        progress: kept up to date.

    Attributes:
        run: the same.
        saves: of the run.
    """

    def __init__(self, run: Run, progress: Progress) -> None:
        self.run = run
        self._progress = progress
        self.saves = Saves(run)
        self._garbage = GarbageCollection(run.config.execution.garbage_collection_interval_steps)
        self._profiler = Profiler(
            run.config.observation.profile if run.is_main else ProfileConfig(),
            run.run_directory / "profile",
            run.state.step,
        )
        self._ranks = RankReport(run)
        self._checkpoint_seconds = 0.0
        self._step_ended = time.monotonic()

    def close(self) -> None:
        """Give back what the loop took over for the process."""
        self._garbage.close()
        self._profiler.close()

    def advance(self) -> bool:
        """Take a step, and do what is due after it; True means that all ranks agreed to stop now."""
        run = self.run
        rate = learning_rate(run.state.step, run.config)
        self._profiler.before_step(run.state.step + 1)
        result = take_step(run, rate)
        now = time.monotonic()
        run.ballot.add(run.state.step, result, rate, now - self._step_ended, self._checkpoint_seconds)
        self._profiler.after_step(run.state.step)
        self.saves.note_step(now - self._step_ended)
        self._step_ended = now
        self._progress.step = run.state.step
        self._garbage.after_step(run.state.step)
        return self._between_steps()

    def _between_steps(self) -> bool:
        """Act on the votes of the step before, validate and save when due, and vote again; True means stop now."""
        run = self.run
        agreed = run.ballot.collect()
        self._progress.checkpoint_step = self.saves.note_votes(agreed) or self._progress.checkpoint_step
        reports = run.ballot.take_reports()
        write_records(run, reports)
        wrong = next((report for report in reports if run.watch.note(report)), None)
        if agreed.stop:
            return True
        for report in reports:
            self._ranks.note(report.phase_seconds)
        if wrong is not None:
            self._progress.step = roll_back(run, wrong)
            self.saves.forget()
            return False
        if run.state.step == run.config.steps:
            return False
        check = run.config.recovery.parameter_check_interval_steps
        if check is not None and run.state.step % check == 0:
            require_same_parameters(run)
        if run.state.step % run.config.observation.rank_report_interval_steps == 0:
            self._ranks.report()
        validates = run.state.step % run.config.validation.interval_steps == 0
        if validates:
            if not validate(run):
                return True
            self._step_ended = time.monotonic()  # a step's seconds are those of training
        saving = time.monotonic()
        self.saves.want(agreed, validates)
        self.saves.begin_wanted(agreed)
        self._checkpoint_seconds = time.monotonic() - saving
        run.ballot.post(
            Votes(
                stop=float(run.interruption.wants_stop),
                save=float(run.interruption.wants_save),
                due=float(self.saves.is_due),
                busy=float(run.writer.is_busy),
                failed=float(run.writer.error is not None),
                leaving=float(run.interruption.leaves_soon),
            )
        )
        return False
