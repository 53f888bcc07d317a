"""The order of samples, reading token ranges, and what is refused."""

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
from training.data.lane import Lane
from training.data.order import SampleOrder, permuted, sample_order
from training.data.samples import NO_TARGET, Documents, Windows
from training.errors import DatasetError

CPU = torch.device("cpu")


@settings(deadline=None)
@given(size=st.integers(1, 3000), key=st.binary(max_size=8))
def test_permutation_has_every_index_once(size: int, key: bytes) -> None:
    result = permuted(np.arange(size, dtype=np.uint64), size, key)
    assert np.array_equal(np.sort(result), np.arange(size))


def test_permutation_is_not_an_obvious_one() -> None:
    result = permuted(np.arange(10000, dtype=np.uint64), 10000, b"key").astype(np.int64)
    assert abs(np.corrcoef(np.arange(10000), result)[0, 1]) < 0.05
    assert np.count_nonzero(np.diff(result) == 1) < 10
    assert not np.array_equal(result, permuted(np.arange(10000, dtype=np.uint64), 10000, b"other"))


@settings(max_examples=50, deadline=None)
@given(position=st.integers(0, 5000), count=st.integers(0, 300), cut=st.integers(0, 300), samples=st.integers(1, 200))
def test_order_is_a_function_of_the_position(position: int, count: int, cut: int, samples: int) -> None:
    whole = sample_order(position, count, samples, seed=3)
    cut = min(cut, count)
    parts = [sample_order(position, cut, samples, seed=3), sample_order(position + cut, count - cut, samples, seed=3)]
    assert np.array_equal(whole, np.concatenate(parts))


def test_blocks_change_nothing_of_the_order() -> None:
    order = SampleOrder(samples=700, seed=3)
    for position, count in ((0, 10), (4090, 10), (8000, 9000), (5, 3), (4096, 4096), (70, 0)):
        assert np.array_equal(order.at(position, count), sample_order(position, count, 700, seed=3))


def test_an_epoch_has_every_sample_once_and_the_next_another_order() -> None:
    first, second = sample_order(0, 97, 97, seed=1), sample_order(97, 97, 97, seed=1)
    assert sorted(first) == sorted(second) == list(range(97))
    assert first.tolist() != second.tolist()
    assert first.tolist() != sample_order(0, 97, 97, seed=2).tolist()


