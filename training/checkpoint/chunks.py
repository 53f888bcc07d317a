"""Chunks: bytes in their stored form, and back with their hash checked.

A chunk is named by the BLAKE3 of its plain bytes. Stored, its bytes are grouped by their place in the element
("planes"), and each plane is kept raw or as a zstd frame, whichever pays. Exponents of neighbouring weights are alike
and mantissas are noise: so only the planes that hold exponents are compressed, which is most of the gain for a quarter
of the work. The layout, byte for byte, is in docs/checkpoint-format.md.
"""

from __future__ import annotations

import struct
import threading
from typing import Any, NamedTuple, Union

import numpy as np
import zstandard
from blake3 import blake3

from training.errors import CorruptCheckpointError

CHUNK_BYTES = 8 * 1024 * 1024
"""Size of a full chunk: large enough that a request's latency is small beside its transfer, small enough for several in
flight per process. S3 advises 8 to 16 MB.
Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance-guidelines.html (2025-06)."""
MAGIC = b"TSC2"
_HEADER = struct.Struct("<4sBB2x")
_PLANE = struct.Struct("<BBxxI")
RAW, ZSTD = 0, 1
RAW_HEADER_BYTES = _HEADER.size + _PLANE.size
"""What a chunk that is stored as it is has before its plain bytes."""
PAYS_BELOW = 0.95
"""A plane is compressed when a sample of it shrinks to less than this; else reading it back would cost for nothing."""
_SAMPLE_BYTES = 16 * 1024
_SAMPLES = 3
_PLANE_WIDTHS = {1: (1,), 2: (1, 1), 4: (2, 1, 1), 8: (1,) * 8, 16: (1,) * 16}
"""Bytes of an element that lie together, lowest first. fp32 keeps the low half of its mantissa in one piece: it never
compresses, and two bytes at a time are split and joined faster than single ones."""

Buffer = Union[bytes, bytearray, memoryview]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class ChunkSpan(NamedTuple):
    """A stretch of a rank's flat space that becomes one chunk."""

    offset_bytes: int
    bytes: int
    element_bytes: int


class _Plane(NamedTuple):
    width: int
    codec: int
    stored_bytes: int


class _Tools(threading.local):
    """Contexts of one thread; they may not be shared."""

    def __init__(self) -> None:
        # A small hash table and long matches leave little but the entropy coder, which is what planes gain from.
        parameters = zstandard.ZstdCompressionParameters.from_level(1, hash_log=6, min_match=7)
        self.compressor = zstandard.ZstdCompressor(compression_params=parameters)
        self.decompressor = zstandard.ZstdDecompressor()


_tools = _Tools()


def plain_hash(plain: Buffer) -> str:
    """Name of a chunk: BLAKE3 of its plain bytes, 64 hex digits."""
    return blake3(plain).hexdigest()


