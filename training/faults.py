"""What went wrong in a step: where a number ceased to be finite, and whether ranks still hold the same parameters."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from training.assembly import Run
from training.checkpoint.state import bare_name
from training.errors import DivergedError


def first_non_finite(run: Run, step: int) -> str | None:
    """Name the first part of the model whose output was NaN or infinite at a step, on this rank's batches of it.

    Args:
        run: whose weights that step did not move.
        step: optimizer steps that would have been done after it.
    """
    for name, parameter in run.state.model.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"parameter {bare_name(name)} itself is not finite"
    back = (run.state.step - step + 1) * run.config.global_batch_sequences
    share = run.gang.share_of(run.config.global_batch_sequences)
    found: list[str] = []
    hooks = [
        module.register_forward_hook(_name_if_not_finite(bare_name(name), found))
        for name, module in run.uncompiled.named_modules()
        if name and not list(module.children())
    ]
    try:
        batches = run.train_batches.micro_batches(run.state.position - back, share, run.micro_batch_sequences)
        for batch in batches:
            with torch.no_grad(), run.precision.autocast():
                loss = run.uncompiled(*batch)
            if found or not math.isfinite(loss.item()):
                return f"it began in the output of {found[0] if found else 'the loss function'}"
    finally:
        for hook in hooks:
            hook.remove()
    return None


def _name_if_not_finite(name: str, found: list[str]) -> Any:
    def look(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point() and not torch.isfinite(output).all():
            found.append(name)

    return look


def where_it_began(run: Run, step: int) -> str:
    """What all ranks find out about a step that was not finite; all ranks call it."""
    places = run.gang.gather(first_non_finite(run, step))
    told = [f"{place} (rank {rank})" for rank, place in enumerate(places) if place is not None]
    return told[0] if told else "every output of the forward pass is finite, so it began in the backward pass"


def require_same_parameters(run: Run) -> None:
    """Compare the bits of all parameters across ranks; all ranks call it.

    Raises:
        DivergedError: naming the parameters and ranks that differ.
    """
    named = {bare_name(name): parameter.detach() for name, parameter in run.state.model.named_parameters()}
    hashes = torch.stack([torch.hash_tensor(parameter).view(torch.int64) for parameter in named.values()]).tolist()
    of_ranks = run.gang.gather(hashes)
    wrong = [
        f"{name} on rank {rank}"
        for rank, theirs in enumerate(of_ranks)
        for name, own, first in zip(named, theirs, of_ranks[0], strict=True)
        if own != first
    ]
    if wrong:
        raise DivergedError(
            f"after step {run.state.step} ranks hold other parameters than rank 0: {', '.join(wrong[:5])}"
            f"{', ...' if len(wrong) > 5 else ''}; a GPU or its memory may be faulty: look at its error counts, "
            "replace the node, and resume from a checkpoint of before"
        )
