"""Validation: each rank computes a share of the loss, and every rank receives the sum."""

from __future__ import annotations

import logging
import math

import torch

from training.checkpoint.manifest import ValidationRecord
from training.errors import ConfigurationError
from training.loop.run import Run
from training.process.distributed import ControlFlags

logger = logging.getLogger(__name__)


def validate(run: Run) -> bool:
    """Compute the validation loss. If the ranks agreed to stop, return False without a result."""
    batches, gang = run.validation_batches, run.gang
    round_sequences = run.micro_batch_size * gang.world_size
    total = torch.zeros((), dtype=torch.float64, device=gang.device)
    targets = 0.0
    run.replica.share_buffers()
    run.model.eval()
    try:
        for first in range(0, batches.sequences, round_sequences):
            share = gang.share_of(min(round_sequences, batches.sequences - first))
            batch = batches.rows(range(first + share.start, first + share.stop)) if len(share) else None
            if batch is not None and batch.targets:
                with torch.no_grad(), run.precision.autocast():
                    total += run.model(*batch.arguments) * batch.targets
                targets += batch.targets
            if gang.agree(ControlFlags(stop=float(run.interruption.wants_stop))).stop:
                return False
    finally:
        run.model.train()
    shares = gang.gather((total.item(), targets))
    if not any(targets for _, targets in shares):
        raise ConfigurationError(["data.function: no sample in the validation batches has a target; check targets_of"])
    loss = sum(loss for loss, _ in shares) / sum(targets for _, targets in shares)
    tokens = run.dataset
    about_tokens = (
        {}
        if tokens is None
        else {
            "bits_per_byte": loss / math.log(2) / tokens.bytes_per_token,
            "unigram_loss": tokens.unigram_entropy_nats,
        }
    )
    run.metrics.write("validation", step=run.state.step, loss=loss, **about_tokens)
    run.patience.note(run.state.step, loss)
    if math.isfinite(loss):
        run.validation = ValidationRecord(step=run.state.step, loss=loss)
    if run.is_main:
        logger.info("step %d: validation loss %.4f", run.state.step, loss)
    return True