def test_rows_run_over_the_borders_of_shards(tmp_path: Path) -> None:
    stream = np.arange(100, dtype="<u2")
    shards = []
    for number, part in enumerate(np.split(stream, [7, 9, 60])):
        part.tofile(tmp_path / f"train-{number}.bin")
        shards.append(ShardRecord(file=f"train-{number}.bin", tokens=part.size, bytes=part.nbytes, blake3="0" * 64))
    split = TokenSplit(tmp_path, "uint16", 100, shards)
    starts = np.array([0, 5, 6, 8, 59, 85])
    assert split.rows(starts, 15).tolist() == [list(range(start, start + 15)) for start in starts]
    assert split.sequences(33) == 3
    assert split.sequences(100) == 0
    with pytest.raises(DatasetError, match="token id 99 is not below vocabulary_size 50"):
        TokenSplit(tmp_path, "uint16", 50, shards).rows(np.array([85]), 15)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_every_world_size_sees_the_same_global_batch(tiny_dataset: Path, world_size: int) -> None:
    batches = TrainBatches(Windows(open_dataset(tiny_dataset).split("train"), 32), 1, CPU, 8)
    rows = []
    for rank in range(world_size):
        share = range(rank * 8 // world_size, (rank + 1) * 8 // world_size)
        rows += [tokens for tokens, _ in batches.micro_batches(40, share, 2)]
    ((whole, targets),) = batches.micro_batches(40, range(8), 8)
    assert torch.equal(torch.cat(rows), whole)
    assert torch.equal(whole[:, 1:], targets[:, :-1])


class AheadLane(Lane):
    """A CPU lane that is treated as a GPU's: batches are sent before they are asked for."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.is_ahead = True
        self.sent = 0

    def send(self, count: int, length: int, fill: Any) -> Any:
        assert self.sent < 2, "one in use, one on its way"
        rows = np.empty((count, length), dtype=np.int64)
        fill(rows)
        self.sent += 1
        return SimpleNamespace(receive=lambda: torch.from_numpy(rows))


def test_batches_that_are_sent_ahead_are_those_asked_for_and_are_sent_once(tiny_dataset: Path) -> None:
    windows = Windows(open_dataset(tiny_dataset).split("train"), 32)
    ahead, plain = TrainBatches(windows, 1, CPU, 8), TrainBatches(windows, 1, CPU, 8)
    lane = ahead._lane = AheadLane()
    taken = sent = 0
    for position in (0, 8, 16, 80, 88):  # and at 80 a jump, as after a roll-back
        for ours, expected in zip(
            ahead.micro_batches(position, range(2, 7), 2), plain.micro_batches(position, range(2, 7), 2), strict=True
        ):
            assert torch.equal(ours[0], expected[0]) and torch.equal(ours[1], expected[1])
            taken, sent, lane.sent = taken + 1, sent + lane.sent, 0
    assert sent == taken + 2, "nothing twice but the one ahead of the last, and the one that the jump left behind"


def test_empty_splits_are_refused(damaged: Path) -> None:
    record = json.loads((damaged / "dataset.json").read_text())
    record["splits"]["train"] = {"tokens": 0, "documents": 0, "shards": []}
    (damaged / "dataset.json").write_text(json.dumps(record))
    with pytest.raises(DatasetError, match="the train split has 0 tokens, but one sequence of context 32 needs 33"):
        open_dataset(damaged).require_sequences(32)


def test_validation_is_a_sample_of_the_whole_split_and_never_more(tiny_dataset: Path) -> None:
    split = open_dataset(tiny_dataset).split("validation")
    whole = ValidationBatches(Windows(split, 32), 10**9, CPU)
    assert whole.sequences == split.sequences(32)
    everything, _ = whole.rows(range(whole.sequences))
    stream = torch.from_numpy(split.rows(np.array([0]), whole.sequences * 32)[0]).view(-1, 32)
    assert sorted(everything.tolist()) == sorted(stream.tolist())
    some = ValidationBatches(Windows(split, 32), 10, CPU)
    rows, targets = some.rows(range(some.sequences))
    assert torch.equal(rows, everything[:10])
    assert torch.equal(rows[:, 1:], targets[:, :-1])


def test_documents_apart_lose_no_target_and_hold_no_neighbour(tmp_path: Path) -> None:
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
    ((inputs, targets),) = batches.micro_batches(0, range(8), 8)
    assert inputs.min() >= 0
    assert int((targets != NO_TARGET).sum()) == batches.loss_terms(0) == 20
    assert torch.equal(inputs[:, 1:][targets[:, :-1] != NO_TARGET], targets[:, :-1][targets[:, :-1] != NO_TARGET])


def test_reading_the_dataset_takes_no_memory_of_its_own(tmp_path: Path) -> None:
    """Pages of a mapped file are the system's to drop; what a process must not do is keep what it has read."""
    np.zeros(16_000_000, dtype="<u2").tofile(tmp_path / "train-0.bin")
    shard = ShardRecord(file="train-0.bin", tokens=16_000_000, bytes=32_000_000, blake3="0" * 64)
    samples = Windows(TokenSplit(tmp_path, "uint16", 10, [shard]), 1000)
    batches = TrainBatches(samples, 1, CPU, 100)

    def own_kib() -> int:
        status = Path("/proc/self/status").read_text().split("RssAnon:")[1]
        return int(status.split()[0])

    for batch in batches.micro_batches(0, range(100), 50):
        del batch
    before = own_kib()
    for position in range(0, samples.count - 100, 100):
        for batch in batches.micro_batches(position, range(100), 50):
            del batch
    assert own_kib() - before < 8_000


@pytest.fixture
def damaged(tiny_dataset: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_dataset, tmp_path / "damaged"))


def test_truncated_missing_and_changed_files(damaged: Path) -> None:
    train, validation = damaged / "train-00000.bin", damaged / "validation-00000.bin"
    train.write_bytes(train.read_bytes()[:-2])
    validation.unlink()
    (damaged / "tokenizer.json").unlink()
    with pytest.raises(DatasetError) as caught:
        open_dataset(damaged)
    assert "train-00000.bin: is truncated" in str(caught.value)
    assert "validation-00000.bin: is missing" in str(caught.value)
    assert "tokenizer.json: is missing" in str(caught.value)


def test_changed_contents_are_found_by_their_hashes(damaged: Path) -> None:
    train = damaged / "train-00000.bin"
    train.write_bytes(train.read_bytes()[:-2] + b"\1\0")
    (damaged / "tokenizer.json").write_text("{}")
    with pytest.raises(DatasetError) as caught:
        open_dataset(damaged).verify_hashes()
    assert len(caught.value.problems) == 2
    assert "another tokenizer" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vocabulary_size": 70000}, "vocabulary_size 70000 does not fit uint16"),
        ({"dtype": "int8"}, "dtype"),
        ({"splits": {}}, "has no train split"),
        ({"schema_version": 2}, "schema_version"),
    ],
)
def test_records_that_cannot_be(damaged: Path, change: dict[str, object], words: str) -> None:
    record = json.loads((damaged / "dataset.json").read_text())
    (damaged / "dataset.json").write_text(json.dumps({**record, **change}))
    with pytest.raises(DatasetError, match=words):
        open_dataset(damaged)
