"""One optimizer step over the global batch: the inner part of the training loop."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from training.assembly import Run
from training.step_result import StepResult
from training.stopwatch import Laps


def take_step(run: Run, rate: float) -> StepResult:
    """One optimizer step at a learning rate. Gradients that are not finite move no weight, on any rank."""
    config, state, gang = run.config, run.state, run.gang
    laps = run.replica.laps = Laps(gang.device)
    share = gang.share_of(config.global_batch_sequences)
    micro_steps = math.ceil(len(share) / run.micro_batch_sequences)
    loss_terms = run.train_batches.loss_terms(state.position)
    loss_share = torch.zeros((), device=gang.device)
    batches = run.train_batches.micro_batches(state.position, share, run.micro_batch_sequences)
    for number, batch in enumerate(batches, start=1):
        laps.mark("data")
        # Ranks may have different numbers of micro-batches; each exchanges gradients once, at its last.
        with run.replica.exchanging(number == micro_steps):
            with run.precision.autocast():
                loss = run.replica(*batch) / loss_terms
            laps.mark("forward")
            # DDP averages over ranks; times their number, that is the sum over the global batch.
            state.scaler.scale(loss * gang.world_size).backward()  # type: ignore[no-untyped-call]
        loss_share += loss.detach()
        laps.mark("backward")
    state.scaler.unscale_(state.optimizer)
    limit = config.optimizer.gradient_clip
    gradient_norm = torch.nn.utils.clip_grad_norm_(run.model.parameters(), math.inf if limit is None else limit)
    _update(run, rate, gradient_norm)
    state.step += 1
    state.position += config.global_batch_sequences
    laps.mark("optimizer")
    return StepResult(loss_share, gradient_norm, laps)


def _update(run: Run, rate: float, gradient_norm: Tensor) -> None:
    optimizer, scaler = run.state.optimizer, run.state.scaler
    for group in optimizer.param_groups:
        group["lr"] = rate
    if scaler.is_enabled():
        scaler.step(optimizer)
        scaler.update()
    else:
        # The fused kernel reads this on the device and leaves everything as it is; no rank waits to find out.
        optimizer.found_inf = (~torch.isfinite(gradient_norm)).float()  # type: ignore[attr-defined]
        optimizer.grad_scale = None  # type: ignore[attr-defined]
        optimizer.step()
        del optimizer.found_inf, optimizer.grad_scale  # type: ignore[attr-defined]
    optimizer.zero_grad()
