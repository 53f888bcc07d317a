"""Order of samples, reads of token ranges, and validation of datasets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data.batches import TrainBatches, ValidationBatches
from training.data.dataset import ShardRecord, TokenSplit, open_dataset
from training.data.device_copy import HostToDeviceCopier
from training.data.order import SampleOrder, permuted, sample_order
from training.data.samples import NO_TARGET, Documents, Windows
from training.errors import DatasetError

CPU = torch.device("cpu")


@settings(deadline=None)
@given(size=st.integers(1, 3000), key=st.binary(max_size=8))
def test_permutation_is_a_bijection(size: int, key: bytes) -> None:
    result = permuted(np.arange(size, dtype=np.uint64), size, key)
    assert np.array_equal(np.sort(result), np.arange(size))


def test_permutation_has_no_visible_pattern() -> None:
    result = permuted(np.arange(10000, dtype=np.uint64), 10000, b"key").astype(np.int64)
    assert abs(np.corrcoef(np.arange(10000), result)[0, 1]) < 0.05
    assert np.count_nonzero(np.diff(result) == 1) < 10
    assert not np.array_equal(result, permuted(np.arange(10000, dtype=np.uint64), 10000, b"other"))


@settings(max_examples=50, deadline=None)
@given(position=st.integers(0, 5000), count=st.integers(0, 300), cut=st.integers(0, 300), samples=st.integers(1, 200))
def test_order_depends_only_on_the_position(position: int, count: int, cut: int, samples: int) -> None:
    together = sample_order(position, count, samples, seed=3)
    cut = min(cut, count)
    parts = [sample_order(position, cut, samples, seed=3), sample_order(position + cut, count - cut, samples, seed=3)]
    assert np.array_equal(together, np.concatenate(parts))


def test_blockwise_order_matches_the_direct_one() -> None:
    order = SampleOrder(samples=700, seed=3)
    for position, count in ((0, 10), (4090, 10), (8000, 9000), (5, 3), (4096, 4096), (70, 0)):
        assert np.array_equal(order.at(position, count), sample_order(position, count, 700, seed=3))


def test_each_epoch_has_every_sample_once_in_a_new_order() -> None:
    first, second = sample_order(0, 97, 97, seed=1), sample_order(97, 97, 97, seed=1)
    assert sorted(first) == sorted(second) == list(range(97))
    assert first.tolist() != second.tolist()
    assert first.tolist() != sample_order(0, 97, 97, seed=2).tolist()


def test_rows_span_shards(tmp_path: Path) -> None:
    stream = np.arange(100, dtype="<u2")
    shards = []
    for number, part in enumerate(np.split(stream, [7, 9, 60])):
        part.tofile(tmp_path / f"train-{number}.bin")
        shards.append(ShardRecord(file=f"train-{number}.bin", tokens=part.size, bytes=part.nbytes, blake3="0" * 64))
    split = TokenSplit(tmp_path, "uint16", 100, shards)
    starts = np.array([0, 5, 6, 8, 59, 85])
    assert split.rows(starts, 15).tolist() == [list(range(start, start + 15)) for start in starts]
    assert Windows(split, 33).count == 3
    assert Windows(split, 100).count == 0
    with pytest.raises(DatasetError, match="token id 99: must be below vocabulary_size 50"):
        TokenSplit(tmp_path, "uint16", 50, shards).rows(np.array([85]), 15)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_global_batch_is_the_same_at_any_world_size(tiny_dataset: Path, world_size: int) -> None:
    batches = TrainBatches(Windows(open_dataset(tiny_dataset).split("train"), 32), 1, CPU, 8)
    rows = []
    for rank in range(world_size):
        share = range(rank * 8 // world_size, (rank + 1) * 8 // world_size)
        rows += [batch.arguments[0] for batch in batches.micro_batches(40, share, 2)]
    (batch,) = batches.micro_batches(40, range(8), 8)
    inputs, targets = batch.arguments
    assert torch.equal(torch.cat(rows), inputs)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


class AsynchronousCpuCopier(HostToDeviceCopier):
    """Simulates a GPU copier on the CPU."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.is_asynchronous = True
        self.started = 0

    def start(self, count: int, length: int, fill: Any) -> Any:
        assert self.started < 2, "at most one batch in use and one prefetched"
        rows = np.empty((count, length), dtype=np.int64)
        fill(rows)
        self.started += 1
        return SimpleNamespace(receive=lambda: torch.from_numpy(rows))


