"""The kept host buffer that a rank's state is copied to: shared memory, so that another process can go on with it."""

from __future__ import annotations

import mmap
import os
from typing import Any

import torch
from torch import Tensor

from training.errors import StoreError

_cudart: Any = torch.cuda.cudart  # no annotations


class HostBuffer:
    """Anonymous shared memory, mapped here as bytes; it lives as long as any process has it.

    A memory file has no name that a killed process could leave behind, and no mount that a container could have made
    small, as it often does with /dev/shm. Source: https://man7.org/linux/man-pages/man2/memfd_create.2.html (2025-02).

    Args:
        size_bytes: its length, at least 1.
        pinned: whether to lock it for asynchronous copies from a GPU.

    Attributes:
        descriptor: of the memory file, to be sent to another process.
        memory: the memory.
        bytes: the memory. Shape: [size_bytes] uint8.

    Raises:
        StoreError: there is not so much memory.
    """

    def __init__(self, size_bytes: int, pinned: bool) -> None:
        self.size_bytes = size_bytes
        self.descriptor = os.memfd_create("checkpoint", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.descriptor, size_bytes)
            # Pages are made now, at once, rather than one by one under the first copy.
            self._map = mmap.mmap(self.descriptor, size_bytes, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
        except OSError as error:
            os.close(self.descriptor)
            raise StoreError(
                f"{size_bytes} bytes of shared memory, to hold a copy of the state while it is saved, cannot be had: "
                f"{error.strerror}; use a machine with more memory, or lift the limits on memory and file sizes"
            ) from error
        self.memory = memoryview(self._map)
        self.bytes: Tensor = torch.frombuffer(self._map, dtype=torch.uint8)
        self._pinned = pinned
        if pinned:
            torch.cuda.check_error(_cudart().cudaHostRegister(self.bytes.data_ptr(), size_bytes, 0))

    def close(self) -> None:
        """Give the memory back, here; a process that was sent the descriptor keeps it."""
        if self._pinned:
            torch.cuda.check_error(_cudart().cudaHostUnregister(self.bytes.data_ptr()))
        # The map goes with the last tensor that looks into it.
        del self.bytes, self.memory, self._map
        os.close(self.descriptor)
