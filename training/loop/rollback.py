"""Rollback: restores a checkpoint from before a bad loss, and skips the data consumed since that checkpoint."""

from __future__ import annotations

import logging

from training.checkpoint.resume import Resumed, resume
from training.errors import DivergedError
from training.loop.early_stopping import Patience
from training.loop.loss_watch import LossWatch
from training.loop.run import Run
from training.loop.step_result import StepReport

logger = logging.getLogger(__name__)


def roll_back(run: Run, report: StepReport) -> int:
    """Restore the state from before the bad loss, and continue with the next unseen batches; return the restored step.

    Raises:
        DivergedError: The run has used all its rollbacks, or there is no earlier checkpoint.
    """
    reason = f"step {report.step}: loss {report.loss}, gradient norm {report.gradient_norm}"
    limit = run.config.recovery.max_rollbacks
    if run.watch.rollbacks >= limit:
        raise DivergedError(
            f"{reason}: the loss diverged again after {limit} rollbacks (recovery.max_rollbacks); lower "
            "optimizer.learning_rate, or check the data"
        )
    rollbacks, next_position = run.watch.rollbacks + 1, run.state.position
    run.flags.discard()
    run.writer.wait()
    run.gang.raise_together(run.writer.error)
    resumed = _resume_from_before(run, run.watch.doubtful_since or report.step)
    if resumed is None:
        raise DivergedError(f"{reason}, and there is no earlier checkpoint; lower checkpoint.interval_steps")
    run.watch = LossWatch(run.config.recovery, resumed.manifest.extra.get("watch"))
    run.watch.rollbacks = rollbacks
    run.patience = Patience(run.config.early_stopping, resumed.manifest.extra.get("patience"))
    run.validation = resumed.manifest.validation
    skipped_sequences = next_position - run.state.position
    run.state.position = next_position
    # The stored checkpoint would continue with batches that this run skips, so it does not match the current state.
    run.writer.committed_step = None
    if run.is_main:
        logger.warning("%s: rolled back to step %d, skipping %d sequences", reason, run.state.step, skipped_sequences)
    run.metrics.write(
        "rollback",
        step=report.step,
        to_step=run.state.step,
        skipped_sequences=skipped_sequences,
        rollbacks=rollbacks,
    )
    return run.state.step


def _resume_from_before(run: Run, bad_step: int) -> Resumed | None:
    """Restore a checkpoint from before the first step with a bad loss; return None if none exists.

    A step's loss depends on the weights from the preceding step, so those weights most likely caused the problem. The
    preceding step's checkpoint is therefore used only if there is no older checkpoint.
    """
    for max_step in (bad_step - 2, bad_step - 1):
        resumed = resume(run.gang, run.backend, run.state, run.subject, run.config.seed, max_step)
        if resumed is not None:
            return resumed
    return None
