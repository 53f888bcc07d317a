"""Copies token rows from the host to the device while the device computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Rows = npt.NDArray[np.int64]
BUFFERS = 2
"""Number of pinned buffers: one is filled while the other is copied."""


@dataclass
class PendingRows:
    """Rows that are on the device, or are being copied to it."""

    _tensor: Tensor
    _copied: torch.cuda.Event | None

    def receive(self) -> Tensor:
        """Return the rows, for use on the current stream. Does not block the host."""
        if self._copied is not None:
            stream = torch.cuda.current_stream(self._tensor.device)
            stream.wait_event(self._copied)
            self._tensor.record_stream(stream)
        return self._tensor


class HostToDeviceCopier:
    """Assembles rows in host memory and copies them to the device.

    For a GPU, rows are assembled in alternating pinned buffers and copied on a separate stream while the device
    computes. For a CPU, they are assembled in the memory that the model reads.

    Args:
        device: device that receives the rows.

    Attributes:
        is_asynchronous: True if copies overlap with computation.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.is_asynchronous = device.type == "cuda"
        if self.is_asynchronous:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._buffers: list[Tensor] = [torch.empty(0, dtype=torch.int64)] * BUFFERS
            self._copied: list[torch.cuda.Event | None] = [None] * BUFFERS
            self._current = 0

    def start(self, count: int, length: int, fill: Callable[[Rows], None]) -> PendingRows:
        """Call ``fill`` to write rows [count, length], and start copying them."""
        if not self.is_asynchronous:
            rows = np.empty((count, length), dtype=np.int64)
            fill(rows)
            return PendingRows(torch.from_numpy(rows), None)
        buffer = self._next_buffer(count * length)[: count * length].view(count, length)
        fill(buffer.numpy())
        with torch.cuda.stream(self._stream):
            tensor = buffer.to(self._device, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._stream)
        self._copied[self._current] = copied
        return PendingRows(tensor, copied)

    def _next_buffer(self, size: int) -> Tensor:
        """Wait until the least recently used buffer has been copied; return that buffer."""
        self._current = (self._current + 1) % BUFFERS
        copied = self._copied[self._current]
        if copied is not None:
            copied.synchronize()
        if self._buffers[self._current].numel() < size:
            self._buffers[self._current] = torch.empty(size, dtype=torch.int64, pin_memory=True)
        return self._buffers[self._current]
