"""The checkpoint library: round trips, crashes at every write, fences, damage and retention."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from botocore.exceptions import ClientError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.checkpoint import runs
from tests.training.checkpoint.runs import load
from training.__main__ import main
from training.checkpoint import chunks
from training.checkpoint.gc import GarbageCollector
from training.checkpoint.layout import lay_out, share_out
from training.checkpoint.log import LogWriter, entry_key, newest_first, sequences
from training.checkpoint.manifest import Manifest, Subject
from training.checkpoint.retention import Retention
from training.checkpoint.save.rank_save import SavePlan, chunks_by_hash
from training.checkpoint.save.writer import CheckpointWriter
from training.checkpoint.storage import s3
from training.checkpoint.storage.backend import Backend, ReadsInPlace
from training.checkpoint.storage.directory import DirectoryBackend
from training.checkpoint.storage.urls import open_backend
from training.checkpoint.store import checkpoint_entries, list_checkpoints, read_manifest
from training.errors import (
    AlreadyExistsError,
    CorruptCheckpointError,
    NotFoundError,
    PeerError,
    SaveCancelledError,
    StoreError,
    SupersededError,
)

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
SUBJECT = Subject(
    num_hidden_layers=1,
    num_attention_heads=1,
    hidden_size=8,
    sequence_length=8,
    vocabulary_size=300,
    dataset_name="d",
    dataset_identity="i",
    tokenizer_sha256="t",
)


def manifest(step: int, world_size: int = 1) -> Manifest:
    return runs.manifest(step, world_size).model_copy(update={"subject": SUBJECT})


def writer_on(backend: Backend, generation: int = 1, **options: Any) -> CheckpointWriter:
    log = LogWriter(backend, generation)
    plan = SavePlan(**{"rank": 0, "world_size": 1, "fence": log.fence, **options})
    return CheckpointWriter(backend, plan, log)


def tensors_of(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {
        "model/frozen": torch.arange(100000, dtype=torch.float32),
        "model/large": torch.randn(300, 300, generator=generator),
        "model/small": torch.randn(7, generator=generator),
        "optimizer/step": torch.tensor(float(step)),
    }


def save(writer: CheckpointWriter, step: int) -> None:
    writer.begin(tensors_of(step), {}, manifest(step), "interval")
    writer.wait()
    if writer.error is not None:
        raise writer.error


def assert_step(backend: Backend, step: int) -> None:
    entry = next(entry for entry in checkpoint_entries(backend))
    assert entry.step == step
    loaded = load(backend, entry)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors_of(step).items())


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_tensors_round_trip_bit_for_bit(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    tensors = {}
    for number in range(data.draw(st.integers(0, 6))):
        dtype = data.draw(st.sampled_from(DTYPES))
        shape = data.draw(st.lists(st.integers(0, 5), max_size=4))
        generator = torch.Generator().manual_seed(number)
        bits = torch.randint(0, 2, shape, generator=generator).to(dtype)
        if data.draw(st.booleans()) and bits.dim() >= 2:
            bits = bits.transpose(0, 1)
        tensors[f"model/{number}"] = bits
    backend = DirectoryBackend(tmp_path_factory.mktemp("store"))
    writer = writer_on(backend)
    writer.begin(tensors, {}, manifest(1), "interval")
    writer.wait()
    assert writer.error is None
    loaded = load(backend, next(checkpoint_entries(backend)))
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].shape == tensor.shape
        assert torch.equal(loaded[name], tensor)


@given(plain=st.binary(min_size=1, max_size=200), element_bytes=st.sampled_from([1, 2, 4, 8, 16]))
def test_chunks_round_trip_and_damage_is_detected(plain: bytes, element_bytes: int) -> None:
    name = chunks.plain_hash(plain)
    stored = chunks.encode(plain, element_bytes)
    assert chunks.decode(stored, name, len(plain)) == plain
    flipped = stored[:-1] + bytes([stored[-1] ^ 1])
    for damaged in (stored[:-1], stored[:5], b"", b"x" + stored[1:], flipped):
        with pytest.raises(CorruptCheckpointError):
            chunks.decode(damaged, name, len(plain))


def test_layout_is_split_at_large_tensors_and_shared_evenly() -> None:
    tensors = {f"t{n}": torch.zeros(100_000 * (n + 1)) for n in range(4)} | {f"s{n}": torch.zeros(3) for n in range(9)}
    layout = lay_out(tensors, chunk_bytes=500_000)
    ends = [span.offset_bytes + span.bytes for span in layout.spans]
    assert [span.offset_bytes for span in layout.spans] == [0, *ends[:-1]]
    assert {layout.tensors[f"t{n}"].offset_bytes for n in range(4)} <= {span.offset_bytes for span in layout.spans}
    assert len([span for span in layout.spans if span.bytes < 5000]) == 1
    owners = share_out({"a": 10, "b": 6, "c": 5, "d": 0}, 2)
    assert owners == {"a": 0, "b": 1, "c": 1, "d": 0}


class FailingBackend:
    """Fails from the nth write onward, like a killed process; ``happens`` is True if that write still takes effect."""

    def __init__(self, inner: Backend, writes: int, happens: bool) -> None:
        self.url = inner.url
        self._inner = inner
        self._left = writes
        self._happens = happens

    def _write(self, write: Callable[[], None]) -> None:
        self._left -= 1
        if self._left == 0 and self._happens:
            write()
        if self._left <= 0:
            raise StoreError("dead")
        write()

    def put(self, key: str, content: bytes) -> None:
        self._write(lambda: self._inner.put(key, content))

    def create(self, key: str, content: bytes) -> None:
        self._write(lambda: self._inner.create(key, content))

    def delete(self, keys: list[str]) -> None:
        self._write(lambda: self._inner.delete(keys))

    def get(self, key: str) -> bytes:
        return self._inner.get(key)

    def keys(self, prefix: str, limit: int | None = None) -> list[str]:
        return self._inner.keys(prefix, limit)


@pytest.mark.parametrize("happens", [False, True])
def test_crash_at_any_write_keeps_the_newest_committed_checkpoint(tmp_path: Path, happens: bool) -> None:
    seen = set()
    for writes in range(1, 40):
        backend = DirectoryBackend(tmp_path / f"{happens}-{writes}")
        for step in (1, 2):
            save(writer_on(backend, generation=step), step)
        failing = FailingBackend(backend, writes, happens)
        try:
            save(writer_on(failing, generation=3), 3)
        except StoreError:
            committed = [entry.step for entry in checkpoint_entries(backend)][0]
            assert committed in (2, 3)
            seen.add(committed)
            assert_step(backend, committed)
        else:
            # After the commit, only the removal of old chunks can be interrupted.
            assert_step(backend, 3)
            if failing._left > 0:
                break
        save(writer_on(backend, generation=4), 5)
        assert_step(backend, 5)
        assert [listed.entry.step for listed in list_checkpoints(backend) if listed.is_complete][:2] in ([5, 2], [5, 3])
    else:
        raise AssertionError("the save never ended")
    assert writes > 5
    assert 2 in seen


def test_unfinished_files_of_a_killed_process_are_ignored(tmp_path: Path) -> None:
    backend = DirectoryBackend(tmp_path)
    save(writer_on(backend), 1)
    (tmp_path / "log" / ".unfinished-abc").write_bytes(b"half")
    assert_step(backend, 1)
    save(writer_on(backend), 2)
    assert_step(backend, 2)


@pytest.fixture(params=["directory", "s3"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    if request.param == "directory":
        return open_backend(str(tmp_path / "store"))
    return open_backend(f"s3://{request.getfixturevalue('bucket')}/runs/r/checkpoints")


def test_backends_fulfil_the_contract(backend: Backend) -> None:
    backend.put("a/b", b"1")
    backend.put("a/b", b"2")
    assert backend.get("a/b") == b"2"
    with pytest.raises(AlreadyExistsError):
        backend.create("a/b", b"3")
    backend.create("a/c", b"")
    assert backend.get("a/c") == b""
    assert backend.keys("a/") == ["a/b", "a/c"]
    assert backend.keys("b/") == []
    backend.delete(["a/b", "a/never"])
    assert backend.keys("") == ["a/c"]
    with pytest.raises(StoreError, match="does not exist"):
        backend.get("a/b")


def test_read_into_returns_the_size_of_the_object(backend: Backend) -> None:
    assert isinstance(backend, ReadsInPlace)
    backend.put("a", b"0123456789")
    head, body = bytearray(4), bytearray(6)
    assert backend.read_into("a", [memoryview(head), memoryview(body)]) == 10
    assert (bytes(head), bytes(body)) == (b"0123", b"456789")
    assert backend.read_into("a", [memoryview(head)]) == 10
    assert bytes(head) == b"0123"
    assert backend.read_into("a", [memoryview(bytearray(20))]) == 10
    with pytest.raises(NotFoundError):
        backend.read_into("b", [memoryview(head)])


def test_large_objects_are_uploaded_in_parts(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "MULTIPART_BYTES", 6 << 20)
    monkeypatch.setattr(s3, "PART_BYTES", 5 << 20)
    backend = s3.S3Backend(bucket, "x")
    content = bytes(range(256)) * (24 << 10)
    backend.put("large", content)
    assert backend.get("large") == content
    uploads = backend._client.list_multipart_uploads(Bucket=bucket)
    assert not uploads.get("Uploads")

    def refuse(**request: Any) -> Any:
        raise ClientError({"Error": {"Code": "AccessDenied"}}, "UploadPart")

    monkeypatch.setattr(backend._client, "upload_part", refuse)
    with pytest.raises(StoreError, match="AccessDenied"):
        backend.put("refused", content)
    assert not backend._client.list_multipart_uploads(Bucket=bucket).get("Uploads")
    assert backend.keys("") == ["large"]


def test_completion_of_a_large_new_object_has_the_condition(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "MULTIPART_BYTES", 6 << 20)
    monkeypatch.setattr(s3, "PART_BYTES", 5 << 20)
    backend = s3.S3Backend(bucket, "x")
    content, conditions = bytes(6 << 20), []
    complete = backend._client.complete_multipart_upload

    def recorded(**request: Any) -> Any:
        conditions.append(request.get("IfNoneMatch"))
        if len(conditions) == 2:
            raise ClientError({"Error": {"Code": "PreconditionFailed"}}, "CompleteMultipartUpload")
        return complete(**request)

    monkeypatch.setattr(backend._client, "complete_multipart_upload", recorded)
    backend.create("large", content)
    assert backend.get("large") == content
    with pytest.raises(AlreadyExistsError):
        backend.create("large", content)
    assert conditions == ["*", "*"]
    assert not backend._client.list_multipart_uploads(Bucket=bucket).get("Uploads")


def test_unchanged_tensors_are_stored_once_and_old_chunks_are_removed(backend: Backend) -> None:
    writer = writer_on(backend)
    for step in range(1, 6):
        save(writer, step)
    results = writer.take_results()
    assert [result.step for result in results] == [1, 2, 3, 4, 5]
    assert results[1].written_bytes < results[0].written_bytes
    whole = [listed.entry.step for listed in list_checkpoints(backend) if listed.is_complete]
    assert whole == [5, 4]
    kept = [read_manifest(backend, entry) for entry, _ in zip(checkpoint_entries(backend), range(2), strict=False)]
    frozen = [{chunk.key for chunk in one.chunks} for one in kept]
    assert frozen[0] & frozen[1]
    assert len(backend.keys("chunks/")) == len(frozen[0] | frozen[1]) + 2
    assert_step(backend, 5)
    resumed = writer_on(backend, generation=2, reusable=chunks_by_hash(kept[0]))
    save(resumed, 6)
    assert resumed.take_results()[0].written_bytes < results[0].written_bytes
    assert_step(backend, 6)


def test_superseded_writer_cannot_commit(backend: Backend) -> None:
    old = writer_on(backend, generation=1)
    save(old, 1)
    new = writer_on(backend, generation=2)
    with pytest.raises(SupersededError, match="generation 2 has owned"):
        save(old, 9)
    save(new, 2)
    assert_step(backend, 2)
    assert [entry.step for entry in checkpoint_entries(backend)] == [2, 1]
    with pytest.raises(SupersededError):
        LogWriter(backend, 1)


def test_restart_with_the_same_generation_supersedes_its_predecessor(backend: Backend) -> None:
    first, second = writer_on(backend), writer_on(backend)
    with pytest.raises(SupersededError):
        save(first, 1)
    save(second, 1)


def test_race_of_generations_is_linear(backend: Backend) -> None:
    """Concurrent writers: after the fence of a newer writer, no entry of an older one enters the log."""
    superseded: list[int] = []
    failures: list[Exception] = []
    barrier = threading.Barrier(4)

    def life(generation: int) -> None:
        barrier.wait()
        try:
            writer = LogWriter(backend, generation)
            for step in range(15):
                writer.append_checkpoint(step=step)
        except SupersededError:
            superseded.append(generation)
        except StoreError as error:
            failures.append(error)

    threads = [threading.Thread(target=life, args=(generation,)) for generation in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert 4 not in superseded
    assert sequences(backend) == list(range(len(sequences(backend))))
    generations = [entry.generation for entry in reversed(list(newest_first(backend)))]
    assert generations == sorted(generations)
    assert generations.count(4) == 16


def test_retry_after_a_lost_response_is_no_conflict(tmp_path: Path) -> None:
    class LosesResponses(DirectoryBackend):
        def create(self, key: str, content: bytes) -> None:
            super().create(key, content)
            super().create(key, content)  # the retry of a request that succeeded

    backend = LosesResponses(tmp_path)
    save(writer_on(backend), 1)
    assert sequences(backend) == [0, 1]
    assert_step(backend, 1)


@pytest.mark.parametrize("damage", ["missing", "changed", "truncated"])
def test_damage_is_detected_by_load_and_by_verify(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = DirectoryBackend(tmp_path)
    writer = writer_on(backend)
    save(writer, 1)
    save(writer, 2)
    assert main(["checkpoint", "verify", str(tmp_path)]) == 0
    newest = next(checkpoint_entries(backend))
    victim = tmp_path / read_manifest(backend, newest).chunks[-1].key
    content = victim.read_bytes()
    if damage == "missing":
        victim.unlink()
    else:
        victim.write_bytes(content[:-1] if damage == "truncated" else content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CorruptCheckpointError):
        load(backend, newest)
    assert main(["checkpoint", "verify", str(tmp_path)]) == 1
    output = capsys.readouterr().out
    assert f"step 2 (entry 2): {'chunk' if damage != 'missing' else tmp_path}" in output
    assert "step 1 (entry 1): every chunk exists" in output
    assert main(["checkpoint", "ls", str(tmp_path)]) == 0
    assert ("damaged: 1 chunks missing" in capsys.readouterr().out) == (damage == "missing")


def test_retention_does_not_count_incomplete_checkpoints(tmp_path: Path) -> None:
    backend = DirectoryBackend(tmp_path)
    writer = writer_on(backend, retention=Retention(10))
    for step in (1, 2, 3):
        save(writer, step)
    third = next(checkpoint_entries(backend))
    (tmp_path / read_manifest(backend, third).chunks[-1].key).unlink()
    assert GarbageCollector(backend, Retention(2)).collect(fence=0).garbage
    assert [listed.entry.step for listed in list_checkpoints(backend) if listed.is_complete] == [2, 1]


def test_retention_does_not_count_damaged_checkpoints(tmp_path: Path) -> None:
    backend = DirectoryBackend(tmp_path)
    writer = writer_on(backend, retention=Retention(10))
    for step in (1, 2, 3):
        save(writer, step)
    third = next(checkpoint_entries(backend)).sequence
    save(writer_on(backend, generation=2, damaged=frozenset({third})), 4)
    assert [listed.entry.step for listed in list_checkpoints(backend) if listed.is_complete] == [4, 2]


def test_retention_keeps_chunks_of_a_newer_owner(tmp_path: Path) -> None:
    backend = DirectoryBackend(tmp_path)
    old = writer_on(backend, generation=1)
    for step in (1, 2):
        save(old, step)
    newer = LogWriter(backend, generation=2)
    backend.put(f"chunks/{newer.fence:08d}/{'0' * 64}", b"being uploaded, not yet committed")
    backend.put(f"chunks/{0:08d}/{'0' * 64}", b"left by a crash")
    assert len(GarbageCollector(backend, Retention(2)).collect(fence=0).garbage) == 1
    assert f"chunks/{newer.fence:08d}/{'0' * 64}" in backend.keys("chunks/")
    assert [listed.entry.step for listed in list_checkpoints(backend) if listed.is_complete] == [2, 1]


class Refusing(DirectoryBackend):
    def put(self, key: str, content: bytes) -> None:
        if key.startswith("chunks/"):
            raise StoreError("s3://bucket: s3:PutObject was answered with AccessDenied")
        super().put(key, content)


def test_failure_of_one_rank_is_reported_on_rank_zero(tmp_path: Path) -> None:
    first = writer_on(DirectoryBackend(tmp_path), world_size=2)
    plan = SavePlan(rank=1, world_size=2, fence=0)
    second = CheckpointWriter(Refusing(tmp_path), plan, log=None)
    for writer in (first, second):
        writer.begin(tensors_of(1), {}, manifest(1, 2), "interval")
    for writer in (first, second):
        writer.wait()
    assert isinstance(first.error, PeerError)
    assert "rank 1: s3://bucket: s3:PutObject was answered with AccessDenied" in str(first.error)
    assert isinstance(second.error, StoreError)
    assert list(checkpoint_entries(DirectoryBackend(tmp_path))) == []


def test_rank_zero_does_not_wait_for_a_failed_rank(tmp_path: Path) -> None:
    """The rank failed between two saves, for example in a collective that rank 0 had already left."""
    key_values: Any = dist.HashStore()
    log = LogWriter(DirectoryBackend(tmp_path), 1)
    plans = [SavePlan(rank=rank, world_size=2, fence=log.fence) for rank in (0, 1)]
    first = CheckpointWriter(DirectoryBackend(tmp_path), plans[0], log, key_values=key_values)
    second = CheckpointWriter(DirectoryBackend(tmp_path), plans[1], None, key_values=key_values)
    first.begin(tensors_of(1), {}, manifest(1, 2), "finished")
    second.report_failure(RuntimeError("timed out waiting for a peer"))
    assert first.wait()
    assert isinstance(first.error, PeerError) and "rank 1: timed out waiting for a peer" in str(first.error)


def test_next_save_succeeds_after_a_cancelled_one(tmp_path: Path) -> None:
    held = threading.Event()
    reached = threading.Event()

    class Slow(DirectoryBackend):
        def put(self, key: str, content: bytes) -> None:
            reached.set()
            held.wait(30)
            super().put(key, content)

    writer = writer_on(Slow(tmp_path))
    writer.begin(tensors_of(1), {}, manifest(1), "interval")
    assert reached.wait(30)
    assert writer.is_busy
    writer.cancel()
    held.set()
    writer.wait()
    assert isinstance(writer.error, SaveCancelledError)
    save(writer, 2)
    assert_step(DirectoryBackend(tmp_path), 2)
    assert [entry.step for entry in checkpoint_entries(DirectoryBackend(tmp_path))] == [2]


def test_unresponsive_store_does_not_delay_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.checkpoint.save.writer.CANCEL_SECONDS", 0.05)
    requested, responded = threading.Event(), threading.Event()

    class Silent(DirectoryBackend):
        def put(self, key: str, content: bytes) -> None:
            requested.set()
            responded.wait(60)

    writer = writer_on(Silent(tmp_path))
    writer.begin(tensors_of(1), {}, manifest(1), "stop")
    assert requested.wait(60)
    assert not writer.wait(deadline=0.0)
    responded.set()
    assert writer.wait()
    assert isinstance(writer.error, SaveCancelledError)


def test_unwritable_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StoreError, match="cannot be written: Not a directory"):
        writer_on(DirectoryBackend(tmp_path / "file"))


def test_log_keys_sort_as_numbers() -> None:
    assert sorted([entry_key(10), entry_key(9)]) == [entry_key(9), entry_key(10)]
