"""Bug reports about partly written checkpoints, unclear errors and growing memory."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.chaos.faulty_s3 import FaultyS3, Misbehaviour
from tests.training.checkpoint.runs import Hooked, MemoryBackend, assert_holds, load, newest, save, start
from training.checkpoint.storage.directory import DirectoryBackend
from training.checkpoint.storage.s3 import S3Backend
from training.checkpoint.storage.urls import open_backend
from training.checkpoint.store import checkpoint_entries, read_manifest, read_part
from training.errors import CorruptCheckpointError, StoreError


@pytest.fixture
def proxy(s3_endpoint: str, s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    faulty = FaultyS3(s3_endpoint, "seed")
    monkeypatch.setenv("AWS_ENDPOINT_URL", faulty.endpoint)
    monkeypatch.setattr("training.checkpoint.storage.s3.ATTEMPTS", 2)
    yield faulty
    faulty.close()


@pytest.mark.parametrize(("fault", "code"), [("errors", "InternalError"), ("slow-down", "SlowDown")])
def test_message_has_the_error_code_of_the_service(proxy: FaultyS3, bucket: str, fault: Any, code: str) -> None:
    """https://github.com/awslabs/s3-connector-for-pytorch/pull/232: the error of an upload part was hidden."""
    backend = S3Backend(bucket, "p")
    proxy.misbehaviour = Misbehaviour(fault, 1.0)
    with pytest.raises(StoreError) as caught:
        backend.put("key", b"x")
    message = str(caught.value)
    assert f"s3://{bucket}/p/key" in message and code in message and "s3:PutObject" in message


@pytest.mark.parametrize("afterwards", [None, "errors"], ids=["clean-up works", "clean-up fails too"])
def test_message_has_the_error_of_an_upload_part(
    proxy: FaultyS3, bucket: str, monkeypatch: pytest.MonkeyPatch, afterwards: Any
) -> None:
    """https://github.com/awslabs/s3-connector-for-pytorch/issues/219: a large upload reported another error."""
    monkeypatch.setattr("training.checkpoint.storage.s3.MULTIPART_BYTES", 1 << 20)
    monkeypatch.setattr("training.checkpoint.storage.s3.PART_BYTES", 5 << 20)
    backend = S3Backend(bucket, "p")
    upload_part = backend._client.upload_part

    def fail_the_last(**arguments: Any) -> Any:
        if arguments["PartNumber"] < 3:
            return upload_part(**arguments)
        proxy.misbehaviour = Misbehaviour("slow-down", 1.0)
        try:
            return upload_part(**arguments)
        finally:
            proxy.misbehaviour = Misbehaviour(afterwards, 1.0)

    monkeypatch.setattr(backend._client, "upload_part", fail_the_last)
    monkeypatch.setattr("training.checkpoint.storage.s3.PART_THREADS", 1)
    with pytest.raises(StoreError, match=f"s3://{bucket}/p/key: .* SlowDown"):
        backend.put("key", bytes(11 << 20))
    proxy.misbehaviour = Misbehaviour()
    assert bool(backend._client.list_multipart_uploads(Bucket=bucket).get("Uploads")) == (afterwards is not None)
    assert backend.keys("") == []


def test_every_request_uses_the_configured_endpoint(proxy: FaultyS3, bucket: str) -> None:
    """https://github.com/boto/boto3/issues/4839: transfers went to AWS nevertheless."""
    backend = S3Backend(bucket, "p")
    proxy.misbehaviour = Misbehaviour("errors", 1.0)
    for request in (
        lambda: backend.put("key", b"x"),
        lambda: backend.put("large", bytes(20 << 20)),
        lambda: backend.create("key", b"x"),
        lambda: backend.get("key"),
        lambda: backend.keys(""),
        lambda: backend.delete(["key"]),
    ):
        before = proxy.done["errors"]
        with pytest.raises(StoreError):
            request()
        assert proxy.done["errors"] > before


def _write_in_child(bucket: str) -> None:
    backend = S3Backend(bucket, "p")
    backend.put("child", b"x")
    assert backend.get("parent") == b"x"