def test_prefetched_batches_are_used_and_copied_once(tiny_dataset: Path) -> None:
    windows = Windows(open_dataset(tiny_dataset).split("train"), 32)
    prefetching, plain = TrainBatches(windows, 1, CPU, 8), TrainBatches(windows, 1, CPU, 8)
    copier = prefetching._copier = AsynchronousCpuCopier()
    taken = copied = 0
    for position in (0, 8, 16, 80, 88):  # with a jump at 80, as after a rollback
        for actual, expected in zip(
            prefetching.micro_batches(position, range(2, 7), 2),
            plain.micro_batches(position, range(2, 7), 2),
            strict=True,
        ):
            assert all(map(torch.equal, actual.arguments, expected.arguments))
            assert actual.targets == expected.targets
            taken, copied, copier.started = taken + 1, copied + copier.started, 0
    assert copied == taken + 2, "unused: only the batch prefetched last, and the one prefetched before the jump"


def test_rejects_empty_splits(damaged: Path) -> None:
    record = json.loads((damaged / "dataset.json").read_text())
    record["splits"]["train"] = {"tokens": 0, "documents": 0, "shards": []}
    (damaged / "dataset.json").write_text(json.dumps(record))
    with pytest.raises(
        DatasetError, match="the train split has 0 tokens, but a sequence with sequence_length 32 needs 33"
    ):
        open_dataset(damaged).require_sequences(32)


def test_validation_is_a_subset_of_the_split(tiny_dataset: Path) -> None:
    split = open_dataset(tiny_dataset).split("validation")
    full = ValidationBatches(Windows(split, 32), 10**9, CPU)
    assert full.sequences == Windows(split, 32).count
    everything, _ = full.rows(range(full.sequences)).arguments
    stream = torch.from_numpy(split.rows(np.array([0]), full.sequences * 32)[0]).view(-1, 32)
    assert sorted(everything.tolist()) == sorted(stream.tolist())
    some = ValidationBatches(Windows(split, 32), 10, CPU)
    rows, targets = some.rows(range(some.sequences)).arguments
    assert torch.equal(rows, everything[:10])
    assert torch.equal(rows[:, 1:], targets[:, :-1])


def test_document_samples_cover_all_targets_without_mixing_documents(tmp_path: Path) -> None:
    documents = [[1, 2, 3, 0], [0], [4] * 9 + [0], [5, 6, 0], [7, 0], [8, 8, 8, 8, 0], [9, 9]]
    stream = np.array([token for document in documents for token in document], dtype="<u2")
    shards = []
    for number, part in enumerate(np.split(stream, [6, 12])):
        part.tofile(tmp_path / f"{number}.bin")
        shards.append(ShardRecord(file=f"{number}.bin", tokens=part.size, bytes=part.nbytes, blake3="0" * 64))
    samples = Documents(TokenSplit(tmp_path, "uint16", 10, shards), 4, end_of_text_id=0)
    rows = np.empty((samples.count, 5), dtype=np.int64)
    samples.fill(np.arange(samples.count), rows)
    pieces = [row[row != NO_TARGET].tolist() for row in rows]
    expected = [[1, 2, 3, 0], [4] * 5, [4] * 5, [4, 0], [5, 6, 0], [7, 0], [8, 8, 8, 8, 0], [9, 9]]
    assert pieces == expected
    assert samples.targets(np.arange(samples.count)) == sum(len(document) - 1 for document in documents)
    batches = TrainBatches(samples, 1, CPU, 8)
    (batch,) = batches.micro_batches(0, range(8), 8)
    inputs, targets = batch.arguments
    assert inputs.min() >= 0
    assert int((targets != NO_TARGET).sum()) == batch.targets == batches.loss_terms(0).count == 20
    assert torch.equal(inputs[:, 1:][targets[:, :-1] != NO_TARGET], targets[:, :-1][targets[:, :-1] != NO_TARGET])


