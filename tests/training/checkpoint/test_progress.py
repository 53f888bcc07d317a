"""A long save reports its progress in the log, and to the trainer, which writes it to the metrics."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos.faulty_s3 import FaultyS3, Misbehaviour
from benchmarks.servers.local_moto import endpoint_environment
from tests.training.checkpoint.runs import Hooked, MemoryBackend, manifest, save, start, state
from training.checkpoint.save.progress import ProgressMeter, SaveProgress, reported
from training.checkpoint.save.writer import CheckpointWriter
from training.checkpoint.storage.directory import DirectoryBackend
from training.checkpoint.storage.tiers import TieredBackend

pytestmark = pytest.mark.usefixtures("small_chunks")


@pytest.fixture
def frequent_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.checkpoint.save.progress.REPORT_SECONDS", 0.01)


def next_progress(writer: CheckpointWriter) -> SaveProgress:
    while (progress := writer.take_progress()) is None:
        assert writer.is_busy
    return progress


@pytest.mark.usefixtures("frequent_reports")
def test_reports_progress_of_each_tier(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    arrived, gate, durable = threading.Event(), threading.Event(), MemoryBackend()

    def block_the_last(at: int, name: str, key: str) -> None:
        if name == "put" and len(durable.keys("chunks/")) == 2:
            arrived.set()
            assert gate.wait(60)

    backend = TieredBackend(DirectoryBackend(tmp_path), Hooked(durable, block_the_last))
    writer = start(backend)
    with caplog.at_level("INFO"):
        writer.begin(state(3), {}, manifest(3), "interval")
        assert arrived.wait(60)
        writer.take_progress()
        progress = next_progress(writer)
        gate.set()
        writer.wait()
    assert (progress.step, progress.store) == (3, durable.url)
    assert 0 < progress.bytes < progress.total_bytes
    stored = sum(len(durable.objects[key]) for key in durable.keys("chunks/"))
    assert 0 < progress.written_bytes < stored
    assert progress.written_bytes_per_second == pytest.approx(progress.written_bytes / progress.seconds)
    assert f"saving step 3 to {durable.url}: 0 of 0 MB done" in caplog.text
    assert writer.take_progress() is None, "no progress of a save that has ended"


def test_existing_chunks_count_as_done_and_not_as_written(tmp_path: Path) -> None:
    writer = start(MemoryBackend())
    seen = []
    saver = writer._executor._saver  # type: ignore[attr-defined]
    for _ in range(2):
        writer.begin(state(1), {}, manifest(1), "interval")
        writer.wait()
        seen.append(saver.meter.read())
    assert seen[0].bytes == seen[0].total_bytes == seen[1].bytes == seen[1].total_bytes > 0
    assert seen[0].written_bytes > 0 == seen[1].written_bytes


def test_logs_the_phases_of_a_save_that_blocked_training(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = start(MemoryBackend())
    save(writer, 1)
    assert "blocked training" not in caplog.text
    monkeypatch.setattr("training.checkpoint.save.progress.LONG_SECONDS", 0)
    save(writer, 2)
    for text in ("saving step 2 blocked", ": layout 0.", ", allocation 0.", ", copy 0.", ", submission 0."):
        assert text in caplog.text


@pytest.mark.usefixtures("frequent_reports")
def test_no_report_after_the_end() -> None:
    reports: list[SaveProgress] = []
    received = threading.Event()

    def report(progress: SaveProgress) -> None:
        reports.append(progress)
        received.set()

    with pytest.raises(ValueError, match="the save"), reported(ProgressMeter(), report):
        assert received.wait(60)
        raise ValueError("the save failed")
    assert not [thread for thread in threading.enumerate() if thread.name == "checkpoint-progress"]
    assert reports


@pytest.fixture
def slow_s3(s3_endpoint: str) -> Iterator[FaultyS3]:
    proxy = FaultyS3(s3_endpoint, "seed")
    yield proxy
    proxy.close()


def test_progress_is_in_metrics_and_log_during_the_save(
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
