"""A fast tier that is a copy of an older one: what a node of another zone makes from a snapshot of the volume."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.training.checkpoint.runs import Hooked, MemoryBackend, manifest, save, start, whole_steps
from tests.training.checkpoint.test_near import Gate, go_on, saved
from training.checkpoint.directory import DirectoryBackend
from training.checkpoint.inspection import Verifier
from training.checkpoint.near import read_record
from training.checkpoint.store import list_checkpoints
from training.checkpoint.tiers import TieredBackend
from training.distributed import Gang

pytestmark = pytest.mark.usefixtures("small_chunks")


def on(volume: Path, durable: MemoryBackend) -> TieredBackend:
    return TieredBackend(DirectoryBackend(volume), durable)


def assert_sound(durable: MemoryBackend, *steps: int) -> None:
    """The durable tier alone has these checkpoints, newest first, every chunk of them whole."""
    assert whole_steps(durable) == list(steps)
    for one in list_checkpoints(durable):
        assert not one.is_whole or not Verifier(durable, lambda _: None).verify(one).problems


def test_copies_that_fall_behind_mislead_nobody_and_harm_nothing(alone: Gang, tmp_path: Path) -> None:
    home, away, durable = tmp_path / "home", tmp_path / "away", MemoryBackend()
    writer = start(on(home, durable))
    for step in (1, 2):
        save(writer, step, saved(step))
    shutil.copytree(home, away)
    for step in (3, 4, 5):
        save(writer, step, saved(step))
    assert_sound(durable, 5, 4)

    for generation, volume, newest in (
        (2, away, 5),
        (3, home, 7),
    ):  # to the other zone, and back to a volume that is now the stale one
        behind = read_record(on(volume, durable), 0)
        assert behind is not None
        found, resumed = go_on(alone, on(volume, durable), generation)
        assert (found.step, resumed.is_durable) == (newest, True)
        assert found.model.weight[0, 0].item() == newest
        writer = start(on(volume, durable), generation)
        for step in (newest + 1, newest + 2):
            save(writer, step, saved(step))
        assert_sound(durable, newest + 2, newest + 1)
        assert set(DirectoryBackend(volume).keys("chunks/")) <= set(durable.keys("chunks/")), "what is old is tidied"


def test_a_last_save_that_is_durable_only_is_newer_than_what_is_near(alone: Gang, tmp_path: Path) -> None:
    """A node that stops leaves no copy of its last save near; what is near is of the save before."""
    durable = MemoryBackend()
    writer = start(on(tmp_path, durable))
    for step in (1, 2):
        save(writer, step, saved(step))
    writer.begin(saved(3), {}, manifest(3), "stop", node_leaves=True)
    writer.wait()
    found, resumed = go_on(alone, on(tmp_path, durable))
    assert (found.step, resumed.is_durable) == (3, True)


@pytest.mark.parametrize("went_on", [False, True])
def test_a_copy_has_a_save_that_is_nowhere_else_only_until_the_run_went_on(
    alone: Gang, tmp_path: Path, went_on: bool
) -> None:
    """The snapshot is taken while step 2 is on its way to the durable tier, which has step 1."""
    home, away, durable, gate = tmp_path / "home", tmp_path / "away", MemoryBackend(), Gate()
    gate.open.set()
    writer = start(TieredBackend(DirectoryBackend(home), Hooked(durable, gate)))
    save(writer, 1, saved(1))
    gate.open.clear()
    gate.reached.clear()
    writer.begin(saved(2), {}, manifest(2), "interval")
    assert gate.reached.wait(60), "the durable tier is reached when all is near"
    shutil.copytree(home, away)
    if not went_on:
        writer.cancel()
    gate.open.set()
    writer.wait()
    if went_on:
        save(writer, 3, saved(3))

    found, resumed = go_on(alone, on(away, durable))
    assert (found.step, resumed.is_durable) == ((3, True) if went_on else (2, False))
    assert found.model.weight[0, 0].item() == found.step
    save(start(on(away, durable), generation=3), 4, saved(4))
    assert_sound(durable, 4, 3 if went_on else 1)
