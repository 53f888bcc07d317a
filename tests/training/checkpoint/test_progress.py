"""A save that takes long says how far it is: in the log, and to the trainer, which puts it into the metrics."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos.faulty_s3 import FaultyS3, Misbehaviour
from benchmarks.local_moto import endpoint_environment
from tests.training.checkpoint.runs import Hooked, MemoryBackend, manifest, save, start, state
from training.checkpoint.directory import DirectoryBackend
from training.checkpoint.progress import ProgressMeter, SaveProgress, reported
from training.checkpoint.tiers import TieredBackend
from training.checkpoint.writer import CheckpointWriter

pytestmark = pytest.mark.usefixtures("small_chunks")


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.checkpoint.progress.REPORT_SECONDS", 0.01)


def told(writer: CheckpointWriter) -> SaveProgress:
    while (progress := writer.take_progress()) is None:
        assert writer.is_busy
    return progress


@pytest.mark.usefixtures("often")
def test_each_tier_is_told_of_with_what_is_there_and_what_was_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arrived, gate, durable = threading.Event(), threading.Event(), MemoryBackend()

    def hold_the_last(at: int, name: str, key: str) -> None:
        if name == "put" and len(durable.keys("chunks/")) == 2:
            arrived.set()
            assert gate.wait(60)

    backend = TieredBackend(DirectoryBackend(tmp_path), Hooked(durable, hold_the_last))
    writer = start(backend)
    with caplog.at_level("INFO"):
        writer.begin(state(3), {}, manifest(3), "interval")
        assert arrived.wait(60)
        writer.take_progress()
        progress = told(writer)
        gate.set()
        writer.wait()
    assert (progress.step, progress.store) == (3, durable.url)
    assert 0 < progress.bytes < progress.total_bytes
    stored = sum(len(durable.objects[key]) for key in durable.keys("chunks/"))
    assert 0 < progress.written_bytes < stored
    assert progress.written_bytes_per_second == pytest.approx(progress.written_bytes / progress.seconds)
    assert f"saving step 3 to {durable.url}: 0 of 0 MB done" in caplog.text
    assert writer.take_progress() is None, "what has ended is under way no more"


def test_what_is_there_already_counts_as_done_and_not_as_written(tmp_path: Path) -> None:
    writer = start(MemoryBackend())
    seen = []
    saver = writer._host._saver  # type: ignore[attr-defined]
    for _ in range(2):
        writer.begin(state(1), {}, manifest(1), "interval")
        writer.wait()
        seen.append(saver.meter.read())
    assert seen[0].bytes == seen[0].total_bytes == seen[1].bytes == seen[1].total_bytes > 0
    assert seen[0].written_bytes > 0 == seen[1].written_bytes


def test_a_loop_that_stands_still_is_told_of_part_by_part(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = start(MemoryBackend())
    save(writer, 1)
    assert "stood still" not in caplog.text
    monkeypatch.setattr("training.checkpoint.writer.LONG_SECONDS", 0)
    save(writer, 2)
    for part in ("to save step 2", "s laying it out", "s finding memory", "s copying", "s handing it over"):
        assert part in caplog.text


@pytest.mark.usefixtures("often")
def test_nothing_is_told_after_the_end() -> None:
    heard: list[SaveProgress] = []
    more = threading.Event()

    def tell(progress: SaveProgress) -> None:
        heard.append(progress)
        more.set()

    with pytest.raises(ValueError, match="the save"), reported(ProgressMeter(), tell):
        assert more.wait(60)
        raise ValueError("the save failed")
    assert not [thread for thread in threading.enumerate() if thread.name == "checkpoint-progress"]
    assert heard


@pytest.fixture
def slow_s3(s3_endpoint: str) -> Iterator[FaultyS3]:
    proxy = FaultyS3(s3_endpoint, "seed")
    yield proxy
    proxy.close()


def test_it_is_in_the_metrics_and_the_log_while_the_save_runs(
    gangs: Any, tiny_config: dict[str, Any], bucket: str, slow_s3: FaultyS3
) -> None:
    config = {**tiny_config, "steps": 100000, "schedule": {"kind": "constant", "warmup_steps": 4}}
    environment = endpoint_environment(slow_s3.endpoint)
    run = gangs.start("run", config, checkpoints=f"s3://{bucket}/x", environment=environment)
    run.wait_for(lambda: run.records("start"))
    slow_s3.misbehaviour = Misbehaviour(delay_seconds=60.0)
    run.wait_for(lambda: run.records("checkpoint_progress"))
    record = run.records("checkpoint_progress")[0]
    assert record["store"] == f"s3://{bucket}/x" and record["bytes"] < record["bytes_total"]
    assert f"saving step {record['step']} to s3://{bucket}/x" in run.errors()
    slow_s3.misbehaviour = Misbehaviour()
    (run.directory / "stop").touch()
    assert run.wait() == [75], run.errors()
    assert run.records("checkpoint")[-1]["reason"] == "stop"
