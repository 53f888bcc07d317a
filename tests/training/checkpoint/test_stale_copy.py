"""A local tier that is an outdated copy: a node in another zone creates its volume from a snapshot."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.training.checkpoint.runs import Hooked, MemoryBackend, complete_steps, manifest, save, start
from tests.training.checkpoint.test_local_tier import Gate, restart, saved
from training.checkpoint.save.local_tier import read_record
from training.checkpoint.storage.directory import DirectoryBackend
from training.checkpoint.storage.tiers import TieredBackend
from training.checkpoint.store import list_checkpoints
from training.checkpoint.tool.inspection import Verifier
from training.process.distributed import Gang

pytestmark = pytest.mark.usefixtures("small_chunks")


def on(volume: Path, durable: MemoryBackend) -> TieredBackend:
    return TieredBackend(DirectoryBackend(volume), durable)


def assert_undamaged(durable: MemoryBackend, *steps: int) -> None:
    """Assert that the durable tier has these checkpoints, newest first, and all of their chunks are undamaged."""
    assert complete_steps(durable) == list(steps)
    for one in list_checkpoints(durable):
        assert not one.is_complete or not Verifier(durable, lambda _: None).verify(one).problems


def test_outdated_copies_are_ignored(alone: Gang, tmp_path: Path) -> None:
    home, away, durable = tmp_path / "home", tmp_path / "away", MemoryBackend()
    writer = start(on(home, durable))
    for step in (1, 2):
        save(writer, step, saved(step))
    shutil.copytree(home, away)
    for step in (3, 4, 5):
        save(writer, step, saved(step))
    assert_undamaged(durable, 5, 4)

    for generation, volume, newest in (
        (2, away, 5),
        (3, home, 7),
    ):  # to the other zone, and back to a volume that is now outdated
        behind = read_record(on(volume, durable), 0)
        assert behind is not None
        found, resumed = restart(alone, on(volume, durable), generation)
        assert (found.step, resumed.is_durable) == (newest, True)
        assert found.model.weight[0, 0].item() == newest
        writer = start(on(volume, durable), generation)
        for step in (newest + 1, newest + 2):
            save(writer, step, saved(step))
        assert_undamaged(durable, newest + 2, newest + 1)
        assert set(DirectoryBackend(volume).keys("chunks/")) <= set(durable.keys("chunks/")), "old chunks are deleted"


def test_last_save_that_skipped_the_local_tier_is_newer(alone: Gang, tmp_path: Path) -> None:
    """A terminating node does not write its last save to the local tier, which still has the preceding save."""
    durable = MemoryBackend()
    writer = start(on(tmp_path, durable))
    for step in (1, 2):
        save(writer, step, saved(step))
    writer.begin(saved(3), {}, manifest(3), "stop", skip_local_tier=True)
    writer.wait()
    found, resumed = restart(alone, on(tmp_path, durable))
    assert (found.step, resumed.is_durable) == (3, True)


@pytest.mark.parametrize("run_continued", [False, True])
def test_copy_with_an_uncommitted_save_counts_until_the_run_continues(
    alone: Gang, tmp_path: Path, run_continued: bool
) -> None:
    """The snapshot is taken while step 2 is being copied to the durable tier, which has step 1."""
    home, away, durable, gate = tmp_path / "home", tmp_path / "away", MemoryBackend(), Gate()
    gate.open.set()
    writer = start(TieredBackend(DirectoryBackend(home), Hooked(durable, gate)))
    save(writer, 1, saved(1))
    gate.open.clear()
    gate.reached.clear()
    writer.begin(saved(2), {}, manifest(2), "interval")
    assert gate.reached.wait(60), "writing to the durable tier begins after the local tier is complete"
    shutil.copytree(home, away)
    if not run_continued:
        writer.cancel()
    gate.open.set()
    writer.wait()
    if run_continued:
        save(writer, 3, saved(3))

    found, resumed = restart(alone, on(away, durable))
    assert (found.step, resumed.is_durable) == ((3, True) if run_continued else (2, False))
    assert found.model.weight[0, 0].item() == found.step
    save(start(on(away, durable), generation=3), 4, saved(4))
    assert_undamaged(durable, 4, 3 if run_continued else 1)
