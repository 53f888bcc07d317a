"""The training loop: steps, control flags, validations, saves and stops. Start reading at :func:`train`.

A rank never acts on information that the other ranks do not have. After each step, the ranks post their control flags
and collect the sums of the previous step's flags. All ranks therefore handle a stop request, a failed save or a
non-finite loss at the same step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from training.config.observation import ProfileConfig
from training.errors import ConfigurationError, GateError, NonFiniteLossError
from training.loop.build import StopBeforeStepsError, build_run
from training.loop.interruption import Interruption
from training.loop.job import Job
from training.loop.lr_schedule import learning_rate
from training.loop.non_finite import require_same_parameters, where_it_began
from training.loop.reforming.change import LeftGangError, Reforming
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
from training.process.outcome import Ending, Outcome
from training.process.reform.connections import is_broken_collective
from training.process.reform.nccl import prepare_changes


@dataclass
class Progress:
    """Progress of a run, updated by the loop and reported when the process ends.

    Attributes:
        step: optimizer steps completed.
        checkpoint_step: step of the newest checkpoint known to be committed.
        generation: the gang's generation.
        rank: this process's rank in it.
    """

    step: int | None = None
    checkpoint_step: int | None = None
    generation: int = 0
    rank: int = 0


def train(job: Job, interruption: Interruption, metrics: MetricsFile, progress: Progress) -> tuple[Ending, str]:
    """Train until all steps are done or the ranks agree to stop; return the outcome and a message.

    Raises:
        TrainingError: The run failed; the subclass indicates the cause.
    """
    if job.config.parallel.reform:
        prepare_changes()
    gang = join_gang(alone=job.joins)
    if job.config.parallel.reform:
        gang.limit_silence()
    metrics.add_sinks(open_sinks(job.config.observation, job.run_directory, gang.rank))
    set_up_process(job.config, gang.local_world_size, job.run_directory)
    check_network(job.config.parallel, gang, metrics.write)
    try:
        run = build_run(job, gang, interruption, metrics)
    except StopBeforeStepsError as stop:
        gang.leave()
        return "stopped", str(stop)
    progress.step, progress.checkpoint_step = run.state.step, run.writer.committed_step
    if not job.joins:
        report_start(run)
    try:
        ending, message = _train_steps(run, progress, joins=job.joins)
    except LeftGangError as left:
        return "stopped", str(left)
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


def _train_steps(run: Run, progress: Progress, *, joins: bool) -> tuple[Ending, str]:
    loop = Loop(run, progress, joins=joins)
    try:
        if joins:
            stop = loop.join()
        else:
            # All ranks may have received a stop request while the run was being built.
            stop = bool(run.gang.agree(ControlFlags(stop=float(run.interruption.wants_stop))).stop)
        while (failure := _advance(loop, stop)) is not None:
            stop = loop.survive(failure)
        stop = loop.stops
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


def _advance(loop: Loop, stop: bool) -> str | None:
    """Train until the run ends or stops; return None, or a broken collective's message if the gang can change.

    The exception's traceback would keep the broken gang alive, so only its message is returned.
    """
    run = loop.run
    try:
        while run.state.step < run.config.steps and not stop and not run.patience.is_exhausted:
            stop = loop.advance()
        run.flags.drain()
    except (RuntimeError, GateError) as error:
        is_broken = isinstance(error, GateError) or (not is_out_of_memory(error) and is_broken_collective(error))
        if loop.reforming is None or not is_broken:
            raise
        return f"{type(error).__name__}: {error}"
    loop.stops = stop
    return None


class Loop:
    """Executes a run's steps, one at a time.

    Args:
        run: the run.
        progress: updated after each step.
        joins: True for a rank that joins a running gang.

    Attributes:
        run: the run.
        saves: the run's saves.
        reforming: changes the gang in place; None if that is not enabled.
        stops: True once all ranks have agreed to stop.
    """

    def __init__(self, run: Run, progress: Progress, *, joins: bool = False) -> None:
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
        self.reforming = None if run.ledger is None else Reforming(run, self.ending, joins=joins)
        self.stops = False
        self._is_between = False
        self._validated_step: int | None = None

    def close(self) -> None:
        """Restore the process-wide settings that the loop changed."""
        self._garbage.close()
        self._profiler.close()
        if self.reforming is not None:
            self.reforming.close()

    @property
    def committed_step(self) -> int | None:
        """Step of the newest checkpoint known to be committed."""
        return self._progress.checkpoint_step

    def carried(self) -> dict[str, Any]:
        """Return this loop's state for the ranks of a re-formed gang."""
        return {
            "is_between": self._is_between,
            "validated_step": self._validated_step,
            "due": self.saves.unfinished,
            "committed_step": self._progress.checkpoint_step,
        }

    def restore(self, carried: dict[str, Any]) -> None:
        """Continue from the state of another rank's loop."""
        self._is_between, self._validated_step = carried["is_between"], carried["validated_step"]
        self._progress.step, self._progress.checkpoint_step = self.run.state.step, carried["committed_step"]
        self.saves.restart(carried["due"])

    def ending(self) -> Outcome:
        """Return this rank's outcome if a change fails: until the change has ended, it is one of the old generation."""
        progress = self._progress
        return Outcome(progress.generation, progress.rank, "not_reformed", progress.step, progress.checkpoint_step)

    def join(self) -> bool:
        """Join the running gang; return True to stop now."""
        if self.reforming is None:
            raise ConfigurationError(["parallel.reform: false: --joins requires true"])
        self.reforming.join(self)
        return self._go_on()

    def survive(self, failure: str) -> bool:
        """Continue with the ranks of the next generation after a collective has failed; return True to stop now."""
        assert self.reforming is not None, "checked by the caller"
        handover = self.reforming.await_handover(failure)
        self.reforming.change(handover, self, "loss")
        return self._go_on()

    def _go_on(self) -> bool:
        """Finish the work between two steps that the gang's change interrupted."""
        self._progress.generation, self._progress.rank = self.run.generation, self.run.gang.rank
        self._step_ended = time.monotonic()
        return self._act(ControlFlags()) if self._is_between else False

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
        self._is_between = True
        agreed = run.flags.collect()
        self._progress.checkpoint_step = self.saves.note_flags(agreed) or self._progress.checkpoint_step
        handover = None if self.reforming is None or agreed.stop else self.reforming.agreed(agreed)
        if self.reforming is not None and handover is not None:
            run.flags.drain()
            run.replica.share_buffers()
            self.reforming.change(handover, self, "planned")
            return self._go_on()
        return self._act(agreed)

    def _act(self, agreed: ControlFlags) -> bool:
        run = self.run
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
            self._is_between = False
            return False
        if run.state.step == run.config.steps:
            return False
        check = run.config.recovery.parameter_check_interval_steps
        if check is not None and run.state.step % check == 0:
            require_same_parameters(run)
        if run.state.step % run.config.observation.rank_report_interval_steps == 0:
            self._ranks.report(run.state.step)
        validates = run.state.step % run.config.validation.interval_steps == 0
        if validates and self._validated_step != run.state.step:
            if not validate(run):
                return True
            self._validated_step = run.state.step
            self._step_ended = time.monotonic()  # validation is not counted as step time
        save_started = time.monotonic()
        self.saves.mark_due(agreed, validates)
        self.saves.begin_due(agreed)
        self._checkpoint_seconds = time.monotonic() - save_started
        ready_for = 0.0 if self.reforming is None else self.reforming.ready_for()
        run.flags.post(
            ControlFlags(
                stop=float(run.interruption.wants_stop),
                save=float(run.interruption.wants_save),
                due=float(self.saves.is_due),
                busy=float(run.writer.is_busy),
                failed=float(run.writer.error is not None),
                leaving=float(run.interruption.leaves_soon),
                next=ready_for,
                next_squared=ready_for * ready_for,
            )
        )
        self._is_between = False
        return False