def test_forked_process_can_use_s3(s3_environment: dict[str, str], bucket: str) -> None:
    """https://github.com/mlcommons/storage/issues/642: a process forked while the client had threads hung."""
    backend = S3Backend(bucket, "p")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: backend.put("parent", b"x"), range(8)))
        child = multiprocessing.get_context("fork").Process(target=_write_in_child, args=(bucket,))
        child.start()
        child.join(30)
        hangs = child.is_alive()
        child.kill()
        child.join()
    assert not hangs and child.exitcode == 0
    assert backend.get("child") == b"x"


def test_names_a_truncated_chunk(gangs: Any, tiny_config: dict[str, Any]) -> None:
    """https://github.com/pytorch/pytorch/pull/170244: the message did not mention the truncated file."""
    run = gangs.finish("run", {**tiny_config, "steps": 2})
    backend = DirectoryBackend(Path(run.checkpoints))
    manifest = read_manifest(backend, next(checkpoint_entries(backend)))
    chunk = max(manifest.chunks, key=lambda each: each.bytes)
    path = Path(run.checkpoints) / chunk.key
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(CorruptCheckpointError, match=f"{chunk.blake3}.* is damaged"):
        for part in manifest.parts:
            read_part(backend, part)


def test_ignores_chunks_without_a_commit(gangs: Any, tiny_config: dict[str, Any]) -> None:
    """https://github.com/pytorch/torchtitan/pull/315: runs resumed from an incomplete newest folder."""
    first = gangs.finish("first", {**tiny_config, "steps": 6})
    log = sorted((Path(first.checkpoints) / "log").glob("*.json"))
    log[-1].unlink()  # the last save is complete except for its commit
    second = gangs.finish("second", {**tiny_config, "steps": 7}, generation=2)
    assert second.records("start")[0]["resumed_from_step"] == 5
    assert [entry.step for entry in checkpoint_entries(open_backend(first.checkpoints))][0] == 7


def test_interrupted_second_save_of_a_step_does_not_replace_the_first() -> None:
    """https://github.com/saforem2/ezpz/pull/196: an old marker made a partial checkpoint look complete."""
    store = MemoryBackend()
    for step in (1, 2):
        save(start(store, generation=step), step)
    first = newest(store)

    def die(at: int, name: str, key: str) -> None:
        if name == "create" and at > 5:
            raise StoreError("dead")

    with pytest.raises(StoreError, match="dead"):
        save(start(Hooked(store, die), generation=3), 2, {"model/x": torch.full((9,), 9.0)})
    assert newest(store) == first, "the second save was not committed"
    assert_holds(store, first)
    save(start(store, generation=4), 2, {"model/x": torch.full((9,), 9.0)})
    assert newest(store).sequence > first.sequence and newest(store).step == 2
    assert torch.equal(load(store, newest(store))["model/x"], torch.full((9,), 9.0))
    assert_holds(store, first)


def test_writer_process_does_not_import_torch() -> None:
    """https://github.com/pytorch/pytorch/pull/147039: a background save blocked the training loop's interpreter."""
    modules = "training.checkpoint.save.writer_process, training.checkpoint.storage.s3"
    program = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3]
    )
    assert done.stdout.split() == ["False"], done.stderr


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_memory_does_not_grow_with_the_number_of_saves(gangs: Any, tiny_config: dict[str, Any]) -> None:
    """https://github.com/pytorch/pytorch/issues/170163: each asynchronous save kept memory."""
    shape = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 128, "sequence_length": 16}
    config = {
        **tiny_config,
        "steps": 100000,
        "schedule": {"kind": "constant", "warmup_steps": 4},
        "global_batch_size": 1,
        "micro_batch_size": 1,
        "model": shape,
        "checkpoint": {"interval_steps": 1},
    }
    run = gangs.start("run", config)
    run.wait_for(lambda: len(run.records("checkpoint")) >= 5)
    (process,) = run.processes
    before, saves_before = resident_bytes(process.pid), len(run.records("checkpoint"))
    run.wait_for(lambda: len(run.records("checkpoint")) >= saves_before + 20)
    grown = resident_bytes(process.pid) - before
    entry = next(checkpoint_entries(open_backend(run.checkpoints)))
    assert entry.bytes is not None and entry.bytes > 5_000_000
    # With twenty saves, keeping a copy at every tenth save would exceed the limit.
    assert grown < 2 * entry.bytes, f"{grown} bytes more after 20 saves of {entry.bytes} bytes"
