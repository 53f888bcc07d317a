"""The saves of a run as its loop sees them: which is wanted, which is in flight, and the last one before the end."""

from __future__ import annotations

import logging
import time
from typing import Literal

from training.assembly import Run
from training.checkpoint.interval import AutomaticInterval
from training.distributed import Votes
from training.errors import PeerError, SaveCancelledError
from training.outcome import Ending
from training.stopping import SaveTimes, choose_last_save, last_save_seconds

logger = logging.getLogger(__name__)

FAILURE_SECONDS = 10
"""How long the other ranks' shares of a save that failed on one may still take; then they are given up."""


class Saves:
    """Begins saves when they are due and nothing is in flight; the same decisions on all ranks.

    Attributes:
        saving_step: of the save in flight; None if there is none.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        # What this gang's nodes alone have is saved for good after the first step.
        is_near_only = run.resumed_from_step is not None and run.writer.committed_step is None
        self._wanted: str | None = "resume" if is_near_only else None
        self.saving_step: int | None = None
        self._saving_since = 0.0
        self._usual_seconds: float | None = None
        self._step_seconds = 0.0
        checkpoint = run.config.checkpoint
        # Only rank 0 measures when to save, if the config leaves that open; the vote makes it known to all.
        decides = checkpoint.interval_steps == "auto" and run.is_main
        self._automatic = AutomaticInterval(checkpoint.failure_interval_seconds, time.monotonic()) if decides else None

    def note_step(self, seconds: float) -> None:
        """Take in how long a step took."""
        self._step_seconds = seconds
        if self._automatic is not None:
            self._automatic.note_step(seconds, saving=self.saving_step is not None)

    def note_votes(self, agreed: Votes) -> int | None:
        """Learn from the votes of the step before; return the step of a save that is now known to be committed.

        Raises:
            StoreError: a save failed; on all ranks alike.
        """
        if agreed.failed:
            self._raise_failure()
        if self.saving_step is None or agreed.busy:
            return None
        committed, self.saving_step = self.saving_step, None
        self._usual_seconds = time.monotonic() - self._saving_since
        self._run.interruption.last_save_seconds = last_save_seconds(self._usual_seconds, self._step_seconds)
        if self._automatic is not None:
            self._automatic.note_commit(self._run.writer.blocked_seconds, self._usual_seconds)
        return committed

    def want(self, agreed: Votes, validated: bool) -> None:
        """Note the save that is wanted after this step, if one is; it waits until none is in flight."""
        step, checkpoint = self._run.state.step, self._run.config.checkpoint
        if validated and checkpoint.keep_best:
            self._wanted = self._wanted or "validation"
        if agreed.save:
            self._wanted = "request"
        elif agreed.due or _is_multiple(step, checkpoint.interval_steps):
            self._wanted = self._wanted or "interval"

    def forget(self) -> None:
        """Leave out what was wanted and in flight: the run went back, after the save in flight was through."""
        self._wanted, self.saving_step = None, None

    def begin_wanted(self, agreed: Votes) -> None:
        """Begin the wanted save, if there is one and none is in flight, once every step is known to be sound.

        While the loss is in doubt it waits: what would be saved may be what the run goes back from. Shortly before a
        stop none is begun: it would not be through when the last one must begin.
        """
        if self._wanted is None or agreed.busy or agreed.leaving:
            return
        self._run.ballot.settle()
        if self._run.watch.doubts(self._run.ballot.reports):
            return
        _begin(self._run, self._wanted)
        self.saving_step, self._wanted, self._saving_since = self._run.state.step, None, time.monotonic()
        if self._automatic is not None:
            self._automatic.note_begin(self._saving_since)

    @property
    def is_due(self) -> bool:
        """Whether rank 0, where that is left to it, finds that it is time for a save."""
        return self._automatic is not None and self._automatic.is_due(time.monotonic())

    def finish(self) -> tuple[Ending, str]:
        """Save the last step and see it committed."""
        run = self._run
        self._save_and_wait("finished", None)
        if run.state.step < run.config.steps:
            return "finished", f"{run.patience.reason}; finished at step {run.state.step} of {run.config.steps}"
        return "finished", f"all {run.config.steps} steps are done"

    def stop(self) -> tuple[Ending, str]:
        """Save what is not saved yet, before the deadline if there is one."""
        run = self._run
        asked, wanted = run.interruption, run.interruption.wants_stop
        reasons = [reason for reason in run.gang.gather(asked.reason() if wanted else None) if reason is not None]
        # The time that is left, not a moment: machines' clocks differ, and a clock may be set.
        left_seconds = _least(run, asked.seconds_to_deadline())
        deadline = None if left_seconds is None else time.monotonic() + left_seconds
        left_to_kill_seconds = _least(run, asked.seconds_to_expected_kill())
        message = f"{reasons[0] if reasons else 'asked to stop'}; stopped after step {run.state.step}"
        choice = run.gang.ask_rank_zero(lambda: choose_last_save(self._times(left_to_kill_seconds)))
        logger.info("%s; last save: %s", message, choice)
        try:
            if choice == "under way":
                self._wait_for_save(deadline)
                return (
                    "stopped",
                    f"{message}; a save of it would not be through in time, one of {self.saving_step} is",
                )
            self._save_and_wait("stop", deadline)
        except SaveCancelledError as error:
            newest = run.gang.ask_rank_zero(lambda: run.writer.committed_step)
            return (
                "stopped",
                f"{message}, but its save missed the deadline ({error}); the newest checkpoint is of {newest}",
            )
        return "stopped", message

    def _times(self, left_seconds: float | None) -> SaveTimes:
        writer = self._run.writer
        under_way = writer.is_busy and writer.last_started_step != self._run.state.step
        return SaveTimes(
            usual_seconds=self._usual_seconds,
            under_way_seconds=time.monotonic() - self._saving_since if under_way else None,
            left_seconds=left_seconds,
        )

    def _save_and_wait(self, reason: str, deadline: float | None) -> None:
        """Save this very step and see it committed; a save of an earlier step makes room at a stop."""
        run, writer = self._run, self._run.writer
        if reason == "stop" and writer.last_started_step != run.state.step:
            writer.cancel()
        idle = writer.wait(deadline)
        earlier = None if isinstance(writer.error, SaveCancelledError) else writer.error
        run.gang.raise_together(earlier if idle else _hanging())
        if run.gang.ask_rank_zero(lambda: writer.committed_step) == run.state.step:
            return
        _begin(run, reason)
        self._wait_for_save(deadline)

    def _wait_for_save(self, deadline: float | None) -> None:
        """See the save in flight through; what becomes of it on one rank is raised on all."""
        idle = self._run.writer.wait(deadline)
        self._run.gang.raise_together(self._run.writer.error if idle else _hanging())

    def _raise_failure(self) -> None:
        writer = self._run.writer
        writer.wait(time.monotonic() + FAILURE_SECONDS)
        self._run.gang.raise_together(None if isinstance(writer.error, SaveCancelledError) else writer.error)
        raise PeerError("a rank voted that its save failed, and then had no error; this is a bug")


def _begin(run: Run, reason: str) -> None:
    # A deadline is that of this node; others may stay.
    node_leaves = reason == "stop" and run.interruption.seconds_to_deadline() is not None
    run.writer.begin(run.state.tensors(), run.own_tensors(), run.manifest(), reason, node_leaves)
    run.interruption.save_taken()


def _is_multiple(step: int, interval_steps: int | Literal["auto"]) -> bool:
    return interval_steps != "auto" and step % interval_steps == 0


def _least(run: Run, seconds: float | None) -> float | None:
    return min((each for each in run.gang.gather(seconds) if each is not None), default=None)


def _hanging() -> SaveCancelledError:
    return SaveCancelledError("a request to the checkpoint store got no answer in time")
