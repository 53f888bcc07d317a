"""Large objects are read in ranges: all bytes, in order, of one version."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from benchmarks.chaos.faulty_s3 import FaultyS3, Misbehaviour
from training.checkpoint.chunks import encode, plain_hash
from training.checkpoint.manifest import ChunkRecord
from training.checkpoint.storage import s3
from training.checkpoint.storage.s3 import S3Backend
from training.checkpoint.store import read_chunk
from training.errors import CorruptCheckpointError, StoreError

FROM_BYTES, RANGE_BYTES = 3000, 1000


@pytest.fixture
def backend(bucket: str, monkeypatch: pytest.MonkeyPatch) -> S3Backend:
    monkeypatch.setattr(s3, "RANGED_BYTES", FROM_BYTES)
    monkeypatch.setattr(s3, "PART_BYTES", RANGE_BYTES)
    return S3Backend(bucket, "p")


def content(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


def count_requests(backend: S3Backend) -> list[str | None]:
    ranges: list[str | None] = []
    inner = backend._client.get_object

    def get_object(**arguments: Any) -> Any:
        ranges.append(arguments.get("Range"))
        return inner(**arguments)

    backend._client.get_object = get_object
    return ranges


@pytest.mark.parametrize("size", [0, 1, 2999, 3000, 3999, 4000, 4001, 12345])
def test_reads_every_byte_in_order(backend: S3Backend, size: int) -> None:
    wanted = content(size)
    backend.put("x", wanted)
    ranges = count_requests(backend)
    assert backend.get("x") == wanted
    ranged = -(-size // RANGE_BYTES) if size >= FROM_BYTES else 0
    assert len(ranges) == 1 + ranged
    header, rest = memoryview(bytearray(16)), memoryview(bytearray(max(0, size - 16)))
    assert backend.read_into("x", [header, rest]) == size
    assert (bytes(header) + bytes(rest))[:size] == wanted


@pytest.mark.parametrize("space", [3500, 9000])
def test_reads_into_memory_shorter_or_longer_than_the_object(backend: S3Backend, space: int) -> None:
    wanted = content(5000)
    backend.put("x", wanted)
    memory = [memoryview(bytearray(space - 700)), memoryview(bytearray(700))]
    assert backend.read_into("x", memory) == 5000
    assert b"".join(memory)[:5000] == wanted[:space]


def test_ranges_are_requested_concurrently(backend: S3Backend) -> None:
    backend.put("x", content(4000))
    together = threading.Barrier(4, timeout=60)
    inner = backend._client.get_object

    def get_object(**arguments: Any) -> Any:
        if "Range" in arguments:
            together.wait()
        return inner(**arguments)

    backend._client.get_object = get_object
    assert backend.get("x") == content(4000)


def test_two_versions_are_never_mixed(backend: S3Backend) -> None:
    backend.put("x", content(5000))
    inner = backend._client.get_object
    lock = threading.Lock()
    requested: list[str] = []

    def get_object(**arguments: Any) -> Any:
        with lock:
            if "Range" in arguments:
                requested.append(arguments["Range"])
                if len(requested) == 2:
                    backend.put("x", content(5001))
            return inner(**arguments)

    backend._client.get_object = get_object
    with pytest.raises(StoreError, match="p/x: overwritten during the read"):
        backend.get("x")


@pytest.fixture
def proxy(s3_endpoint: str, s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    faulty = FaultyS3(s3_endpoint, "seed")
    monkeypatch.setenv("AWS_ENDPOINT_URL", faulty.endpoint)
    monkeypatch.setattr(s3, "FIRST_PAUSE_SECONDS", 0.001)
    yield faulty
    faulty.close()


def test_interrupted_range_is_retried(proxy: FaultyS3, backend: S3Backend) -> None:
    wanted = content(8000)
    backend.put("x", wanted)
    proxy.misbehaviour = Misbehaviour("truncated bodies", 0.4)
    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(backend.get, ["x"] * 6)) == {wanted}
    assert proxy.done["truncated bodies"] >= 5


@pytest.mark.parametrize("compress", [True, False])
def test_a_large_chunk_is_verified(backend: S3Backend, compress: bool) -> None:
    plain = np.repeat(np.random.default_rng(1).standard_normal(2000, dtype=np.float32), 2).tobytes()
    stored = encode(plain, 4, compress)
    assert len(stored) > FROM_BYTES
    record = ChunkRecord(key=f"chunks/00000000/{plain_hash(plain)}", bytes=len(plain), stored_bytes=len(stored))
    backend.put(record.key, stored)
    assert read_chunk(backend, record) == plain
    backend.put(record.key, stored[:-1] + bytes([stored[-1] ^ 1]))
    with pytest.raises(CorruptCheckpointError, match="is damaged"):
        read_chunk(backend, record)


def test_listings_read_only_the_requested_keys(backend: S3Backend) -> None:
    for number in range(5):
        backend.put(f"tags/{number}", b"")
    asked: list[tuple[int, bool]] = []
    events = backend._client.meta.events
    events.register(
        "provide-client-params.s3.ListObjectsV2",
        lambda params, **_: asked.append((params.get("MaxKeys"), "ContinuationToken" in params)),
    )
    assert backend.keys("tags/", 2) == ["tags/0", "tags/1"]
    assert backend.keys("tags/3", 1) == ["tags/3"]
    assert asked == [(2, False), (1, False)]
    assert backend.keys("tags/") == [f"tags/{number}" for number in range(5)]
    assert asked[2:] == [(None, False)]
