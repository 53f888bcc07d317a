"""A run whose loss went wrong goes back to before it, and leaves out the data since."""

from __future__ import annotations

import logging

from training.assembly import Run
from training.ballot import StepReport
from training.checkpoint.resume import Resumed, resume
from training.errors import DivergedError
from training.loss_watch import LossWatch
from training.patience import Patience

logger = logging.getLogger(__name__)


def roll_back(run: Run, report: StepReport) -> int:
    """Go back to before the loss went wrong, and on from there with the batches that come now; return the step.

    Raises:
        DivergedError: the run went back too often, or there is nothing to go back to.
    """
    reason = f"step {report.step}: loss {report.loss}, gradient norm {report.gradient_norm}"
    most = run.config.recovery.most_roll_backs
    if run.watch.roll_backs >= most:
        raise DivergedError(
            f"{reason}: the run went back {most} times already (recovery.most_roll_backs), and the loss goes wrong "
            "again; lower optimizer.learning_rate, or look at the data"
        )
    times, next_position = run.watch.roll_backs + 1, run.state.position
    run.ballot.forget()
    run.writer.wait()
    run.gang.raise_together(run.writer.error)
    resumed = _resume_from_before(run, run.watch.doubtful_since or report.step)
    if resumed is None:
        raise DivergedError(f"{reason}, and there is no checkpoint to go back to; save more often, or earlier")
    run.watch = LossWatch(run.config.recovery, resumed.manifest.extra.get("watch"))
    run.watch.roll_backs = times
    run.patience = Patience(run.config.early_stopping, resumed.manifest.extra.get("patience"))
    run.validation = resumed.manifest.validation
    left_out = next_position - run.state.position
    run.state.position = next_position
    # What lies in the store goes on with batches that this run leaves out: it is not this state.
    run.writer.committed_step = None
    if run.is_main:
        logger.warning("%s: back to step %d, leaving out %d sequences", reason, run.state.step, left_out)
    run.metrics.write(
        "roll_back", step=report.step, to_step=run.state.step, left_out_sequences=left_out, roll_backs=times
    )
    return run.state.step


def _resume_from_before(run: Run, wrong_step: int) -> Resumed | None:
    """Go back to before a step whose loss was wrong.

    Its loss is that of the weights which the step before left. Most likely that step spoilt them, so a checkpoint of it
    is taken only if there is none from before.
    """
    for most_step in (wrong_step - 2, wrong_step - 1):
        resumed = resume(run.gang, run.backend, run.state, run.subject, run.config.seed, most_step)
        if resumed is not None:
            return resumed
    return None
