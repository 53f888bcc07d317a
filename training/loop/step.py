"""One optimizer step over the global batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from training.loop.run import Run
from training.loop.step_result import StepResult
from training.process.stopwatch import Laps


def take_step(run: Run, rate: float) -> StepResult:
    """Take one optimizer step. If a gradient is not finite, no rank updates its weights."""
    config, state, gang = run.config, run.state, run.gang
    laps = run.replica.laps = Laps(gang.device)
    if run.buffers is not None and run.is_gated:
        run.buffers.keep(state.step)
    share = gang.share_of(config.global_batch_size)
    micro_steps = math.ceil(len(share) / run.micro_batch_size)
    terms = run.train_batches.loss_terms(state.position)
    targets = 0.0
    loss_share = torch.zeros((), device=gang.device)
    batches = run.train_batches.micro_batches(state.position, share, run.micro_batch_size)
    for number, batch in enumerate(batches, start=1):
        laps.mark("data")
        # Ranks may have different numbers of micro-batches. Each rank exchanges gradients once, after its last batch.
        targets += batch.targets
        if not batch.targets and number < micro_steps:
            continue
        with run.replica.exchanging(number == micro_steps):
            with run.precision.autocast():
                loss = run.replica(batch) * (batch.targets / terms.count)
            laps.mark("forward")
            # DDP averages across ranks. Multiplying by the number of ranks gives the sum over the global batch.
            state.scaler.scale(loss * gang.world_size).backward()  # type: ignore[no-untyped-call]
        loss_share += loss.detach()
        if number == micro_steps:
            run.replica.require_exchange(batch)
        laps.mark("backward")
    if not terms.is_exact:
        loss_share = _correct(run, loss_share, terms.count, targets)
    passed = None
    if run.is_gated:
        loss_share, passed = _pass_gate(run, loss_share)
    state.scaler.unscale_(state.optimizer)
    limit = config.optimizer.max_grad_norm
    gradient_norm = torch.nn.utils.clip_grad_norm_(run.parameters, math.inf if limit is None else limit)
    run.is_updating = True
    _update(run, rate, gradient_norm, passed)
    state.step += 1
    state.position += config.global_batch_size
    run.is_updating = False
    laps.mark("optimizer")
    return StepResult(loss_share, gradient_norm, laps, passed)


def _pass_gate(run: Run, loss_share: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of the global batch, and the number of ranks that took part in the gradient exchange.

    An aborted collective can return without an error, with wrong gradients (NCCL). This all-reduce is the last on the
    same communicator, so its first sum equals the number of ranks only if no collective of the step was aborted.
    """
    one = torch.ones((), dtype=torch.float64, device=run.gang.device)
    numbers = torch.stack([one, loss_share.double()])
    run.gang.pass_gate(numbers)
    return numbers[1], numbers[0]


def _correct(run: Run, loss_share: Tensor, estimate: float, targets: float) -> Tensor:
    """Divide gradients and loss by the number of targets on all ranks instead of the estimate; return the loss.

    Without targets, both become NaN, and the step is skipped or the run fails, as with any non-finite loss.
    """
    total = torch.tensor(targets, dtype=torch.float64, device=run.gang.device)
    run.gang.sum_(total)
    factor = (estimate / total).float()
    gradients = [each.grad for each in run.parameters if each.grad is not None]
    torch._foreach_mul_(gradients, factor)
    return loss_share * factor


def _update(run: Run, rate: float, gradient_norm: Tensor, passed: Tensor | None) -> None:
    optimizer, scaler = run.state.optimizer, run.state.scaler
    for group in optimizer.param_groups:
        group["lr"] = rate
    if scaler.is_enabled():
        scaler.step(optimizer)
        scaler.update()
    else:
        # The fused kernel reads found_inf on the device and skips the update if it is set, so the host does not wait.
        is_refused = ~torch.isfinite(gradient_norm)
        if passed is not None:
            is_refused = is_refused | (passed != run.gang.world_size)
        optimizer.found_inf = is_refused.float()  # type: ignore[attr-defined]
        optimizer.grad_scale = None  # type: ignore[attr-defined]
        optimizer.step()
        del optimizer.found_inf, optimizer.grad_scale  # type: ignore[attr-defined]
    optimizer.zero_grad()
