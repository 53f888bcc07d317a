"""Garbage collection concurrent with every other activity in a store.

In each pair of activities, each one runs completely between every two operations of the other, so that every
interruption point is tested.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from tests.training.checkpoint.runs import (
    Hooked,
    MemoryBackend,
    assert_holds,
    complete_steps,
    newest,
    save,
    start,
)
from training.checkpoint.gc import GarbageCollector
from training.checkpoint.log import LogWriter
from training.checkpoint.retention import Retention
from training.checkpoint.storage.backend import Backend
from training.checkpoint.store import checkpoint_entries, list_checkpoints, read_manifest
from training.checkpoint.tags import dropped_sequences, mark_dropped, put_tag, read_tags, remove_tag
from training.errors import ConfigurationError, CorruptCheckpointError, StoreError, SupersededError

pytestmark = pytest.mark.usefixtures("small_chunks")


def collect_concurrently(backend: Backend, keep_last: int = 2) -> None:
    """Collect as the tool does during training."""
    collector = GarbageCollector(backend, Retention(keep_last))
    collector.collect(collector.ended_fence())


def assert_newest_two_hold(backend: Backend) -> None:
    complete = [listed.entry for listed in list_checkpoints(backend) if listed.is_complete]
    assert len(complete) >= 2
    assert complete[0] == newest(backend), "the newest is incomplete"
    for entry in complete[:2]:
        assert_holds(backend, entry)


def at_every_operation(
    prepared: MemoryBackend, act: Callable[[Backend], None], between: Callable[[MemoryBackend], None]
) -> list[MemoryBackend]:
    """Run ``act`` on copies of the store, with ``between`` before another of its operations each time."""
    ends = []
    for number in count(1):
        store = prepared.copy()

        def before(at: int, name: str, key: str, number: int = number, store: MemoryBackend = store) -> None:
            if at == number:
                between(store)

        hooked = Hooked(store, before)
        act(hooked)
        if hooked.operations < number:
            break
        ends.append(store)
    assert len(ends) >= 3
    return ends


@pytest.fixture(scope="module")
def trained(small_chunks: None) -> MemoryBackend:
    """Two starts of a run, garbage from a crash in both, and more checkpoints than retention keeps."""
    store = MemoryBackend()
    writer = start(store, generation=1, retention=Retention(4))
    for step in (1, 2, 3):
        save(writer, step)
    writer = start(store, generation=2, retention=Retention(4))
    save(writer, 4)
    for folder in (0, 4):
        store.put(f"chunks/{folder:08d}/{'0' * 64}", b"left by a crash")
    return store


def test_collection_at_every_operation_of_a_writer(trained: MemoryBackend) -> None:
    def train(backend: Backend) -> None:
        for generation, steps in ((3, (5, 6)), (4, (7,))):
            writer = start(backend, generation)
            for step in steps:
                save(writer, step)

    for store in at_every_operation(trained, train, collect_concurrently):
        assert_newest_two_hold(store)
        assert complete_steps(store)[0] == 7


def test_writer_at_every_operation_of_a_collection(trained: MemoryBackend) -> None:
    def train(backend: MemoryBackend) -> None:
        writer = start(backend, generation=3)
        save(writer, 5)
        save(writer, 6)
        save(start(backend, generation=4), 7)

    for store in at_every_operation(trained, collect_concurrently, train):
        assert_newest_two_hold(store)
        assert complete_steps(store)[0] == 7


def test_superseded_collection_deletes_nothing_of_its_successor(trained: MemoryBackend) -> None:
    def successor(backend: MemoryBackend) -> None:
        writer = start(backend, generation=9)
        save(writer, 8)
        save(writer, 9)

    def predecessor(backend: Backend) -> None:
        GarbageCollector(backend, Retention(2)).collect(fence=4)

    for store in at_every_operation(trained, predecessor, successor):
        assert_newest_two_hold(store)


def test_exclusive_collection_ends_the_writer_and_deletes_all_garbage(trained: MemoryBackend) -> None:
    store = trained.copy()
    writer = start(store, generation=3)
    save(writer, 5)
    fence = LogWriter(store, 3).fence
    GarbageCollector(store, Retention(2)).collect(fence)
    with pytest.raises(SupersededError):
        save(writer, 6)
    assert complete_steps(store) == [5, 4]
    GarbageCollector(store, Retention(2)).collect(fence)
    needed = {
        key
        for entry in list(checkpoint_entries(store))[:2]
        for key in [entry.manifest.key, *(chunk.key for chunk in read_manifest(store, entry).chunks)]
    }
    assert set(store.keys("chunks/")) == needed


def oldest(store: Backend) -> object:
    return list(checkpoint_entries(store))[-1]


def assert_kept_if_tagged(stores: list[MemoryBackend], refused: list[str]) -> None:
    outcomes = set()
    for store in stores:
        entry = oldest(store)
        tagged = [tag.name for tag in read_tags(store)]
        outcomes.add(bool(tagged))
        if tagged:
            assert_holds(store, entry)
            collect_concurrently(store)
            assert_holds(store, entry)
        assert_newest_two_hold(store)
    assert outcomes == ({True, False} if refused else {True})


def test_tag_set_during_a_collection_is_kept_or_refused(trained: MemoryBackend) -> None:
    refused: list[str] = []

    def tag(store: MemoryBackend) -> None:
        try:
            put_tag(store, "paper", oldest(store))
        except StoreError as error:
            refused.append(str(error))

    stores = at_every_operation(trained, collect_concurrently, tag)
    assert refused and "retention has dropped the checkpoint for step" in refused[0]
    assert_kept_if_tagged(stores, refused)


def test_collection_while_a_tag_is_set(trained: MemoryBackend) -> None:
    refused: list[str] = []

    def tag(backend: Backend) -> None:
        try:
            put_tag(backend, "paper", oldest(trained))
        except StoreError as error:
            refused.append(str(error))

    stores = at_every_operation(trained, tag, collect_concurrently)
    assert refused
    assert_kept_if_tagged(stores, refused)


def test_refused_move_leaves_the_tag_unchanged(trained: MemoryBackend) -> None:
    store = trained.copy()
    put_tag(store, "paper", newest(store))
    dropped = oldest(store)
    mark_dropped(store, dropped.sequence)
    with pytest.raises(StoreError, match="retention has dropped"):
        put_tag(store, "paper", dropped)
    assert [tag.sequence for tag in read_tags(store)] == [newest(store).sequence]
    remove_tag(store, "paper")
    with pytest.raises(StoreError, match="no tag 'paper'"):
        remove_tag(store, "paper")
    for name in ("newest", "7", "a/b", "", "x" * 65):
        with pytest.raises(ConfigurationError, match="choose another name"):
            put_tag(store, name, newest(store))


def test_damaged_tag_stops_a_collection(trained: MemoryBackend) -> None:
    store = trained.copy()
    put_tag(store, "paper", oldest(store))
    store.put("tags/paper.json", store.get("tags/paper.json")[:-3])
    before = dict(store.objects)
    with pytest.raises(CorruptCheckpointError, match=r"tags/paper\.json: not a valid tag"):
        collect_concurrently(store)
    assert store.objects == before


def test_last_two_undamaged_checkpoints_are_always_kept(trained: MemoryBackend) -> None:
    store = trained.copy()
    entries = list(checkpoint_entries(store))
    damaged = {entry.sequence for entry in entries[:2]}
    GarbageCollector(store, Retention(2)).collect(fence=10, damaged=damaged)
    assert complete_steps(store) == [2, 1]
    assert dropped_sequences(store) == damaged
    untouched = dict(store.objects)
    GarbageCollector(store, Retention(3)).collect(fence=10)
    assert store.objects == untouched, "fewer checkpoints than keep_last: nothing is deleted"


def test_dropped_checkpoints_are_not_read_again(trained: MemoryBackend) -> None:
    """A long log costs a new process one listing, not one request per checkpoint ever committed."""
    store = trained.copy()
    writer = start(store, generation=3)
    for step in range(5, 12):
        save(writer, step)
    reads: list[str] = []
    collector = GarbageCollector(
        Hooked(store, lambda number, name, key: reads.append(key) if name == "get" else None), Retention(2)
    )
    collector.plan(fence=10)
    assert len([key for key in reads if key.startswith("log/")]) == 2 + 3, "two kept checkpoints, three fences"
    reads.clear()
    collector.plan(fence=10)
    assert reads == []
