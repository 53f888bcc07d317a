"""Who writes which tensor, and how a rank's tensors lie in one flat buffer that is cut into chunks.

All of it is a pure function of names, sizes and world size, so that every rank computes the same without talking.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from training.checkpoint.chunks import CHUNK_BYTES, ChunkSpan
from training.checkpoint.manifest import ALIGNMENT_BYTES, TensorRecord
from training.errors import CorruptCheckpointError

SMALL_TENSOR_BYTES = 256 * 1024
"""Tensors below this share a chunk, so that hundreds of biases are not hundreds of requests; larger ones begin a chunk
of their own, so that one that does not change is stored once."""


@dataclass(frozen=True)
class Layout:
    """The flat space of one rank."""

    tensors: dict[str, TensorRecord]
    spans: list[ChunkSpan]

    @property
    def total_bytes(self) -> int:
        """Length of the flat space."""
        return sum(span.bytes for span in self.spans)


def tensor_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def share_out(sizes_bytes: Mapping[str, int], world_size: int) -> dict[str, int]:
    """Give each tensor a rank, the largest first to the one with least: name to rank."""
    loads = [0] * world_size
    owners = {}
    for name in sorted(sizes_bytes, key=lambda name: (-sizes_bytes[name], name)):
        rank = min(range(world_size), key=loads.__getitem__)
        owners[name] = rank
        loads[rank] += sizes_bytes[name]
    return owners


def lay_out(tensors: Mapping[str, Tensor], chunk_bytes: int = CHUNK_BYTES) -> Layout:
    """Place tensors one after another, large ones first, and cut the space into chunks."""
    large = sorted(name for name, tensor in tensors.items() if tensor_bytes(tensor) >= SMALL_TENSOR_BYTES)
    small = sorted(
        (name for name, tensor in tensors.items() if tensor_bytes(tensor) < SMALL_TENSOR_BYTES),
        key=lambda name: (tensors[name].element_size(), name),
    )
    records: dict[str, TensorRecord] = {}
    spans: list[ChunkSpan] = []
    offset = 0
    for name in large:
        records[name] = _record(tensors[name], offset)
        padded = _aligned(records[name].bytes)
        spans += _cut(offset, padded, tensors[name].element_size(), chunk_bytes)
        offset += padded
    # Small tensors of one element size lie together: chunks are compressed by the place of bytes in an element.
    for element_bytes in sorted({tensors[name].element_size() for name in small}):
        first = offset
        for name in (name for name in small if tensors[name].element_size() == element_bytes):
            records[name] = _record(tensors[name], offset)
            offset += _aligned(records[name].bytes)
        spans += _cut(first, offset - first, element_bytes, chunk_bytes)
    return Layout(records, spans)


def bytes_of(tensor: Tensor) -> Tensor:
    """The elements of a contiguous tensor as bytes: a view. Shapes: result [bytes] uint8."""
    # A contiguous tensor of one element or none may have any stride, with which torch refuses the view.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def tensor_at(flat: Tensor, record: TensorRecord) -> Tensor:
    """The tensor that a record places in a flat space: a view of ``flat`` [bytes] uint8."""
    content = flat[record.offset_bytes : record.offset_bytes + record.bytes]
    return content.view(dtype_of(record)).view(record.shape)


def dtype_of(record: TensorRecord) -> torch.dtype:
    """Type of a recorded tensor's elements.

    Raises:
        CorruptCheckpointError: this torch has no such type, or its elements do not make up the recorded bytes.
    """
    dtype = getattr(torch, record.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise CorruptCheckpointError(f"tensors of type {record.dtype!r} are unknown to torch {torch.__version__}")
    if math.prod(record.shape) * dtype.itemsize != record.bytes:
        raise CorruptCheckpointError(f"a tensor of {record.dtype} {record.shape} cannot have {record.bytes} bytes")
    return dtype


def _record(tensor: Tensor, offset: int) -> TensorRecord:
    return TensorRecord(
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=list(tensor.shape),
        offset_bytes=offset,
        bytes=tensor_bytes(tensor),
    )


def _aligned(size: int) -> int:
    return math.ceil(size / ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _cut(offset: int, size: int, element_bytes: int, chunk_bytes: int) -> list[ChunkSpan]:
    starts = range(0, size, chunk_bytes)
    return [ChunkSpan(offset + start, min(chunk_bytes, size - start), element_bytes) for start in starts]
