"""Assigns tensors to ranks, and lays out a rank's tensors in one flat buffer that is divided into chunks.

Both depend only on names, sizes and world size, so all ranks compute the same result without communicating.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from training.checkpoint.chunks import CHUNK_BYTES, ChunkSpan, Layout, Place
from training.checkpoint.manifest import ALIGNMENT_BYTES, TensorRecord
from training.errors import CorruptCheckpointError

SMALL_TENSOR_BYTES = 256 * 1024
"""Tensors below this size share chunks, so that hundreds of biases do not cause hundreds of requests. A larger tensor
begins a new chunk, so that it is not stored again as long as it is unchanged."""


def tensor_bytes(tensor: Tensor) -> int:
    """Return the size of a tensor's elements in bytes."""
    return tensor.nbytes


def share_out(sizes_bytes: Mapping[str, int], world_size: int) -> dict[str, int]:
    """Assign each tensor, largest first, to the rank with the fewest bytes; return ranks by tensor name."""
    if world_size == 1:
        return dict.fromkeys(sizes_bytes, 0)
    loads = [(0, rank) for rank in range(world_size)]
    owners = {}
    for name in sorted(sizes_bytes, key=lambda name: (-sizes_bytes[name], name)):
        load, owners[name] = loads[0]
        heapq.heapreplace(loads, (load + sizes_bytes[name], owners[name]))
    return owners


def lay_out(tensors: Mapping[str, Tensor], chunk_bytes: int = CHUNK_BYTES) -> Layout:
    """Place tensors one after another, large tensors first, and divide the range into chunks."""
    sizes = {name: tensor.nbytes for name, tensor in tensors.items()}
    large = sorted(name for name, size in sizes.items() if size >= SMALL_TENSOR_BYTES)
    small: defaultdict[int, list[str]] = defaultdict(list)
    for name in sorted(name for name, size in sizes.items() if size < SMALL_TENSOR_BYTES):
        small[tensors[name].element_size()].append(name)
    places: dict[str, Place] = {}
    spans: list[ChunkSpan] = []
    shapes: dict[torch.Size, list[int]] = {}
    offset = 0
    for name in large:
        places[name] = _place(tensors[name], offset, sizes[name], shapes)
        padded = _aligned(sizes[name])
        spans += _divide(offset, padded, tensors[name].element_size(), chunk_bytes)
        offset += padded
    # Group small tensors by element size, because chunks are compressed by the bytes' position in an element.
    for element_bytes in sorted(small):
        first = offset
        for name in small[element_bytes]:
            places[name] = _place(tensors[name], offset, sizes[name], shapes)
            offset += _aligned(sizes[name])
        spans += _divide(first, offset - first, element_bytes, chunk_bytes)
    return Layout(places, spans)


def bytes_of(tensor: Tensor) -> Tensor:
    """Return a view of a contiguous tensor's elements as bytes. Shapes: result [bytes] uint8."""
    # A contiguous tensor with at most one element may have any stride, and torch may then be unable to create the view.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def views_of(flat: Tensor, records: Mapping[str, Place | TensorRecord]) -> dict[str, Tensor]:
    """Return the tensors of the records as views of ``flat``, a uint8 tensor of shape [bytes]."""
    whole = flat[: flat.numel() // ALIGNMENT_BYTES * ALIGNMENT_BYTES]
    typed: dict[str, tuple[Tensor, int]] = {}
    views = {}
    for name, record in records.items():
        if record.dtype not in typed:
            dtype = dtype_of(record)
            typed[record.dtype] = whole.view(dtype), dtype.itemsize
        elements, element_bytes = typed[record.dtype]
        offset, shape = record.offset_bytes // element_bytes, record.shape
        if len(shape) == 1:
            views[name] = elements.as_strided(shape, (1,), offset)
            continue
        stride, strides = 1, []
        for size in reversed(shape):
            strides.append(stride)
            stride *= size
        views[name] = elements.as_strided(shape, strides[::-1], offset)
    return views


def dtype_of(record: Place | TensorRecord) -> torch.dtype:
    """Return the dtype of a recorded tensor.

    Raises:
        CorruptCheckpointError: This torch version does not support the dtype, or the shape does not match the
            number of bytes.
    """
    dtype = getattr(torch, record.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise CorruptCheckpointError(f"torch {torch.__version__} has no tensor type {record.dtype!r}")
    if math.prod(record.shape) * dtype.itemsize != record.bytes:
        raise CorruptCheckpointError(
            f"a {record.dtype} tensor of shape {record.shape} cannot have {record.bytes} bytes"
        )
    return dtype


def _place(tensor: Tensor, offset: int, size: int, shapes: dict[torch.Size, list[int]]) -> Place:
    """Return a tensor's position. Equal shapes share one list object, so each is sent to the writer process only
    once."""
    shape = tensor.shape
    if shape not in shapes:
        shapes[shape] = list(shape)
    return Place(_name(tensor.dtype), shapes[shape], offset, size)


@cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _divide(offset: int, size: int, element_bytes: int, chunk_bytes: int) -> list[ChunkSpan]:
    starts = range(0, size, chunk_bytes)
    return [ChunkSpan(offset + start, min(chunk_bytes, size - start), element_bytes) for start in starts]
