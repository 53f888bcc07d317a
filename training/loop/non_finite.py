"""Diagnoses a failed step: finds the model's first non-finite output, and parameters that differ between ranks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from training.checkpoint.state.model import bare_modules, named_tensors
from training.errors import DivergedError
from training.loop.run import Run


def first_non_finite(run: Run, step: int) -> tuple[str | None, float]:
    """Find the first part of the model with a NaN or infinite output for this rank's batches of a step.

    Args:
        run: the run, with the weights from before that step.
        step: number of the step, counted from 1.

    Returns:
        A description of that part (None if there is none), and the number of targets in the batches processed until
        then.
    """
    targets = 0.0
    for name, parameter in named_tensors(run.state.model).parameters.items():
        if not torch.isfinite(parameter).all():
            return f"parameter {name} is not finite", math.inf
    back = (run.state.step - step + 1) * run.config.global_batch_size
    share = run.gang.share_of(run.config.global_batch_size)
    found: list[str] = []
    hooks = [
        module.register_forward_hook(_name_if_not_finite(name or "the model", found))
        for name, module in bare_modules(run.state.model)
        if not list(module.children())
    ]
    try:
        batches = run.train_batches.micro_batches(run.state.position - back, share, run.micro_batch_size)
        for batch in batches:
            targets += batch.targets
            if not batch.targets:
                continue
            with torch.no_grad(), run.precision.autocast():
                loss = run.uncompiled(*batch.arguments)
            if found or not math.isfinite(loss.item()):
                return f"first in the output of {found[0] if found else 'the loss function'}", targets
    finally:
        for hook in hooks:
            hook.remove()
    return None, targets


def _name_if_not_finite(name: str, found: list[str]) -> Any:
    def look(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point() and not torch.isfinite(output).all():
            found.append(name)

    return look


def where_it_began(run: Run, step: int) -> str:
    """Return a message that locates a step's first non-finite value. All ranks call it together."""
    results = run.gang.gather(first_non_finite(run, step))
    if not any(targets for _, targets in results):
        return "no sample in the step's global batch has a target: remove such samples from the dataset"
    found = [f"{place} (rank {rank})" for rank, (place, _) in enumerate(results) if place is not None]
    return found[0] if found else "first in the backward pass, because every output of the forward pass is finite"


def require_same_parameters(run: Run) -> None:
    """Compare all parameters bit by bit across ranks. All ranks call it together.

    Raises:
        DivergedError: Parameters differ; the message lists them with their ranks.
    """
    named = {name: parameter.detach() for name, parameter in named_tensors(run.state.model).parameters.items()}
    hashes = torch.stack([torch.hash_tensor(parameter).view(torch.int64) for parameter in named.values()]).tolist()
    hashes_of_ranks = run.gang.gather(hashes)
    differing = [
        f"{name} on rank {rank}"
        for rank, theirs in enumerate(hashes_of_ranks)
        for name, own, first in zip(named, theirs, hashes_of_ranks[0], strict=True)
        if own != first
    ]
    if differing:
        raise DivergedError(
            f"after step {run.state.step}, parameters differ from rank 0's: {', '.join(differing[:5])}"
            f"{', ...' if len(differing) > 5 else ''}; a GPU or its memory may be faulty: check its error counters, "
            "replace the node, and resume from an earlier checkpoint"
        )
