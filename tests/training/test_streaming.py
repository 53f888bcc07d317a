"""Streaming from S3: order, limit on disk space, and resumption of a killed run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.conftest import Gangs
from training.checkpoint.storage.urls import open_backend
from training.data import streaming
from training.data.batches import TrainBatches
from training.data.dataset import DatasetRecord, open_dataset
from training.data.samples import Windows
from training.data.streaming import BlockOrder, CachedWindows, RemoteSplit, StreamedOrder, StreamedWindows
from training.errors import ConfigurationError, DatasetError

CONTEXT = 16
CPU = torch.device("cpu")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "BLOCK_TOKENS", 8 * CONTEXT)
    monkeypatch.setattr(streaming, "GROUP_BLOCKS", 4)


@pytest.fixture
def url(bucket: str, tiny_dataset: Path) -> str:
    backend = open_backend(f"s3://{bucket}/datasets/tiny")
    for path in tiny_dataset.iterdir():
        backend.put(path.name, path.read_bytes())
    return backend.url


def remote(url: str, dataset: Path, split: Any = "train") -> RemoteSplit:
    backend = open_backend(url)
    assert isinstance(backend, streaming.RangeReader)
    return RemoteSplit(backend, open_dataset(dataset).record, split)


@settings(max_examples=60, deadline=None)
@given(samples=st.integers(1, 300), block=st.integers(1, 20), position=st.integers(0, 900), count=st.integers(0, 50))
def test_order_is_a_permutation_per_epoch_and_depends_only_on_the_position(
    samples: int, block: int, position: int, count: int
) -> None:
    epoch = BlockOrder(samples, block, 1).at(samples, samples)
    assert sorted(epoch.tolist()) == list(range(samples))
    order = BlockOrder(samples, block, 1)
    assert np.array_equal(
        order.at(position, count), np.concatenate([order.at(position + n, 1) for n in range(count)] or [[]])
    )


def test_group_shuffles_the_windows_of_its_blocks(small: None) -> None:
    order = BlockOrder(8 * 22 + 3, 8, 1)
    position, groups = 0, []
    while position < order.samples:
        blocks, group = order.group_at(position)
        assert group.start == position and group.stop <= order.samples
        numbers = order.at(position, len(group))
        assert set((numbers // 8).tolist()) == set(blocks)
        assert not np.array_equal(numbers, np.sort(numbers))
        groups.append(blocks)
        position = group.stop
    assert sorted(block for blocks in groups for block in blocks) == list(range(23))


def test_streamed_windows_match_the_shards_within_the_disk_limit(
    small: None, url: str, tiny_dataset: Path, tmp_path: Path
) -> None:
    split = remote(url, tiny_dataset)
    block_bytes = (8 * CONTEXT + 1) * 2
    max_bytes = 12 * block_bytes
    windows = StreamedWindows(split, CONTEXT, tmp_path / "blocks", max_bytes)
    order = StreamedOrder(windows, 1, deletes=True)
    batches = TrainBatches(windows, 1, CPU, 8, order)
    local = TrainBatches(
        Windows(open_dataset(tiny_dataset).split("train"), CONTEXT), 1, CPU, 8, BlockOrder(windows.count, 8, 1)
    )
    assert windows.count > 4 * 8 * 8, "several groups"
    for position in range(0, windows.count + 40, 8):
        for actual, expected in zip(
            batches.micro_batches(position, range(8), 4), local.micro_batches(position, range(8), 4), strict=True
        ):
            assert torch.equal(actual.arguments[0], expected.arguments[0])
        on_disk = sum(path.stat().st_size for path in (tmp_path / "blocks").glob("*.block"))
        assert on_disk <= max_bytes
    with pytest.raises(ConfigurationError, match="data.stream_cache_gib: .* raise it"):
        StreamedWindows(split, CONTEXT, tmp_path / "blocks", max_bytes - 1)


def test_validation_windows_are_cached(url: str, tiny_dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = CachedWindows(remote(url, tiny_dataset, "validation"), CONTEXT)
    expected = Windows(open_dataset(tiny_dataset).split("validation"), CONTEXT)
    numbers = np.array([5, 0, 9])
    rows, again, correct = (np.empty((3, CONTEXT + 1), dtype=np.int64) for _ in range(3))
    cached.fill(numbers, rows)
    monkeypatch.setattr(cached, "_split", None)
    cached.fill(numbers, again)
    expected.fill(numbers, correct)
    assert np.array_equal(rows, correct) and np.array_equal(again, correct)


def test_rejects_shards_that_differ_from_the_record(url: str, tiny_dataset: Path) -> None:
    split = remote(url, tiny_dataset)
    backend = open_backend(url)
    content = (tiny_dataset / "train-00000.bin").read_bytes()
    backend.put("train-00000.bin", content[:-2])
    with pytest.raises(DatasetError, match="train-00000.bin: shorter than dataset.json specifies"):
        split.read(split.tokens - 10, split.tokens)
    backend.put("train-00000.bin", content[:-2] + b"\xff\xff")
    with pytest.raises(DatasetError, match="token id 65535: must be below vocabulary_size 300"):
        split.read(split.tokens - 10, split.tokens)


@pytest.fixture
def staged(tiny_dataset: Path, tmp_path: Path) -> Iterator[Path]:
    """Contents of a node that streams: the record without shards."""
    directory = tmp_path / "staged"
    directory.mkdir()
    shutil.copy(tiny_dataset / "dataset.json", directory)
    yield directory


def test_killed_stream_resumes_bit_identically_on_two_ranks(
    gangs: Gangs, url: str, staged: Path, s3_environment: dict[str, str], tiny_config: dict[str, Any]
) -> None:
    config = {**tiny_config, "steps": 30, "data": {"stream_cache_gib": 0.1}}
    options: dict[str, Any] = {"dataset": staged, "dataset_url": url, "environment": s3_environment}
    expected = gangs.finish("expected", config, 2, checkpoints=str(gangs._root / "expected-store"), **options)
    killed = gangs.start("killed", config, 2, **options)
    killed.wait_for_step(6)
    killed.kill()
    killed.committed_steps()
    resumed = gangs.finish("resumed", config, 2, generation=2, **options)
    losses = resumed.losses()
    assert losses and min(losses) > 1
    assert losses == {step: loss for step, loss in expected.losses().items() if step in losses}
    assert list((staged / "blocks").glob("*/train-*.block"))


def test_streaming_requires_the_dataset_url(gangs: Gangs, staged: Path, tiny_config: dict[str, Any]) -> None:
    run = gangs.start("run", {**tiny_config, "data": {"stream_cache_gib": 0.1}}, dataset=staged)
    assert run.wait() == [78]
    assert "requires the dataset's URL; pass --dataset-url" in json.dumps(run.outcomes())


def test_rejects_a_compressed_dataset(url: str, tiny_dataset: Path) -> None:
    record = json.loads((tiny_dataset / "dataset.json").read_text())
    record["splits"]["train"]["shards"][0]["encoding"] = "zstd"
    backend = open_backend(url)
    assert isinstance(backend, streaming.RangeReader)
    with pytest.raises(DatasetError, match="cannot stream a compressed dataset"):
        RemoteSplit(backend, DatasetRecord.model_validate(record), "train")
