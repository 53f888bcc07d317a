"""Tokens out of S3 while training goes on: the order, the bound on disk, and a run that is killed and resumed."""

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
from training.checkpoint.backend import open_backend
from training.data import streaming
from training.data.batches import TrainBatches
from training.data.dataset import DatasetRecord, open_dataset
from training.data.samples import Windows
from training.data.streaming import BlockOrder, KeptWindows, RemoteSplit, StreamedOrder, StreamedWindows
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
def test_order_has_every_sample_once_an_epoch_and_is_a_function_of_the_position(
    samples: int, block: int, position: int, count: int
) -> None:
    epoch = BlockOrder(samples, block, 1).at(samples, samples)
    assert sorted(epoch.tolist()) == list(range(samples))
    order = BlockOrder(samples, block, 1)
    assert np.array_equal(
        order.at(position, count), np.concatenate([order.at(position + n, 1) for n in range(count)] or [[]])
    )


def test_a_group_uses_its_blocks_alone_and_mixes_them(small: None) -> None:
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


def test_streamed_windows_are_those_of_the_shards_within_the_bound(
    small: None, url: str, tiny_dataset: Path, tmp_path: Path
) -> None:
    split = remote(url, tiny_dataset)
    block_bytes = (8 * CONTEXT + 1) * 2
    most_bytes = 12 * block_bytes
    windows = StreamedWindows(split, CONTEXT, tmp_path / "blocks", most_bytes)
    order = StreamedOrder(windows, 1, deletes=True)
    batches = TrainBatches(windows, 1, CPU, 8, order)
    local = TrainBatches(
        Windows(open_dataset(tiny_dataset).split("train"), CONTEXT), 1, CPU, 8, BlockOrder(windows.count, 8, 1)
    )
    assert windows.count > 4 * 8 * 8, "several groups"
    for position in range(0, windows.count + 40, 8):
        for (ours, _), (expected, _) in zip(
            batches.micro_batches(position, range(8), 4), local.micro_batches(position, range(8), 4), strict=True
        ):
            assert torch.equal(ours, expected)
        kept = sum(path.stat().st_size for path in (tmp_path / "blocks").glob("*.block"))
        assert kept <= most_bytes
    with pytest.raises(ConfigurationError, match="data.stream_cache_gib: .* raise it"):
        StreamedWindows(split, CONTEXT, tmp_path / "blocks", most_bytes - 1)


def test_validation_windows_are_read_once(url: str, tiny_dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptWindows(remote(url, tiny_dataset, "validation"), CONTEXT)
    expected = Windows(open_dataset(tiny_dataset).split("validation"), CONTEXT)
    numbers = np.array([5, 0, 9])
    rows, again, right = (np.empty((3, CONTEXT + 1), dtype=np.int64) for _ in range(3))
    kept.fill(numbers, rows)
    monkeypatch.setattr(kept, "_split", None)
    kept.fill(numbers, again)
    expected.fill(numbers, right)
    assert np.array_equal(rows, right) and np.array_equal(again, right)


def test_shards_that_are_not_those_of_the_record(url: str, tiny_dataset: Path) -> None:
    split = remote(url, tiny_dataset)
    backend = open_backend(url)
    content = (tiny_dataset / "train-00000.bin").read_bytes()
    backend.put("train-00000.bin", content[:-2])
    with pytest.raises(DatasetError, match="train-00000.bin: is shorter than dataset.json says"):
        split.read(split.tokens - 10, split.tokens)
    backend.put("train-00000.bin", content[:-2] + b"\xff\xff")
    with pytest.raises(DatasetError, match="token id 65535 is not below vocabulary_size 300"):
        split.read(split.tokens - 10, split.tokens)


@pytest.fixture
def staged(tiny_dataset: Path, tmp_path: Path) -> Iterator[Path]:
    """What is on a node that streams: the record, and no shard."""
    directory = tmp_path / "staged"
    directory.mkdir()
    shutil.copy(tiny_dataset / "dataset.json", directory)
    yield directory


def test_killed_stream_resumes_with_the_same_bits_on_two_ranks(
    gangs: Gangs, url: str, staged: Path, s3_environment: dict[str, str], tiny_config: dict[str, Any]
) -> None:
    config = {**tiny_config, "steps": 30, "data": {"stream_cache_gib": 0.1}}
    options: dict[str, Any] = {"dataset": staged, "dataset_url": url, "environment": s3_environment}
    whole = gangs.finish("whole", config, 2, checkpoints=str(gangs._root / "whole-store"), **options)
    broken = gangs.start("broken", config, 2, **options)
    broken.wait_for_step(6)
    broken.kill()
    broken.committed_steps()
    resumed = gangs.finish("resumed", config, 2, generation=2, **options)
    losses = resumed.losses()
    assert losses and min(losses) > 1
    assert losses == {step: loss for step, loss in whole.losses().items() if step in losses}
    assert list((staged / "blocks").glob("*/train-*.block"))


def test_stream_without_an_address(gangs: Gangs, staged: Path, tiny_config: dict[str, Any]) -> None:
    run = gangs.start("run", {**tiny_config, "data": {"stream_cache_gib": 0.1}}, dataset=staged)
    assert run.wait() == [78]
    assert "give --dataset-url" in json.dumps(run.outcomes())


def test_a_compressed_dataset_is_not_streamed(url: str, tiny_dataset: Path) -> None:
    record = json.loads((tiny_dataset / "dataset.json").read_text())
    record["splits"]["train"]["shards"][0]["encoding"] = "zstd"
    backend = open_backend(url)
    assert isinstance(backend, streaming.RangeReader)
    with pytest.raises(DatasetError, match="its files are compressed"):
        RemoteSplit(backend, DatasetRecord.model_validate(record), "train")
