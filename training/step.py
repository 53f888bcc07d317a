"""One optimizer step over the global batch: the inner part of the training loop."""

from __future__ import annotations

import contextlib
import math

import torch
from torch import Tensor

from training.assembly import Run


def take_step(run: Run, rate: float) -> tuple[Tensor, Tensor]:
    """One optimizer step over the global batch. Returns this rank's share of the loss, and the gradient's norm."""
    config, state, gang = run.config, run.state, run.gang
    share = gang.share_of(config.global_batch_sequences)
    micro_steps = math.ceil(len(share) / config.micro_batch_sequences)
    loss_terms = run.train_batches.loss_terms(state.position)
    loss_share = torch.zeros((), device=gang.device)
    batches = run.train_batches.micro_batches(state.position, share, config.micro_batch_sequences)
    for number, batch in enumerate(batches, start=1):
        # Ranks may have different numbers of micro-batches; each exchanges gradients once, at its last.
        exchanges = number == micro_steps
        with contextlib.nullcontext() if exchanges else run.replicated.no_sync():
            with run.precision.autocast():
                loss = run.replicated(*batch) / loss_terms
            # DDP averages over ranks; times their number, that is the sum over the global batch.
            state.scaler.scale(loss * gang.world_size).backward()
        loss_share += loss.detach()
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    state.scaler.unscale_(state.optimizer)
    limit = config.optimizer.gradient_clip
    gradient_norm = torch.nn.utils.clip_grad_norm_(run.model.parameters(), math.inf if limit is None else limit)
    state.scaler.step(state.optimizer)
    state.scaler.update()
    state.optimizer.zero_grad()
    state.step += 1
    state.position += config.global_batch_sequences
    return loss_share, gradient_norm
