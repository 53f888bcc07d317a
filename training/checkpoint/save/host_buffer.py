"""The host buffer for a copy of a rank's state, in shared memory mapped by both the trainer and the writer process."""

from __future__ import annotations

import mmap
import os
from typing import Any

import torch
from torch import Tensor

from training.errors import StoreError

_cudart: Any = torch.cuda.cudart  # not annotated by torch


class HostBuffer:
    """Anonymous shared memory, mapped as bytes. It exists as long as any process maps it.

    A memory file has no name, so a killed process cannot leave it behind. It does not depend on a mount such as
    /dev/shm, which is often small in containers.
    Source: https://man7.org/linux/man-pages/man2/memfd_create.2.html (2025-02).

    Args:
        size_bytes: buffer length, at least 1.
        pinned: True to lock the memory for asynchronous copies from a GPU.

    Attributes:
        descriptor: the memory file's descriptor, to pass to another process.
        memory: the mapped memory.
        bytes: the mapped memory as a tensor. Shape: [size_bytes] uint8.

    Raises:
        StoreError: The allocation failed.
    """

    def __init__(self, size_bytes: int, pinned: bool) -> None:
        self.size_bytes = size_bytes
        self.descriptor = os.memfd_create("checkpoint", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.descriptor, size_bytes)
            # Allocate all pages now instead of one by one during the first copy.
            self._map = mmap.mmap(self.descriptor, size_bytes, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
        except OSError as error:
            os.close(self.descriptor)
            raise StoreError(
                f"cannot allocate {size_bytes} bytes of shared memory for the checkpoint buffer: {error.strerror}; use "
                "a machine with more memory, or raise the limits on memory and file sizes"
            ) from error
        self.memory = memoryview(self._map)
        self.bytes: Tensor = torch.frombuffer(self._map, dtype=torch.uint8)
        self._pinned = pinned
        if pinned:
            torch.cuda.check_error(_cudart().cudaHostRegister(self.bytes.data_ptr(), size_bytes, 0))

    def close(self) -> None:
        """Unmap the memory in this process. A process that received the descriptor keeps its mapping."""
        if self._pinned:
            torch.cuda.check_error(_cudart().cudaHostUnregister(self.bytes.data_ptr()))
        # The mapping is freed together with the last tensor that refers to it.
        del self.bytes, self.memory, self._map
        os.close(self.descriptor)
