"""The damage that the chaos benchmark does to a store must leave a checkpoint to resume from."""

from __future__ import annotations

import random
from pathlib import Path

import torch

from benchmarks.chaos.contents import checkpoints, newest_chunk_file
from tests.training.checkpoint.runs import save, start
from training.checkpoint.storage.directory import DirectoryBackend


def test_only_the_newest_checkpoint_has_the_chunk(tmp_path: Path) -> None:
    """The second tensor has another element size, and therefore its own chunk, which all checkpoints share."""
    store = DirectoryBackend(tmp_path)
    writer = start(store)
    for step in (1, 2, 3):  # retention keeps two
        save(writer, step, {"model/a": torch.full((50,), float(step)), "rng/b": torch.zeros(50, dtype=torch.uint8)})
    found = {newest_chunk_file(store, tmp_path, random.Random(seed)) for seed in range(20)}  # noqa: S311
    assert len(found) == 1
    found.pop().unlink()
    assert [each.step for each in checkpoints(store) if each.problem is None] == [2]
    writer.close()