def encode(plain: Buffer, element_bytes: int, compress: bool = True) -> bytes:
    """Stored form of a chunk.

    Args:
        plain: its bytes.
        element_bytes: width of the elements that it holds.
        compress: False keeps the bytes as they are, for a place where reading fast matters more than size.
    """
    content = np.frombuffer(plain, dtype=np.uint8)
    widths = _PLANE_WIDTHS.get(element_bytes, (1,)) if compress else (1,)
    if len(widths) == 1 and not (compress and _pays(content)):
        return b"".join([_header(1, [_Plane(1, RAW, content.size)]), plain])
    planes: list[_Plane] = []
    pieces: list[Buffer] = []
    elements = content[: content.size // sum(widths) * sum(widths)]
    for plane in _split(elements, widths):
        compressed = _tools.compressor.compress(plane.data) if _pays(plane) else None
        pieces.append(plane.data if compressed is None else compressed)
        width = widths[len(planes)]
        planes.append(_Plane(width, RAW if compressed is None else ZSTD, len(pieces[-1])))
    header = _header(sum(widths), planes)
    return b"".join([header, *pieces, content[elements.size :].data])


def decode(stored: Buffer, expected_blake3: str, expected_bytes: int) -> bytearray:
    """Undo :func:`encode` and check the result.

    Raises:
        CorruptCheckpointError: it is not what was stored under that name.
    """
    plain = bytearray(expected_bytes)
    decode_into(stored, expected_blake3, memoryview(plain))
    return plain


def decode_into(stored: Buffer, expected_blake3: str, plain: memoryview) -> None:
    """Undo :func:`encode` into ``plain``, whose length is the chunk's, and check the result.

    Raises:
        CorruptCheckpointError: it is not what was stored under that name; ``plain`` may be partly overwritten.
    """
    try:
        _join(memoryview(stored), np.frombuffer(plain, dtype=np.uint8))
    except (struct.error, zstandard.ZstdError, ValueError, MemoryError) as error:
        raise CorruptCheckpointError(f"chunk {expected_blake3} is damaged: {error}") from error
    check(plain, expected_blake3)


def check(plain: Buffer, expected_blake3: str) -> None:
    """Raise CorruptCheckpointError unless these bytes have this hash."""
    if plain_hash(plain) != expected_blake3:
        raise CorruptCheckpointError(f"chunk {expected_blake3} is damaged: its contents have another hash")


def is_raw_header(header: Buffer, plain_bytes: int) -> bool:
    """Whether the first RAW_HEADER_BYTES of a stored chunk say that the plain bytes follow."""
    return bytes(header) == _header(1, [_Plane(1, RAW, plain_bytes)])


def _header(element_bytes: int, planes: list[_Plane]) -> bytes:
    return _HEADER.pack(MAGIC, element_bytes, len(planes)) + b"".join(_PLANE.pack(*plane) for plane in planes)


def _pays(plane: Bytes) -> bool:
    if plane.size <= _SAMPLES * _SAMPLE_BYTES:
        sample = plane
    else:
        starts = np.linspace(0, plane.size - _SAMPLE_BYTES, _SAMPLES).astype(int)
        sample = np.concatenate([plane[start : start + _SAMPLE_BYTES] for start in starts])
    return len(_tools.compressor.compress(sample.data)) < PAYS_BELOW * sample.size


def _split(elements: Bytes, widths: tuple[int, ...]) -> list[Bytes]:
    if len(widths) == 1:
        return [elements]
    if widths == (2, 1, 1):
        halves = elements.view("<u2")
        high = halves[1::2].copy()
        return [halves[0::2].copy().view(np.uint8), high.astype(np.uint8), (high >> 8).astype(np.uint8)]
    return [elements[place :: len(widths)].copy() for place in range(len(widths))]


def _join(stored: memoryview, plain: Bytes) -> None:
    """Put the planes of a stored chunk into place."""
    magic, element_bytes, count = _HEADER.unpack_from(stored)
    if magic != MAGIC:
        raise ValueError("its header is not a chunk's")
    planes = [_Plane(*_PLANE.unpack_from(stored, _HEADER.size + n * _PLANE.size)) for n in range(count)]
    if element_bytes == 0 or sum(plane.width for plane in planes) != element_bytes:
        raise ValueError("its planes do not make up its elements")
    elements = plain.size // element_bytes
    position, place = _HEADER.size + count * _PLANE.size, 0
    if len(stored) - position != sum(plane.stored_bytes for plane in planes) + plain.size % element_bytes:
        raise ValueError("its length is not the one that its header says")
    grid = plain[: elements * element_bytes].reshape(elements, element_bytes)
    for plane in planes:
        content = _plane(stored[position : position + plane.stored_bytes], plane, elements)
        if plane.width == 2 and element_bytes == 4 and place == 0:
            # Two bytes at a time; the same as below, in half the time.
            plain[: elements * 4].view("<u2")[0::2] = content.view("<u2")
        else:
            grid[:, place : place + plane.width] = content.reshape(elements, plane.width)
        position, place = position + plane.stored_bytes, place + plane.width
    plain[elements * element_bytes :] = np.frombuffer(stored[position:], dtype=np.uint8)


def _plane(stored: memoryview, plane: _Plane, elements: int) -> Bytes:
    """Plain bytes of one plane."""
    wanted = elements * plane.width
    if plane.codec == ZSTD:
        if zstandard.frame_content_size(stored) != wanted:
            raise ValueError("the length of a plane is not the manifest's")
        stored = memoryview(_tools.decompressor.decompress(stored))
    elif plane.codec != RAW:
        raise ValueError(f"codec {plane.codec} is unknown")
    if len(stored) != wanted:
        raise ValueError("the length of a plane is not the manifest's")
    return np.frombuffer(stored, dtype=np.uint8)