def test_document_samples_of_a_split_without_an_end_of_text(tmp_path: Path) -> None:
    np.array([1, 2, 3, 4, 5], dtype="<u2").tofile(tmp_path / "0.bin")
    shard = ShardRecord(file="0.bin", tokens=5, bytes=10, blake3="0" * 64)
    samples = Documents(TokenSplit(tmp_path, "uint16", 10, [shard]), 8, end_of_text_id=0)
    rows = np.empty((samples.count, 9), dtype=np.int64)
    samples.fill(np.arange(samples.count), rows)
    assert rows.tolist() == [[1, 2, 3, 4, 5] + [NO_TARGET] * 4]


def test_reading_the_dataset_does_not_grow_anonymous_memory(tmp_path: Path) -> None:
    """The kernel can drop pages of a mapped file; the process must not keep copies of the tokens it has read."""
    np.zeros(16_000_000, dtype="<u2").tofile(tmp_path / "train-0.bin")
    shard = ShardRecord(file="train-0.bin", tokens=16_000_000, bytes=32_000_000, blake3="0" * 64)
    samples = Windows(TokenSplit(tmp_path, "uint16", 10, [shard]), 1000)
    batches = TrainBatches(samples, 1, CPU, 100)

    def anonymous_kib() -> int:
        status = Path("/proc/self/status").read_text().split("RssAnon:")[1]
        return int(status.split()[0])

    for batch in batches.micro_batches(0, range(100), 50):
        del batch
    before = anonymous_kib()
    for position in range(0, samples.count - 100, 100):
        for batch in batches.micro_batches(position, range(100), 50):
            del batch
    assert anonymous_kib() - before < 8_000


@pytest.fixture
def damaged(tiny_dataset: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_dataset, tmp_path / "damaged"))


def test_reports_truncated_and_missing_files(damaged: Path) -> None:
    train, validation = damaged / "train-00000.bin", damaged / "validation-00000.bin"
    train.write_bytes(train.read_bytes()[:-2])
    validation.unlink()
    (damaged / "tokenizer.json").unlink()
    with pytest.raises(DatasetError) as caught:
        open_dataset(damaged)
    assert "train-00000.bin: truncated" in str(caught.value)
    assert "validation-00000.bin: missing" in str(caught.value)
    assert "tokenizer.json: missing" in str(caught.value)


def test_hashes_detect_changed_contents(damaged: Path) -> None:
    train = damaged / "train-00000.bin"
    train.write_bytes(train.read_bytes()[:-2] + b"\1\0")
    (damaged / "tokenizer.json").write_text("{}")
    with pytest.raises(DatasetError) as caught:
        open_dataset(damaged).verify_hashes()
    assert [problem.partition(": hash differs")[0] for problem in caught.value.problems] == [
        str(train),
        str(damaged / "tokenizer.json"),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocabulary_size": 70000}, "vocabulary_size 70000 does not fit uint16"),
        ({"dtype": "int8"}, "dtype"),
        ({"splits": {}}, "no train split"),
        ({"schema_version": 2}, "schema_version"),
    ],
)
def test_rejects_invalid_records(damaged: Path, change: dict[str, object], message: str) -> None:
    record = json.loads((damaged / "dataset.json").read_text())
    (damaged / "dataset.json").write_text(json.dumps({**record, **change}))
    with pytest.raises(DatasetError, match=message):
        open_dataset(damaged)
