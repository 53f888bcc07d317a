"""Crashes at every operation of a save, a collection and a copy; the store that remains must be consistent.

Stores write objects atomically. A torn object represents a disk that confirmed a write and lost part of it.
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
    complete_steps,
    manifest,
    newest,
    save,
    start,
    state,
)
from training.checkpoint.gc import GarbageCollector
from training.checkpoint.retention import Retention
from training.checkpoint.save.rank_save import SavePlan
from training.checkpoint.save.writer import CheckpointWriter
from training.checkpoint.selection import Selected
from training.checkpoint.storage.backend import Backend
from training.checkpoint.storage.directory import TEMPORARY, DirectoryBackend
from training.checkpoint.store import list_checkpoints
from training.checkpoint.tool.inspection import Verifier
from training.checkpoint.tool.transfer import plan_transfer, transfer
from training.errors import PeerError, StoreError

pytestmark = pytest.mark.usefixtures("small_chunks")


class Killed(StoreError):
    """Raised by every operation of a dead process."""


class Dying:
    """Kills the process at the nth operation: before it, after it, or in the middle of its write."""

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
            raise Killed("killed before the operation")

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
                raise Killed(f"killed after {name}")

        return run


@pytest.fixture(scope="module")
def trained(small_chunks: None) -> MemoryBackend:
    store = MemoryBackend()
    writer = start(store, generation=1)
    for step in (1, 2, 3):
        save(writer, step)
    return store


def crash_everywhere(store: MemoryBackend, manner: str, life: Callable[[Backend], None]) -> list[MemoryBackend]:
    """Run ``life`` on copies of the store with a crash at each of its operations; return the stores that remain."""
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


def assert_consistent(store: Backend, steps: set[int]) -> int:
    """Assert that the newest complete checkpoint is from one of these steps, and all complete ones have correct
    bits."""
    complete = [listed.entry for listed in list_checkpoints(store) if listed.is_complete]
    assert complete[0].step in steps
    assert len(complete) >= 2
    for entry in complete:
        assert_holds(store, entry)
    return complete[0].step or 0


def assert_run_continues(store: Backend) -> None:
    writer = start(store, generation=9)
    save(writer, 8)
    save(writer, 9)
    assert_consistent(store, {9})
    assert complete_steps(store) == [9, 8]


@pytest.mark.parametrize("manner", ["before", "after", "torn"])
def test_crash_of_a_gang_at_every_operation_of_its_first_save(trained: MemoryBackend, manner: str) -> None:
    remains = crash_everywhere(trained, manner, lambda backend: save(start(backend, generation=2), 4))
    newest_steps = [assert_consistent(store, {3, 4}) for store in remains]
    assert set(newest_steps) == {3, 4}
    assert newest_steps == sorted(newest_steps), "a committed checkpoint remains"
    assert len(remains) > 15
    for store in remains:
        assert_run_continues(store)


@pytest.mark.parametrize("manner", ["before", "after", "torn"])
def test_crash_of_two_ranks_at_every_operation(trained: MemoryBackend, manner: str) -> None:
    def life(backend: Backend) -> None:
        first = start(backend, generation=2, world_size=2)
        second = CheckpointWriter(backend, SavePlan(rank=1, world_size=2, fence=4, threads=1), log=None)
        # Run the operations sequentially, so that they have the same numbers in every run.
        second.begin(state(4), {}, manifest(4, 2), "interval")
        second.wait()
        first.begin(state(4), {}, manifest(4, 2), "interval")
        if second.error is not None:
            first.cancel()
        first.wait()
        if second.error or first.error:
            raise Killed("dead")

    remains = crash_everywhere(trained, manner, life)
    assert {assert_consistent(store, {3, 4}) for store in remains} == {3, 4}
    for store in remains:
        assert_run_continues(store)


@pytest.mark.parametrize("manner", ["before", "after"])
def test_crash_at_every_operation_of_a_collection(trained: MemoryBackend, manner: str) -> None:
    store = trained.copy()
    writer = start(store, generation=2, retention=Retention(9))
    for step in (4, 5, 6):
        save(writer, step)
    remains = crash_everywhere(store, manner, lambda backend: _collect(backend, 4))
    assert len(remains) > 8
    for left in remains:
        assert assert_consistent(left, {6}) == 6
        _collect(left, 4)
        assert complete_steps(left) == [6, 5]
        assert_run_continues(left)


def _collect(backend: Backend, fence: int) -> None:
    GarbageCollector(backend, Retention(2)).collect(fence)


@pytest.mark.parametrize("manner", ["before", "after"])
def test_interrupted_copy_can_be_repeated(trained: MemoryBackend, manner: str) -> None:
    wanted = [
        Selected(trained, listed.entry, listed.manifest)
        for listed in list_checkpoints(trained)
        if listed.is_complete and listed.manifest is not None
    ][::-1]

    def life(backend: Backend) -> None:
        transfer(plan_transfer(wanted, backend), backend, lambda _: None)

    for left in crash_everywhere(MemoryBackend(), manner, life):
        for listed in list_checkpoints(left):
            assert listed.is_complete
            assert_holds(left, listed.entry)
        life(left)
        assert complete_steps(left)[0] == 3
        assert_holds(left, newest(left))


class _Power:
    """Fails the nth system call that changes the disk, and all later ones."""

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
                raise OSError(5, "power failure")
            return call(*arguments, **options)

        return run


def test_power_failure_at_every_system_call_of_a_directory_store(tmp_path: Path) -> None:
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
                assert "power failure" in str(error)
        if not power.is_cut:
            break
        unfinished += len(list(root.rglob(f"{TEMPORARY}*")))
        seen.add(assert_consistent(backend, {2, 3}))
        save(start(backend, generation=4), 4)
        assert assert_consistent(backend, {4}) == 4
        problems = [
            Verifier(backend, lambda _: None).verify(listed).problems
            for listed in list_checkpoints(backend)
            if listed.is_complete
        ]
        assert not any(problems)
    assert number > 20
    assert unfinished
    assert seen == {2, 3}
