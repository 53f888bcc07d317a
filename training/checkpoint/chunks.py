"""The chunk codec encodes plain bytes to their stored form, and checks their hash when it decodes them.

A chunk is named by the BLAKE3 hash of its plain bytes. In the stored form, bytes are grouped into planes by their
position in the element, and each plane is stored as a zstd frame if it compresses well, and raw otherwise.
Neighboring weights have similar exponents, but their mantissas are noise. Compressing only the exponent planes
therefore achieves most of the gain for a quarter of the work. docs/checkpoint-format.md describes the exact layout.
"""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import zstandard
from blake3 import blake3

from training.errors import CorruptCheckpointError

CHUNK_BYTES = 8 * 1024 * 1024
"""Size of a full chunk. It is large enough that latency is small compared to the transfer time, and small enough that
several chunks can be in flight per process. S3 recommends 8 to 16 MB.
Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance-guidelines.html (2025-06)."""
MAGIC = b"TSC2"
_HEADER = struct.Struct("<4sBB2x")
_PLANE = struct.Struct("<BBxxI")
RAW, ZSTD = 0, 1
RAW_HEADER_BYTES = _HEADER.size + _PLANE.size
"""Length of the header before an uncompressed chunk's plain bytes."""
PAYS_BELOW = 0.95
"""A plane is compressed if a sample shrinks below this ratio. Otherwise, the smaller size is not worth the
decompression time."""
_SAMPLE_BYTES = 16 * 1024
_SAMPLES = 3
_PLANE_WIDTHS = {1: (1,), 2: (1, 1), 4: (2, 1, 1), 8: (1,) * 8, 16: (1,) * 16}
"""Width of each plane in bytes, lowest byte first, by element size. fp32 keeps the low half of its mantissa in one
plane: that half never compresses, and splitting and joining pairs of bytes is faster than single bytes."""

Buffer = bytes | bytearray | memoryview
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class ChunkSpan(NamedTuple):
    """A section of a rank's flat byte range that becomes one chunk."""

    offset_bytes: int
    bytes: int
    element_bytes: int


class Place(NamedTuple):
    """A tensor in a rank's flat byte range. Unlike TensorRecords, these are not validated: there can be 100,000."""

    dtype: str
    shape: list[int]
    offset_bytes: int
    bytes: int


@dataclass(frozen=True)
class Layout:
    """A rank's flat byte range: its tensors, by name, and its chunks."""

    tensors: dict[str, Place]
    spans: list[ChunkSpan]

    @property
    def total_bytes(self) -> int:
        """The flat range's length."""
        return sum(span.bytes for span in self.spans)

    def __getstate__(self) -> tuple[list[str], list[tuple[Any, ...]], list[ChunkSpan]]:
        """Return the layout as columns, which can be sent to another process several times as fast as rows."""
        return list(self.tensors), list(zip(*self.tensors.values(), strict=True)), self.spans

    def __setstate__(self, state: tuple[list[str], list[tuple[Any, ...]], list[ChunkSpan]]) -> None:
        """Restore the layout from its columns."""
        names, columns, spans = state
        places = map(Place, *columns) if columns else []
        object.__setattr__(self, "tensors", dict(zip(names, places, strict=True)))
        object.__setattr__(self, "spans", spans)


class _Plane(NamedTuple):
    width: int
    codec: int
    stored_bytes: int


class _Tools(threading.local):
    """One thread's compression contexts, which threads must not share."""

    def __init__(self) -> None:
        # With a small hash table and long matches, zstd does little except entropy coding, which provides most of the
        # gain.
        parameters = zstandard.ZstdCompressionParameters.from_level(1, hash_log=6, min_match=7)
        self.compressor = zstandard.ZstdCompressor(compression_params=parameters)
        self.decompressor = zstandard.ZstdDecompressor()


_tools = _Tools()


def plain_hash(plain: Buffer) -> str:
    """Return a chunk's name: the BLAKE3 hash of its plain bytes, as 64 hex digits."""
    return blake3(plain).hexdigest()


def encode(plain: Buffer, element_bytes: int, compress: bool = True) -> bytes:
    """Return a chunk's stored form.

    Args:
        plain: the chunk's plain bytes.
        element_bytes: width of the chunk's elements.
        compress: False to store the bytes uncompressed, when read speed matters more than size.
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
    """Return a stored chunk's plain bytes, checked against its hash.

    Raises:
        CorruptCheckpointError: The chunk is damaged.
    """
    plain = bytearray(expected_bytes)
    decode_into(stored, expected_blake3, memoryview(plain))
    return plain


def decode_into(stored: Buffer, expected_blake3: str, plain: memoryview) -> None:
    """Decode a stored chunk into ``plain``, which must have the chunk's length, and check the hash.

    Raises:
        CorruptCheckpointError: The chunk is damaged; ``plain`` may be partly overwritten.
    """
    try:
        _join(memoryview(stored), np.frombuffer(plain, dtype=np.uint8))
    except (struct.error, zstandard.ZstdError, ValueError, MemoryError) as error:
        raise CorruptCheckpointError(f"chunk {expected_blake3} is damaged: {error}") from error
    check(plain, expected_blake3)


def check(plain: Buffer, expected_blake3: str) -> None:
    """Raise CorruptCheckpointError if these bytes do not have this hash."""
    if plain_hash(plain) != expected_blake3:
        raise CorruptCheckpointError(f"chunk {expected_blake3} is damaged: the hash of its contents differs")


def is_raw_header(header: Buffer, plain_bytes: int) -> bool:
    """Return True if this is an uncompressed chunk's header, which is followed by the plain bytes."""
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
    """Decode a stored chunk's planes into ``plain``."""
    magic, element_bytes, count = _HEADER.unpack_from(stored)
    if magic != MAGIC:
        raise ValueError("it does not begin with a chunk header")
    planes = [_Plane(*_PLANE.unpack_from(stored, _HEADER.size + n * _PLANE.size)) for n in range(count)]
    if element_bytes == 0 or sum(plane.width for plane in planes) != element_bytes:
        raise ValueError("its planes' widths do not add up to its element size")
    elements = plain.size // element_bytes
    position, place = _HEADER.size + count * _PLANE.size, 0
    if len(stored) - position != sum(plane.stored_bytes for plane in planes) + plain.size % element_bytes:
        raise ValueError("its length differs from the length in its header")
    grid = plain[: elements * element_bytes].reshape(elements, element_bytes)
    for plane in planes:
        content = _plane(stored[position : position + plane.stored_bytes], plane, elements)
        if plane.width == 2 and element_bytes == 4 and place == 0:
            # Processing two bytes at a time gives the same result as below, in half the time.
            plain[: elements * 4].view("<u2")[0::2] = content.view("<u2")
        else:
            grid[:, place : place + plane.width] = content.reshape(elements, plane.width)
        position, place = position + plane.stored_bytes, place + plane.width
    plain[elements * element_bytes :] = np.frombuffer(stored[position:], dtype=np.uint8)


def _plane(stored: memoryview, plane: _Plane, elements: int) -> Bytes:
    """Return one plane's plain bytes."""
    wanted = elements * plane.width
    if plane.codec == ZSTD:
        if zstandard.frame_content_size(stored) != wanted:
            raise ValueError("a plane's length differs from the manifest")
        stored = memoryview(_tools.decompressor.decompress(stored))
    elif plane.codec != RAW:
        raise ValueError(f"codec {plane.codec} is unknown")
    if len(stored) != wanted:
        raise ValueError("a plane's length differs from the manifest")
    return np.frombuffer(stored, dtype=np.uint8)
