"""Decides when the loop saves. Tracks pending saves, the save in flight, and the run's last save."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass

from training.checkpoint.interval import AutomaticInterval
from training.checkpoint.resume import own_tensors
from training.errors import PeerError, SaveCancelledError
from training.loop.last_save import SaveTimes, choose_last_save, last_save_seconds
from training.loop.run import Run
from training.process.distributed import ControlFlags
from training.process.outcome import Ending

logger = logging.getLogger(__name__)

OLD_INTERVALS = 3
"""Age of the newest durable checkpoint, in checkpoint intervals, at which the run logs a warning. The stacks' alarm
CheckpointAge has the same threshold."""
FAILURE_SECONDS = 10
"""Time for the other ranks to finish their shares of a failed save, before these shares are abandoned."""


@dataclass(frozen=True)
class CheckpointAge:
    """The age of the newest durable checkpoint: the work that a failure without notice would lose.

    Attributes:
        seconds: time since that checkpoint's state was copied; before the first save, time since the start.
        intervals: the same age in checkpoint intervals. Above 1, a save that is due has not been committed.
    """

    seconds: float
    intervals: float


class Saves:
    """Begins a save when one is due and none is in flight. All ranks make the same decisions.

    Attributes:
        saving_step: step of the save in flight; None if there is none.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        # Save a checkpoint that exists only in the local tier to the durable store after the first step.
        is_local_only = run.resumed_from_step is not None and run.writer.committed_step is None
        self._due: str | None = "resume" if is_local_only else None
        self.saving_step: int | None = None
        self._saving_since = 0.0
        self._usual_seconds: float | None = None
        self._step_seconds = 0.0
        self._last_begin = self._durable_seconds = time.monotonic()
        self._durable_step = run.state.step
        self._has_warned = False
        self._interval_seconds = math.inf
        self._automatic: AutomaticInterval | None = None
        self._choose_interval()

    def _choose_interval(self) -> None:
        """Only rank 0 decides when enough time has passed for a save. The control flags share the decision."""
        run, checkpoint = self._run, self._run.config.checkpoint
        has_minutes = checkpoint.interval_minutes is not None and run.is_main
        self._interval_seconds = (checkpoint.interval_minutes or 0) * 60 if has_minutes else math.inf
        if checkpoint.interval_steps != "auto" or not run.is_main:
            self._automatic = None
        elif self._automatic is None:
            self._automatic = AutomaticInterval(checkpoint.failure_interval_seconds, time.monotonic())

    @property
    def unfinished(self) -> str | None:
        """The reason for the save that is due; a save that is in flight while the gang changes becomes due again."""
        return self._due or (None if self.saving_step is None else "reform")

    def restart(self, due: str | None) -> None:
        """Continue after the gang has been re-formed."""
        self._due, self.saving_step = due, None
        self._durable_step = min(self._durable_step, self._run.state.step)
        self._choose_interval()

    def note_step(self, seconds: float) -> None:
        """Record the duration of a step."""
        self._step_seconds = seconds
        if self._automatic is not None:
            self._automatic.note_step(seconds, saving=self.saving_step is not None)

    def note_flags(self, agreed: ControlFlags) -> int | None:
        """Process the previous step's flags; return the step of a save that is newly known to be committed.

        Raises:
            StoreError: A save failed. Raised on all ranks.
        """
        if agreed.failed:
            self._raise_failure()
        self._warn_if_old()
        if self.saving_step is None or agreed.busy:
            return None
        committed, self.saving_step = self.saving_step, None
        self._durable_step, self._durable_seconds, self._has_warned = committed, self._saving_since, False
        self._usual_seconds = time.monotonic() - self._saving_since
        self._run.interruption.last_save_seconds = last_save_seconds(self._usual_seconds, self._step_seconds)
        if self._automatic is not None:
            self._automatic.note_commit(self._run.writer.blocked_seconds, self._usual_seconds)
        return committed

    def mark_due(self, agreed: ControlFlags, validated: bool) -> None:
        """Mark a save as due if this step requires one. It begins as soon as no other save is in flight."""
        step, checkpoint = self._run.state.step, self._run.config.checkpoint
        if validated and checkpoint.keep_best:
            self._due = self._due or "validation"
        if agreed.save:
            self._due = "request"
        elif agreed.due or _is_multiple(step, self._run.config.checkpoint_interval_steps):
            self._due = self._due or "interval"

    def discard(self) -> None:
        """After a rollback, discard the save that is due and any finished save not yet known to be committed."""
        self._due, self.saving_step = None, None
        self._durable_step = min(self._durable_step, self._run.state.step)

    def begin_due(self, agreed: ControlFlags) -> None:
        """Begin the save that is due, unless another is in flight. First collect the results of all steps so far.

        While the loss is in doubt, the save is postponed, because the run may have to roll back from that state.
        Shortly before a stop, no save begins, because it would not finish before the last save must begin.
        """
        if self._due is None or agreed.busy or agreed.leaving:
            return
        self._run.flags.drain()
        if self._run.watch.doubts(self._run.flags.reports):
            return
        _begin(self._run, self._due)
        self.saving_step, self._due, self._saving_since = self._run.state.step, None, time.monotonic()
        self._last_begin = self._saving_since
        if self._automatic is not None:
            self._automatic.note_begin(self._saving_since)

    @property
    def is_due(self) -> bool:
        """True on rank 0 if enough time has passed for the next save to be due."""
        now = time.monotonic()
        is_due = now - self._last_begin >= self._interval_seconds
        return is_due or (self._automatic is not None and self._automatic.is_due(now))

    def age(self) -> CheckpointAge:
        """Return the age of the newest durable checkpoint, on rank 0."""
        seconds = time.monotonic() - self._durable_seconds
        intervals = seconds / self._interval_seconds
        if self._automatic is not None:
            intervals = max(intervals, seconds / self._automatic.interval_seconds())
        steps = self._run.config.checkpoint_interval_steps
        if steps is not None:
            intervals = max(intervals, (self._run.state.step - self._durable_step) / steps)
        return CheckpointAge(seconds, intervals)

    def _warn_if_old(self) -> None:
        """Warn once, until the next commit, if saves are late."""
        if not self._run.is_main or self._has_warned or (age := self.age()).intervals < OLD_INTERVALS:
            return
        self._has_warned = True
        state = f"the save for step {self.saving_step} is in flight" if self.saving_step else "no save is in flight"
        logger.warning(
            "step %d: the newest durable checkpoint is %.0f s old, %.1f times the checkpoint interval; %s; a failure "
            "without notice would lose that work: raise checkpoint.interval_steps, or use a faster store",
            self._run.state.step,
            age.seconds,
            age.intervals,
            state,
        )

    def finish(self) -> tuple[Ending, str]:
        """Save the last step and wait for the commit."""
        run = self._run
        self._save_and_wait("finished", None)
        if run.state.step < run.config.steps:
            return "finished", f"{run.patience.reason}; finished at step {run.state.step} of {run.config.steps}"
        return "finished", f"all {run.config.steps} steps are done"

    def stop(self) -> tuple[Ending, str]:
        """Before the deadline, if any, save the current step or finish the save in flight."""
        run = self._run
        interruption = run.interruption
        reason = interruption.reason() if interruption.wants_stop else None
        reasons = [each for each in run.gang.gather(reason) if each is not None]
        # Share the remaining seconds, not a point in time, because the nodes' clocks differ and may be changed.
        remaining_seconds = _smallest(run, interruption.seconds_to_deadline())
        deadline = None if remaining_seconds is None else time.monotonic() + remaining_seconds
        seconds_to_kill = _smallest(run, interruption.seconds_to_expected_kill())
        message = f"{reasons[0] if reasons else 'stop requested'}; stopped after step {run.state.step}"
        choice = run.gang.ask_rank_zero(lambda: choose_last_save(self._times(seconds_to_kill)))
        logger.info("%s; last save: %s", message, choice)
        try:
            if choice == "in flight":
                self._wait_for_save(deadline)
                return (
                    "stopped",
                    f"{message}; saving it would miss the deadline, so the save for step {self.saving_step} was kept",
                )
            self._save_and_wait("stop", deadline)
        except SaveCancelledError as error:
            newest = run.gang.ask_rank_zero(lambda: run.writer.committed_step)
            return (
                "stopped",
                f"{message}, but its save missed the deadline ({error}); the newest checkpoint is from step {newest}",
            )
        return "stopped", message

    def _times(self, remaining_seconds: float | None) -> SaveTimes:
        writer = self._run.writer
        in_flight = writer.is_busy and writer.last_started_step != self._run.state.step
        return SaveTimes(
            usual_seconds=self._usual_seconds,
            in_flight_seconds=time.monotonic() - self._saving_since if in_flight else None,
            remaining_seconds=remaining_seconds,
        )

    def _save_and_wait(self, reason: str, deadline: float | None) -> None:
        """Save the current step and wait for its commit. Before a stop, cancel an earlier step's save."""
        run, writer = self._run, self._run.writer
        if reason == "stop" and writer.last_started_step != run.state.step:
            writer.cancel()
        idle = writer.wait(deadline)
        earlier = None if isinstance(writer.error, SaveCancelledError) else writer.error
        run.gang.raise_together(earlier if idle else _timed_out())
        if run.gang.ask_rank_zero(lambda: writer.committed_step) == run.state.step:
            return
        _begin(run, reason)
        self._wait_for_save(deadline)

    def _wait_for_save(self, deadline: float | None) -> None:
        """Wait for the save in flight. A failure on one rank is raised on all ranks."""
        idle = self._run.writer.wait(deadline)
        self._run.gang.raise_together(self._run.writer.error if idle else _timed_out())

    def _raise_failure(self) -> None:
        writer = self._run.writer
        writer.wait(time.monotonic() + FAILURE_SECONDS)
        self._run.gang.raise_together(None if isinstance(writer.error, SaveCancelledError) else writer.error)
        raise PeerError("a rank flagged a failed save, but no rank has an error; this is a bug")


def _begin(run: Run, reason: str) -> None:
    # The deadline applies only to this node; other nodes may continue.
    node_leaves = reason == "stop" and run.interruption.seconds_to_deadline() is not None
    captured = run.state.capture()
    own = own_tensors(run.gang, captured)
    run.writer.begin(captured.shared, own, run.manifest(captured), reason, node_leaves)
    run.interruption.save_taken()


def _is_multiple(step: int, interval_steps: int | None) -> bool:
    return interval_steps is not None and step % interval_steps == 0


def _smallest(run: Run, seconds: float | None) -> float | None:
    return min((each for each in run.gang.gather(seconds) if each is not None), default=None)


def _timed_out() -> SaveCancelledError:
    return SaveCancelledError("a request to the checkpoint store timed out")
