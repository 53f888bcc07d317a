"""The way of token rows from the host to the device, beside the device's work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Rows = npt.NDArray[np.int64]
BUFFERS = 2
"""Pinned buffers: one is filled while the other is copied from."""


@dataclass
class Sent:
    """Rows that are on the device, or on their way there."""

    _tensor: Tensor
    _arrived: torch.cuda.Event | None

    def receive(self) -> Tensor:
        """The rows, for work that is put on the current stream from now on; the host does not wait for them."""
        if self._arrived is not None:
            stream = torch.cuda.current_stream(self._tensor.device)
            stream.wait_event(self._arrived)
            self._tensor.record_stream(stream)
        return self._tensor


class Lane:
    """Assembles rows where they need not be copied again on the host, and sends them off.

    On a GPU that is in pinned memory, taken in turn, from which a stream of its own copies while the device computes.
    On a CPU it is in the very memory that the model reads.

    Args:
        device: where rows go.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.is_ahead = device.type == "cuda"
        if self.is_ahead:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._buffers: list[Tensor] = [torch.empty(0, dtype=torch.int64)] * BUFFERS
            self._copied: list[torch.cuda.Event | None] = [None] * BUFFERS
            self._turn = 0

    def send(self, count: int, length: int, fill: Callable[[Rows], None]) -> Sent:
        """Let ``fill`` write rows [count, length], and begin to copy them."""
        if not self.is_ahead:
            rows = np.empty((count, length), dtype=np.int64)
            fill(rows)
            return Sent(torch.from_numpy(rows), None)
        buffer = self._next_buffer(count * length)[: count * length].view(count, length)
        fill(buffer.numpy())
        with torch.cuda.stream(self._stream):
            tensor = buffer.to(self._device, non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record(self._stream)
        self._copied[self._turn] = arrived
        return Sent(tensor, arrived)

    def _next_buffer(self, size: int) -> Tensor:
        """The buffer that was used longest ago, once nothing is copied from it any more."""
        self._turn = (self._turn + 1) % BUFFERS
        copied = self._copied[self._turn]
        if copied is not None:
            copied.synchronize()
        if self._buffers[self._turn].numel() < size:
            self._buffers[self._turn] = torch.empty(size, dtype=torch.int64, pin_memory=True)
        return self._buffers[self._turn]
