"""The training loop: steps, control flags, validations, saves and stops. Start reading at :func:`train`.

A rank never acts on information that the other ranks do not have. After each step, the ranks post their control flags
and collect the sums of the previous step's flags. All ranks therefore handle a stop request, a failed save or a
non-finite loss at the same step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from training.config.observation import ProfileConfig
from training.errors import NonFiniteLossError
from training.loop.build import StopBeforeStepsError, build_run
from training.loop.interruption import Interruption
from training.loop.job import Job
from training.loop.lr_schedule import learning_rate
from training.loop.non_finite import require_same_parameters, where_it_began
from training.loop.reporting import report_start, write_records
from training.loop.rollback import roll_back
from training.loop.run import Run
from training.loop.saves import Saves
from training.loop.step import take_step
from training.loop.validation import validate
from training.observe.metrics import MetricsFile
from training.observe.profiling import Profiler
from training.observe.rank_report import RankReport
from training.observe.sinks import open_sinks
from training.process.distributed import ControlFlags, join_gang
from training.process.execution import set_up_process
from training.process.garbage_collection import GarbageCollection
from training.process.network_check import check_network
from training.process.out_of_memory import explain_out_of_memory, is_out_of_memory
from training.process.outcome import Ending


@dataclass
class Progress:
    """Progress of a run, updated by the loop and reported when the process ends.

    Attributes:
        step: optimizer steps completed.
        checkpoint_step: step of the newest checkpoint known to be committed.
    """

    step: int | None = None
    checkpoint_step: int | None = None


def train(job: Job, interruption: Interruption, metrics: MetricsFile, progress: Progress) -> tuple[Ending, str]:
    """Train until all steps are done or the ranks agree to stop; return the outcome and a message.

    Raises:
        TrainingError: The run failed; the subclass indicates the cause.
    """
    gang = join_gang()
    metrics.add_sinks(open_sinks(job.config.observation, job.run_directory, gang.rank))
    set_up_process(job.config, gang.local_world_size, job.run_directory)
    check_network(job.config.parallel, gang, metrics.write)
    try:
        run = build_run(job, gang, interruption, metrics)
    except StopBeforeStepsError as stop:
        gang.leave()
        return "stopped", str(stop)
    progress.step, progress.checkpoint_step = run.state.step, run.writer.committed_step
    report_start(run)
    try:
        ending, message = _train_steps(run, progress)
    except SystemExit as error:
        run.writer.report_failure(RuntimeError(f"the code exited with {error.code!r}"))
        raise
    except Exception as error:
        run.writer.report_failure(error)
        raise
    progress.checkpoint_step = gang.ask_rank_zero(lambda: run.writer.committed_step)
    write_records(run, [])
    gang.leave()
    return ending, message


def _train_steps(run: Run, progress: Progress) -> tuple[Ending, str]:
    loop = Loop(run, progress)
    # All ranks may have received a stop request while the run was being built.
    stop = bool(run.gang.agree(ControlFlags(stop=float(run.interruption.wants_stop))).stop)
    try:
        while run.state.step < run.config.steps and not stop and not run.patience.is_exhausted:
            stop = loop.advance()
        run.flags.drain()
    except NonFiniteLossError as error:
        raise error.at(where_it_began(run, error.step)) from error
    except RuntimeError as error:
        if is_out_of_memory(error):
            recomputes = run.config.execution.activation_checkpointing
            raise explain_out_of_memory(error, run.micro_batch_size, recomputes) from error
        raise
    finally:
        loop.close()
    if not stop and not run.patience.is_exhausted:
        stop = not validate(run)
    reports = run.flags.take_reports()
    write_records(run, reports, loop.saves.age())
    for report in reports:
        run.watch.note(report)  # the last save records whether the loss is in doubt
    return loop.saves.stop() if stop else loop.saves.finish()


class Loop:
    """Executes a run's steps, one at a time.

    Args:
        run: the run.
        progress: updated after each step.

    Attributes:
        run: the run.
        saves: the run's saves.
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
        self._ranks = RankReport(run.gang, run.metrics)
        self._checkpoint_seconds = 0.0
        self._step_ended = time.monotonic()

    def close(self) -> None:
        """Restore the process-wide settings that the loop changed."""
        self._garbage.close()
        self._profiler.close()

    def advance(self) -> bool:
        """Take a step, then validate and save if due; return True if all ranks have agreed to stop now."""
        run = self.run
        rate = learning_rate(run.state.step, run.config)
        self._profiler.before_step(run.state.step + 1)
        result = take_step(run, rate)
        now = time.monotonic()
        run.flags.add(run.state.step, result, rate, now - self._step_ended, self._checkpoint_seconds)
        self._profiler.after_step(run.state.step)
        self.saves.note_step(now - self._step_ended)
        self._step_ended = now
        self._progress.step = run.state.step
        self._garbage.after_step(run.state.step)
        return self._between_steps()

    def _between_steps(self) -> bool:
        """Act on the previous step's flags, validate and save if due, and post new flags; return True to stop now."""
        run = self.run
        agreed = run.flags.collect()
        self._progress.checkpoint_step = self.saves.note_flags(agreed) or self._progress.checkpoint_step
        reports = run.flags.take_reports()
        write_records(run, reports, self.saves.age())
        bad = next((report for report in reports if run.watch.note(report)), None)
        if agreed.stop:
            return True
        for report in reports:
            self._ranks.note(report.phase_seconds)
        if bad is not None:
            self._progress.step = roll_back(run, bad)
            self.saves.discard()
            return False
        if run.state.step == run.config.steps:
            return False
        check = run.config.recovery.parameter_check_interval_steps
        if check is not None and run.state.step % check == 0:
            require_same_parameters(run)
        if run.state.step % run.config.observation.rank_report_interval_steps == 0:
            self._ranks.report(run.state.step)
        validates = run.state.step % run.config.validation.interval_steps == 0
        if validates:
            if not validate(run):
                return True
            self._step_ended = time.monotonic()  # validation is not counted as step time
        save_started = time.monotonic()
        self.saves.mark_due(agreed, validates)
        self.saves.begin_due(agreed)
        self._checkpoint_seconds = time.monotonic() - save_started
        run.flags.post(
            ControlFlags(
                stop=float(run.interruption.wants_stop),
                save=float(run.interruption.wants_save),
                due=float(self.saves.is_due),
                busy=float(run.writer.is_busy),
                failed=float(run.writer.error is not None),
                leaving=float(run.interruption.leaves_soon),
            )
        )
        return False
