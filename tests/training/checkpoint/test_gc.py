"""Garbage collection beside everything that may go on in a store at the same time, at every point of it.

Of two activities, one is run whole between every two operations of the other, in both roles: so whatever the two do to
each other while they interleave operation by operation without waiting for one another, the end of it is tried.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from tests.training.checkpoint.runs import (
    Hooked,
    MemoryBackend,
    assert_holds,
    newest,
    save,
    start,
    whole_steps,
)
from training.checkpoint.backend import Backend
from training.checkpoint.gc import GarbageCollector
from training.checkpoint.log import LogWriter
from training.checkpoint.retention import Retention
from training.checkpoint.store import checkpoint_entries, list_checkpoints, read_manifest
from training.checkpoint.tags import dropped_sequences, mark_dropped, put_tag, read_tags, remove_tag
from training.errors import ConfigurationError, CorruptCheckpointError, StoreError, SupersededError

pytestmark = pytest.mark.usefixtures("small_chunks")


def collect_beside(backend: Backend, keep_last: int = 2) -> None:
    """As the tool does beside training."""
    collector = GarbageCollector(backend, Retention(keep_last))
    collector.collect(collector.ended_epoch())


def assert_newest_two_hold(backend: Backend) -> None:
    whole = [listed.entry for listed in list_checkpoints(backend) if listed.is_whole]
    assert len(whole) >= 2
    assert whole[0] == newest(backend), "the newest is not whole"
    for entry in whole[:2]:
        assert_holds(backend, entry)


def at_every_operation(
    prepared: MemoryBackend, act: Callable[[Backend], None], between: Callable[[MemoryBackend], None]
) -> list[MemoryBackend]:
    """Run ``act`` on a copy of the store as often as it has operations, each time with ``between`` before another."""
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
    """Two starts of a run, with what a crash left of both, and more checkpoints than anyone will keep."""
    store = MemoryBackend()
    writer = start(store, generation=1, keep_last=4)
    for step in (1, 2, 3):
        save(writer, step)
    writer = start(store, generation=2, keep_last=4)
    save(writer, 4)
    for folder in (0, 4):
        store.put(f"chunks/{folder:08d}/{'0' * 64}", b"left by a crash")
    return store


def test_a_writer_may_live_through_a_collection_at_any_moment(trained: MemoryBackend) -> None:
    def life(backend: Backend) -> None:
        for generation, steps in ((3, (5, 6)), (4, (7,))):
            writer = start(backend, generation)
            for step in steps:
                save(writer, step)

    for store in at_every_operation(trained, life, collect_beside):
        assert_newest_two_hold(store)
        assert whole_steps(store)[0] == 7


def test_a_collection_may_live_through_a_writer_at_any_moment(trained: MemoryBackend) -> None:
    def life(backend: MemoryBackend) -> None:
        writer = start(backend, generation=3)
        save(writer, 5)
        save(writer, 6)
        save(start(backend, generation=4), 7)

    for store in at_every_operation(trained, collect_beside, life):
        assert_newest_two_hold(store)
        assert whole_steps(store)[0] == 7


def test_a_writer_that_is_superseded_while_it_collects_takes_nothing_from_its_successor(trained: MemoryBackend) -> None:
    def successor(backend: MemoryBackend) -> None:
        writer = start(backend, generation=9)
        save(writer, 8)
        save(writer, 9)

    def predecessor(backend: Backend) -> None:
        GarbageCollector(backend, Retention(2)).collect(epoch=4)

    for store in at_every_operation(trained, predecessor, successor):
        assert_newest_two_hold(store)


def test_an_exclusive_collection_ends_the_writer_and_then_tidies_everything(trained: MemoryBackend) -> None:
    store = trained.copy()
    writer = start(store, generation=3)
    save(writer, 5)
    epoch = LogWriter(store, 3).epoch
    GarbageCollector(store, Retention(2)).collect(epoch)
    with pytest.raises(SupersededError):
        save(writer, 6)
    assert whole_steps(store) == [5, 4]
    GarbageCollector(store, Retention(2)).collect(epoch)
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
            collect_beside(store)
            assert_holds(store, entry)
        assert_newest_two_hold(store)
    assert outcomes == ({True, False} if refused else {True})


def test_a_tag_that_was_given_is_kept_whatever_a_collection_was_doing(trained: MemoryBackend) -> None:
    refused: list[str] = []

    def tag(store: MemoryBackend) -> None:
        try:
            put_tag(store, "paper", oldest(store))
        except StoreError as error:
            refused.append(str(error))

    stores = at_every_operation(trained, collect_beside, tag)
    assert refused and "was let go by retention" in refused[0]
    assert_kept_if_tagged(stores, refused)


def test_a_tag_that_is_being_given_is_kept_or_refused(trained: MemoryBackend) -> None:
    refused: list[str] = []

    def tag(backend: Backend) -> None:
        try:
            put_tag(backend, "paper", oldest(trained))
        except StoreError as error:
            refused.append(str(error))

    stores = at_every_operation(trained, tag, collect_beside)
    assert refused
    assert_kept_if_tagged(stores, refused)


def test_a_tag_that_cannot_move_stays_where_it_was(trained: MemoryBackend) -> None:
    store = trained.copy()
    put_tag(store, "paper", newest(store))
    gone = oldest(store)
    mark_dropped(store, gone.sequence)
    with pytest.raises(StoreError, match="was let go"):
        put_tag(store, "paper", gone)
    assert [tag.sequence for tag in read_tags(store)] == [newest(store).sequence]
    remove_tag(store, "paper")
    with pytest.raises(StoreError, match="has no tag 'paper'"):
        remove_tag(store, "paper")
    for name in ("newest", "7", "a/b", "", "x" * 65):
        with pytest.raises(ConfigurationError, match="choose another name"):
            put_tag(store, name, newest(store))


def test_damaged_tags_stop_a_collection_rather_than_what_they_keep(trained: MemoryBackend) -> None:
    store = trained.copy()
    put_tag(store, "paper", oldest(store))
    store.put("tags/paper.json", store.get("tags/paper.json")[:-3])
    before = dict(store.objects)
    with pytest.raises(CorruptCheckpointError, match=r"tags/paper\.json: is not a tag"):
        collect_beside(store)
    assert store.objects == before


def test_the_last_two_valid_ones_stay_whatever_is_damaged_and_asked_for(trained: MemoryBackend) -> None:
    store = trained.copy()
    entries = list(checkpoint_entries(store))
    damaged = {entry.sequence for entry in entries[:2]}
    GarbageCollector(store, Retention(2)).collect(epoch=10, distrusted=damaged)
    assert whole_steps(store) == [2, 1]
    assert dropped_sequences(store) == damaged
    untouched = dict(store.objects)
    GarbageCollector(store, Retention(3)).collect(epoch=10)
    assert store.objects == untouched, "fewer than wanted are left: nothing more goes"


def test_what_is_let_go_is_read_no_more(trained: MemoryBackend) -> None:
    """A long log costs a new process one listing, not a request for every checkpoint that there ever was."""
    store = trained.copy()
    writer = start(store, generation=3)
    for step in range(5, 12):
        save(writer, step)
    reads: list[str] = []
    collector = GarbageCollector(
        Hooked(store, lambda number, name, key: reads.append(key) if name == "get" else None), Retention(2)
    )
    collector.plan(epoch=10)
    assert len([key for key in reads if key.startswith("log/")]) == 2 + 3, "two that are kept, three fences"
    reads.clear()
    collector.plan(epoch=10)
    assert reads == []
