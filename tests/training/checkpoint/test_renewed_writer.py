"""Writers of a gang that is formed again: one that is idle saves for the next generation."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.training.checkpoint.runs import assert_holds, manifest, save, state
from training.checkpoint.log import LogWriter
from training.checkpoint.save.executors import Placement
from training.checkpoint.save.rank_save import SavePlan
from training.checkpoint.save.writer import CheckpointWriter
from training.checkpoint.storage.directory import DirectoryBackend
from training.checkpoint.store import checkpoint_entries

PLACEMENTS = [None, Placement(1, frozenset(), 0)]


class Store:
    """A gang's key-value store."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def check(self, keys: list[str]) -> bool:
        return self.values.keys() >= set(keys)


def plan(log: LogWriter, rank: int = 0, world_size: int = 1) -> SavePlan:
    return SavePlan(rank=rank, world_size=world_size, fence=log.fence, secret="s", threads=1)  # noqa: S106


@pytest.mark.parametrize("placement", PLACEMENTS, ids=["thread", "process"])
def test_saves_for_the_next_generation_with_a_rank_that_has_never_saved(
    placement: Placement | None, tmp_path: Path
) -> None:
    backend = DirectoryBackend(tmp_path)
    log = LogWriter(backend, 1)
    writer = CheckpointWriter(backend, plan(log), log, placement, Store())
    save(writer, 1)
    save(writer, 2)
    assert writer.release()
    log = LogWriter(backend, 2)
    assert writer.renew(plan(log, 0, 2), log, Store())
    newcomer = CheckpointWriter(backend, plan(log, 1, 2), None, placement, Store())
    for each in (writer, newcomer):
        each.begin(state(3), {}, manifest(3, world_size=2), "interval")
    for each in (writer, newcomer):
        assert each.wait(time.monotonic() + 60)
        assert each.error is None
        each.close()
    entries = list(checkpoint_entries(backend))
    assert [(entry.generation, entry.step) for entry in entries] == [(2, 3), (1, 2), (1, 1)]
    assert_holds(backend, entries[0])


def test_a_writer_whose_save_is_in_flight_is_abandoned(tmp_path: Path) -> None:
    backend = DirectoryBackend(tmp_path)
    log = LogWriter(backend, 1)
    writer = CheckpointWriter(backend, plan(log, 0, 2), log, None, Store())  # waits for the other rank's part
    removed: list[Any] = []
    writer.on_abandon = lambda: removed.append(writer)
    writer.begin(state(1), {}, manifest(1, world_size=2), "interval")
    assert writer.is_busy
    assert not writer.release() and not writer.release()
    assert removed == [writer]


def test_a_writer_whose_process_has_died_is_abandoned(tmp_path: Path) -> None:
    backend = DirectoryBackend(tmp_path)
    log = LogWriter(backend, 1)
    writer = CheckpointWriter(backend, plan(log), log, PLACEMENTS[1], Store())
    save(writer, 1)
    process = writer._executor._process  # type: ignore[attr-defined]
    process.kill()
    process.wait()
    log = LogWriter(backend, 2)
    assert writer.release()
    assert not writer.renew(plan(log), log, Store())
    assert not writer.release()
