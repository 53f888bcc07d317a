"""The validation loss: every rank measures its share, and all learn the same number."""

from __future__ import annotations

import logging
import math

import torch

from training.assembly import Run
from training.checkpoint.manifest import ValidationRecord
from training.distributed import Votes

logger = logging.getLogger(__name__)


def validate(run: Run) -> bool:
    """Measure the validation loss; False, with nothing measured, if a stop was agreed meanwhile."""
    batches, gang = run.validation_batches, run.gang
    round_sequences = run.micro_batch_sequences * gang.world_size
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
    loss = gang.agree(Votes(loss=total.item() / batches.loss_terms())).loss
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
