"""Protects a model's state during passes that are not part of training, and finds buffers that DDP cannot exchange."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

EXCHANGED = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool),
    }
)
"""Types that DDP broadcasts with Gloo (tested with torch 2.13) and with NCCL, where torch sends bool as bytes.
Source: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/types.html (2026-11)."""


@contextmanager
def preserved_state(model: nn.Module) -> Iterator[None]:
    """Restore all buffers at the end: their contents, and any tensors that a module has replaced.

    A forward pass changes buffers, such as BatchNorm's running statistics and counter. Extra states are also restored.
    """
    extra = [
        (module, copy.deepcopy(module.get_extra_state()))
        for module in model.modules()
        if type(module).get_extra_state is not nn.Module.get_extra_state
    ]
    kept: list[tuple[nn.Module, str, Tensor | None, Tensor | None]] = [
        (module, name, buffer, None if buffer is None else buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, name, buffer, content in kept:
                module._buffers[name] = buffer
                if buffer is not None and content is not None and is_writable(buffer):
                    buffer.copy_(content)
        for module, state in extra:
            module.set_extra_state(state)


def is_exchanged(tensor: Tensor) -> bool:
    """Return True if DDP can broadcast a tensor."""
    return tensor.dtype in EXCHANGED and is_writable(tensor)


def is_writable(tensor: Tensor) -> bool:
    """Return False for a tensor made by expand. torch rejects writes to it, so no forward pass can change it."""
    if tensor.layout != torch.strided:
        return True
    return all(stride or size < 2 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
