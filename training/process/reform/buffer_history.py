"""Undoes what the forward passes of an aborted step have done to a model's buffers.

An aborted step moves no weight, but its forward passes have already changed buffers such as BatchNorm's running
statistics. A run that resumes from a checkpoint has not made these passes.
"""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor, nn

from training.process.buffers import is_writable

STEPS = 3
"""Steps whose buffers are kept: on a GPU, the host learns of an aborted step after it has begun the next one."""


class BufferHistory:
    """The contents of a model's buffers before each of its last steps.

    All buffers are copied, because torch does not count every change: the kernels of BatchNorm leave `_version` as it
    is.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._places = [(module, name) for module in model.modules() for name in module._buffers]
        self._kept: deque[tuple[int, list[Tensor | None]]] = deque(maxlen=STEPS)

    def keep(self, step: int) -> None:
        """Keep the buffers as they are after `step` completed steps. Call it before the next step's first pass."""
        if self._places:
            buffers = [module._buffers.get(name) for module, name in self._places]
            self._kept.append((step, [_copy(each) for each in buffers]))

    @torch.no_grad()
    def restore(self, step: int) -> None:
        """If a later step has begun, restore the buffers to their state after `step` completed steps."""
        found = next((copies for kept, copies in reversed(self._kept) if kept == step), None)
        self._kept.clear()
        if found is None:
            return
        for (module, name), content in zip(self._places, found, strict=True):
            buffer = module._buffers.get(name)
            if buffer is None or content is None:
                continue
            if buffer.shape == content.shape and buffer.dtype == content.dtype and is_writable(buffer):
                buffer.copy_(content)
            else:  # a pass has replaced it
                module._buffers[name] = content.clone()


def _copy(buffer: Tensor | None) -> Tensor | None:
    return buffer.detach().clone() if buffer is not None and is_writable(buffer) else None
