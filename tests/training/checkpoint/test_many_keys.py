"""Saves to a store that contains a million foreign objects.

Any node of a run can write these keys (docs/security.md). S3 lists up to 1,000 keys per request, in UTF-8 order
(https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html, 2026-11), so such objects may precede all
others.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch

from tests.training.checkpoint.runs import MemoryBackend, assert_holds, complete_steps, manifest, newest, save, start
from training.checkpoint import chunk_listing, tags
from training.checkpoint.gc import GarbageCollector
from training.checkpoint.retention import Retention
from training.checkpoint.save.parts import MAX_LISTED_PARTS
from training.checkpoint.save.rank_save import SavePlan
from training.checkpoint.save.writer import CheckpointWriter
from training.checkpoint.storage.directory import DirectoryBackend
from training.checkpoint.storage.tiers import TierContents, TieredBackend
from training.checkpoint.store import checkpoint_entries, read_manifest
from training.checkpoint.tags import DROPPED_PREFIX, dropped_sequences, put_tag, read_tag, read_tags
from training.errors import StoreError

pytestmark = pytest.mark.usefixtures("small_chunks")

MANY = 1_000_000
LARGEST_LISTING = 200_000


class Crowded(MemoryBackend):
    """A store with a million more objects, whose names begin with `stem`. Listings without a limit fail."""

    def __init__(self, stem: str) -> None:
        super().__init__()
        self.stem = stem
        self.first = 0
        self.lookups = 0

    def keys(self, prefix: str, limit: int | None = None) -> list[str]:
        assert limit is not None, f"{prefix}: the listing has no limit"
        assert limit <= LARGEST_LISTING + 1
        self.lookups += limit == 1
        return list(islice(heapq.merge(super().keys(prefix), self._crowd(prefix)), limit))

    def _crowd(self, prefix: str) -> Iterator[str]:
        if self.stem.startswith(prefix):
            yield from (f"{self.stem}{number:07d}" for number in range(self.first, MANY))

    def get(self, key: str) -> bytes:
        return b"\xff" if key.startswith(self.stem) else super().get(key)

    def delete(self, keys: list[str]) -> None:
        crowd = [key for key in keys if key.startswith(self.stem)]
        assert crowd == [f"{self.stem}{self.first + number:07d}" for number in range(len(crowd))]
        self.first += len(crowd)
        super().delete(keys)


def save_five(store: MemoryBackend) -> None:
    writer = start(store, retention=Retention(2))
    for step in range(1, 6):
        save(writer, step)
    assert_holds(store, newest(store))
    assert newest(store).step == 5
    writer.close()


@pytest.mark.parametrize(
    "stem", ["chunks/!", "chunks/00000000/!", "chunks/00000000/zz", "chunks/99999999/", "dropped/!"]
)
def test_retention_keeps_the_newest_checkpoints(stem: str, caplog: pytest.LogCaptureFixture) -> None:
    store = Crowded(stem)
    save_five(store)
    assert complete_steps(store) == [5, 4]
    assert caplog.text.count("objects; garbage is only found among the first ones") == stem.startswith("chunks/")
    reachable = {
        key
        for entry in list(checkpoint_entries(store))[:2]
        if entry.manifest is not None
        for key in [entry.manifest.key, *(chunk.key for chunk in read_manifest(store, entry).chunks)]
    }
    assert {key for key in store.objects if key.startswith("chunks/")} == reachable


def test_only_a_full_folder_is_looked_up_chunk_by_chunk() -> None:
    for stem, looks_up in (("chunks/!", False), ("chunks/00000000/!", True)):
        store = Crowded(stem)
        save_five(store)
        store.lookups = 0
        listing = chunk_listing.ChunkListing(store)
        keys = [key for key in store.objects if key.startswith("chunks/")]
        gone = f"chunks/00000000/{'0' * 64}"
        assert listing.missing([*keys, gone]) == [gone]
        assert (store.lookups > 0) == looks_up
        assert listing.known >= set(keys)


def test_tags_that_cannot_be_read_keep_every_checkpoint(caplog: pytest.LogCaptureFixture) -> None:
    store = Crowded("none/")
    save_five(store)
    put_tag(store, "best", newest(store))
    store.stem = "tags/!"
    save_again = start(store, 2, retention=Retention(2))
    for step in range(6, 10):
        save(save_again, step)
    save_again.close()
    assert complete_steps(store) == [9, 8, 7, 6, 5, 4]
    assert caplog.text.count("has more than 1000 objects, so no checkpoint is deleted") == 1
    tag = read_tag(store, "best")
    assert tag is not None and tag.step == 5
    assert read_tag(store, "other") is None
    with pytest.raises(StoreError, match="more than 1000 objects"):
        read_tags(store)
    with pytest.raises(StoreError, match="a store can have 1000 tags"):
        put_tag(store, "another", newest(store))
    put_tag(store, "best", newest(store))  # an existing tag can be moved
    assert read_tag(store, "best").step == 9  # type: ignore[union-attr]


def test_a_store_holds_as_many_tags_as_a_collection_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tags, "MAX_TAGS", 2)
    store = MemoryBackend()
    save_five(store)
    for name in ("a", "b"):
        put_tag(store, name, newest(store))
    with pytest.raises(StoreError, match="more than 1 objects"):
        put_tag(store, "c", newest(store))
    assert [tag.name for tag in read_tags(store)] == ["a", "b"]
    GarbageCollector(store, Retention(2)).collect(0)


def test_markers_among_the_first_objects_are_read(caplog: pytest.LogCaptureFixture) -> None:
    store = Crowded(f"{DROPPED_PREFIX}zz")
    save_five(store)
    assert dropped_sequences(store) == {1, 2, 3}
    assert "only the first 200000 objects are read" in caplog.text


@pytest.mark.parametrize("stem", ["parts/!", "parts/00000000/000001/!"])
def test_ranks_find_each_others_parts(stem: str) -> None:
    store = Crowded(stem)
    first = start(store, world_size=2, retention=Retention(2))
    second = CheckpointWriter(store, SavePlan(rank=1, world_size=2, fence=0, threads=1), None)
    content = {"model/a": torch.arange(10.0)}
    for step in (1, 2):
        for writer in (second, first):
            writer.begin(content, {}, manifest(step, world_size=2), "interval")
        for writer in (second, first):
            writer.wait()
            assert writer.error is None
    assert [entry.step for entry in checkpoint_entries(store)] == [2, 1]
    assert (store.lookups > 0) == (stem != "parts/!")
    # Each save removes as many of the other objects as fit in a listing.
    assert store.first > 0 and store.first % MAX_LISTED_PARTS in (0, MAX_LISTED_PARTS - 1, MAX_LISTED_PARTS - 2)


def test_the_local_tier_is_pruned(tmp_path: Path) -> None:
    durable = Crowded("chunks/!")
    tiers = TieredBackend(DirectoryBackend(tmp_path), durable)
    kept, old = f"chunks/00000000/{'a' * 64}", f"chunks/00000000/{'b' * 64}"
    for key in (kept, old):
        tiers.put(key, b"content")
    durable.delete([old])
    tiers.prune(tiers.local_keys())
    assert tiers.local_keys() == [kept]
    save_five(durable)
    found = read_manifest(durable, newest(durable))
    stored = sum(chunk.stored_bytes for chunk in found.chunks)
    assert TierContents(tiers).stored_bytes(found) == {tiers.tiers[0].url: 0, durable.url: stored}
