"""Every operation of a save is a possible end of its process; each is tried, and what is left has to be sound.

Stores write whole objects or nothing. A torn object stands for a disk that promised more than it kept.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.training.checkpoint.runs import (
    Hooked,
    MemoryBackend,
    assert_holds,
    manifest,
    newest,
    save,
    start,
    state,
    whole_steps,
)
from training.checkpoint.backend import Backend
from training.checkpoint.directory import TEMPORARY, DirectoryBackend
from training.checkpoint.gc import GarbageCollector
from training.checkpoint.inspection import Verifier
from training.checkpoint.retention import Retention
from training.checkpoint.saving import SavePlan
from training.checkpoint.selection import Selected
from training.checkpoint.store import list_checkpoints
from training.checkpoint.transfer import plan_transfer, transfer
from training.checkpoint.writer import CheckpointWriter
from training.errors import PeerError, StoreError

pytestmark = pytest.mark.usefixtures("small_chunks")


class Killed(StoreError):
    """What a dead process does from then on: nothing."""


class Dying:
    """Ends at the nth operation: before it, after it, or in the middle of what it writes."""

    def __init__(self, store: MemoryBackend, number: int, manner: str) -> None:
        self._store = store
        self._number = number
        self._manner = manner
        self.reached = False

    def __call__(self, at: int, name: str, key: str) -> None:
        if at < self._number:
            return
        if at > self._number:
            raise Killed("dead")
        self.reached = True
        if self._manner == "before":
            raise Killed("dies before it")

    def backend(self) -> Backend:
        hooked = Hooked(self._store, self)
        if self._manner != "before":
            for name in ("put", "create", "delete"):
                setattr(hooked, name, self._ending(hooked, getattr(hooked, name), name))
        return hooked

    def _ending(self, hooked: Hooked, operation: Callable[..., None], name: str) -> Callable[..., None]:
        def run(key: Any, *content: bytes) -> None:
            if hooked.operations + 1 == self._number and self._manner == "torn" and content:
                content = (content[0][: len(content[0]) // 2],)
            operation(key, *content)
            if self.reached:
                raise Killed(f"dies after it ({name})")

        return run


@pytest.fixture(scope="module")
def trained(small_chunks: None) -> MemoryBackend:
    store = MemoryBackend()
    writer = start(store, generation=1)
    for step in (1, 2, 3):
        save(writer, step)
    return store


def die_everywhere(store: MemoryBackend, manner: str, life: Callable[[Backend], None]) -> list[MemoryBackend]:
    """What is left of copies of the store after a life that ends at each of its operations."""
    remains = []
    for number in count(1):
        copy = store.copy()
        dying = Dying(copy, number, manner)
        try:
            life(dying.backend())
        except StoreError as error:
            assert isinstance(error, (Killed, PeerError)), error
        if not dying.reached:
            break
        remains.append(copy)
    return remains


def assert_sound(store: Backend, steps: set[int]) -> int:
    """The newest whole checkpoint is one of these, and all that seem whole are, bit for bit."""
    whole = [listed.entry for listed in list_checkpoints(store) if listed.is_whole]
    assert whole[0].step in steps
    assert len(whole) >= 2
    for entry in whole:
        assert_holds(store, entry)
    return whole[0].step or 0


def assert_goes_on(store: Backend) -> None:
    writer = start(store, generation=9)
    save(writer, 8)
    save(writer, 9)
    assert_sound(store, {9})
    assert whole_steps(store) == [9, 8]


@pytest.mark.parametrize("manner", ["before", "after", "torn"])
def test_a_gang_may_die_anywhere_between_its_start_and_the_end_of_its_save(trained: MemoryBackend, manner: str) -> None:
    remains = die_everywhere(trained, manner, lambda backend: save(start(backend, generation=2), 4))
    newest_steps = [assert_sound(store, {3, 4}) for store in remains]
    assert set(newest_steps) == {3, 4}
    assert newest_steps == sorted(newest_steps), "once committed, it stays"
    assert len(remains) > 15
    for store in remains:
        assert_goes_on(store)


@pytest.mark.parametrize("manner", ["before", "after", "torn"])
def test_two_ranks_may_die_anywhere(trained: MemoryBackend, manner: str) -> None:
    def life(backend: Backend) -> None:
        first = start(backend, generation=2, world_size=2)
        second = CheckpointWriter(backend, SavePlan(rank=1, world_size=2, epoch=4, keep_last=2, threads=1), log=None)
        # One after the other, so that operations have the same numbers in every life.
        second.begin(state(4), {}, manifest(4, 2), "interval")
        second.wait()
        first.begin(state(4), {}, manifest(4, 2), "interval")
        if second.error is not None:
            first.cancel()
        first.wait()
        if second.error or first.error:
            raise Killed("dead")

    remains = die_everywhere(trained, manner, life)
    assert {assert_sound(store, {3, 4}) for store in remains} == {3, 4}
    for store in remains:
        assert_goes_on(store)


@pytest.mark.parametrize("manner", ["before", "after"])
def test_a_collection_may_die_anywhere(trained: MemoryBackend, manner: str) -> None:
    store = trained.copy()
    writer = start(store, generation=2, keep_last=9)
    for step in (4, 5, 6):
        save(writer, step)
    remains = die_everywhere(store, manner, lambda backend: _collect(backend, 4))
    assert len(remains) > 8
    for left in remains:
        assert assert_sound(left, {6}) == 6
        _collect(left, 4)
        assert whole_steps(left) == [6, 5]
        assert_goes_on(left)


def _collect(backend: Backend, epoch: int) -> None:
    GarbageCollector(backend, Retention(2)).collect(epoch)


@pytest.mark.parametrize("manner", ["before", "after"])
def test_a_copy_may_break_off_anywhere_and_go_on(trained: MemoryBackend, manner: str) -> None:
    wanted = [
        Selected(trained, listed.entry, listed.manifest)
        for listed in list_checkpoints(trained)
        if listed.is_whole and listed.manifest is not None
    ][::-1]

    def life(backend: Backend) -> None:
        transfer(plan_transfer(wanted, backend), backend, lambda _: None)

    for left in die_everywhere(MemoryBackend(), manner, life):
        for listed in list_checkpoints(left):
            assert listed.is_whole
            assert_holds(left, listed.entry)
        life(left)
        assert whole_steps(left)[0] == 3
        assert_holds(left, newest(left))


class _Power:
    """Cuts off a directory store at the nth call of the operating system that changes a disk."""

    CALLS = ("fsync", "link", "replace", "unlink", "mkdir")

    def __init__(self, patch: pytest.MonkeyPatch, number: int) -> None:
        self._left = number
        self.is_cut = False
        for name in self.CALLS:
            patch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left <= 0:
                self.is_cut = True
                raise OSError(5, "the power is cut")
            return call(*arguments, **options)

        return run


def test_the_power_may_be_cut_at_every_call_of_a_directory_store(tmp_path: Path) -> None:
    for step in (1, 2):
        save(start(DirectoryBackend(tmp_path / "trained"), generation=step), step)
    seen = set()
    unfinished = 0
    for number in count(1):
        root = tmp_path / str(number)
        shutil.copytree(tmp_path / "trained", root)
        backend = DirectoryBackend(root)
        with pytest.MonkeyPatch.context() as patch:
            power = _Power(patch, number)
            try:
                save(start(backend, generation=3), 3)
            except StoreError as error:
                assert "the power is cut" in str(error)
        if not power.is_cut:
            break
        unfinished += len(list(root.rglob(f"{TEMPORARY}*")))
        seen.add(assert_sound(backend, {2, 3}))
        save(start(backend, generation=4), 4)
        assert assert_sound(backend, {4}) == 4
        problems = [
            Verifier(backend, lambda _: None).verify(listed).problems
            for listed in list_checkpoints(backend)
            if listed.is_whole
        ]
        assert not any(problems)
    assert number > 20
    assert unfinished
    assert seen == {2, 3}
