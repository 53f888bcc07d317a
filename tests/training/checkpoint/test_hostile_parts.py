"""Objects under `parts/` that no rank of the gang wrote. Every node of a run can write there (docs/security.md)."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.training.checkpoint.runs import Hooked, MemoryBackend, manifest, newest, start
from training.checkpoint.log import LogWriter
from training.checkpoint.manifest import Manifest, PartMessage, PartRecord
from training.checkpoint.save import parts as parts_module
from training.checkpoint.save.executors import Placement
from training.checkpoint.save.parts import Parts
from training.checkpoint.save.rank_save import SavePlan
from training.checkpoint.save.writer import CheckpointWriter
from training.checkpoint.storage.backend import Backend
from training.checkpoint.storage.directory import DirectoryBackend
from training.checkpoint.store import checkpoint_entries, read_manifest
from training.errors import PeerError
from training.loop.reporting import write_records

SECRET = "known to both ranks"
FORGED = PartMessage(part=PartRecord(tensors={}, chunks=[], written_bytes=0)).model_dump_json().encode()
FAILURE = PartMessage(error="rank 1: forged").model_dump_json().encode()
GARBAGE = [
    *(b"\xff", b"", b"[]", b"null", b"[" * 100_000, b'{"part":' * 5000, b'{"part": 1e999}', b"9" * 100_000),
    b'{"part": {"tensors": {}, "chunks": [], "written_bytes": -1}}',
    json.dumps({"part": {"tensors": {}, "chunks": [{"key": "../x", "bytes": 1, "stored_bytes": 1}]}}).encode(),
]


def two_writers(store: Backend, second_store: Backend | None = None) -> tuple[CheckpointWriter, CheckpointWriter]:
    first = start(store, world_size=2, secret=SECRET)
    plan = SavePlan(rank=1, world_size=2, fence=0, secret=SECRET, threads=1)
    return first, CheckpointWriter(second_store or store, plan, None)


def begin(writer: CheckpointWriter, step: int) -> None:
    content = {"model/a": torch.arange(10.0), "model/b": torch.arange(3.0)}
    writer.begin(content, {}, manifest(step, world_size=2), "interval")


def saved(store: Backend) -> Manifest:
    return read_manifest(store, newest(store))


@pytest.mark.parametrize("content", [*GARBAGE, FORGED, FAILURE], ids=lambda content: repr(content[:20]))
def test_objects_without_the_gang_s_mark_have_no_effect(content: bytes) -> None:
    """An object without a mark in its name, or with a mark made from another secret, is not a part."""
    store = MemoryBackend()
    first, second = two_writers(store)
    store.put("parts/00000000/000001/00001.json", content)
    store.put(Parts(store, 0, "another secret").key(1, 1), content)
    for writer in (first, second):
        begin(writer, 1)
    for writer in (first, second):
        writer.wait()
        assert writer.error is None
    assert sorted(name for part in saved(store).parts for name in part.tensors) == ["model/a", "model/b"]
    assert first.take_set_aside() == []


@pytest.mark.parametrize("content", GARBAGE, ids=lambda content: repr(content[:20]))
def test_an_object_in_place_of_a_part_is_set_aside_until_the_part_arrives(
    content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    reads = 0
    read_twice = threading.Event()
    store = MemoryBackend()

    def count(_: int, operation: str, key: str) -> None:
        nonlocal reads
        if (operation, key) == ("get", place):
            reads += 1
            if reads == 2:
                read_twice.set()

    place = Parts(store, 0, SECRET).key(1, 1)
    first, second = two_writers(Hooked(store, count), store)
    store.put(place, content)
    begin(first, 1)
    assert read_twice.wait(60)
    begin(second, 1)
    for writer in (first, second):
        writer.wait()
        assert writer.error is None
    assert len(saved(store).parts) == 2
    (found,) = first.take_set_aside()
    assert (found.step, found.url) == (1, f"memory/{place}")
    assert caplog.text.count(f"{place}: not a part of a save ({found.message}); waiting for the part") == 1
    assert first.take_set_aside() == []


def test_a_part_replaces_an_object_that_was_there_first() -> None:
    store = MemoryBackend()
    writers = two_writers(store)
    store.put(Parts(store, 0, SECRET).key(1, 1), b"[]")
    for step in (1, 2):
        for writer in reversed(writers):
            begin(writer, step)
        for writer in writers:
            writer.wait()
            assert writer.error is None
    assert [entry.step for entry in checkpoint_entries(store)] == [2, 1]
    assert store.keys("parts/") == []


def test_a_part_that_disappears_between_listing_and_reading_is_awaited() -> None:
    store = MemoryBackend()
    removed = threading.Event()

    def remove(_: int, operation: str, key: str) -> None:
        if (operation, key) == ("get", place) and not removed.is_set():
            store.delete([key])
            removed.set()

    place = Parts(store, 0, SECRET).key(1, 1)
    first, second = two_writers(Hooked(store, remove), store)
    store.put(place, FORGED)
    begin(first, 1)
    assert removed.wait(60)
    begin(second, 1)
    for writer in (first, second):
        writer.wait()
        assert writer.error is None
    assert len(saved(store).parts) == 2


def test_a_failure_reported_under_the_mark_still_ends_the_save() -> None:
    store = MemoryBackend()
    first, _ = two_writers(store)
    store.put(Parts(store, 0, SECRET).key(1, 1), FAILURE)
    begin(first, 1)
    first.wait()
    assert isinstance(first.error, PeerError)


def test_the_number_of_reports_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "MAX_REPORTS", 3)
    store = MemoryBackend()
    parts = Parts(store, 0, SECRET)
    reported: list[Any] = []
    parts.report = reported.append
    for number in range(10):
        store.put(parts.key(1, 1), b"x" * number)
        assert parts.received(1, 1, [1]) == {}
    assert len(reported) == 3


def test_each_part_has_its_own_mark() -> None:
    store = MemoryBackend()
    keys = {
        Parts(store, fence, secret).key(serial, rank)
        for fence in (0, 1)
        for secret in ("a", "b")
        for serial in (1, 2)
        for rank in (0, 1)
    }
    assert len({key.rpartition("-")[2] for key in keys}) == len(keys) == 16


def test_the_writer_process_reports_objects_to_the_trainer(tmp_path: Path) -> None:
    store = DirectoryBackend(tmp_path)
    log = LogWriter(store, 1)
    plans = [SavePlan(rank=rank, world_size=2, fence=log.fence, secret=SECRET, threads=1) for rank in (0, 1)]
    first = CheckpointWriter(store, plans[0], log, Placement(1, frozenset(), 0))
    second = CheckpointWriter(store, plans[1], None)
    metrics = Metrics()
    run: Any = SimpleNamespace(is_main=True, writer=first, metrics=metrics, config=SimpleNamespace(global_batch_size=1))
    run.loss_terms_per_sequence, run.dataset = 1, None
    place = Parts(store, log.fence, SECRET).key(1, 1)
    store.put(place, b"[]")
    begin(first, 1)
    deadline = time.monotonic() + 60
    while not metrics.records and time.monotonic() < deadline:
        write_records(run, [])
        time.sleep(0.02)  # polling, as the training loop does between steps
    (record,) = metrics.records
    assert record == {
        "record": "part_set_aside",
        "step": 1,
        "url": f"{store.url}/{place}",
        "message": "Input should be an object",
    }
    begin(second, 1)
    for writer in (first, second):
        writer.wait()
        assert writer.error is None
        writer.close()
    assert len(saved(store).parts) == 2


class Metrics:
    """Keeps the records of a run."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def write(self, record: str, **fields: Any) -> None:
        self.records.append({"record": record, **fields})
