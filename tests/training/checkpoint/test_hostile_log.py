"""Objects under `log/` that no writer of this package appended.

Expected values follow from docs/checkpoint-format.md ("Log") and from S3's create-only writes, which return 412 for an
existing key regardless of its content (https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html,
2026-11).
"""

from __future__ import annotations

import json

import pytest

from tests.training.checkpoint.runs import MemoryBackend
from training.checkpoint import log as log_module
from training.checkpoint.log import LogWriter, entry_key, newest_first, sequences
from training.errors import StoreError, SupersededError

GARBAGE = [b"\xff", b"", b"[]", b"null", b"[" * 100_000, b'{"a":' * 5000, b'{"sequence": 1e999}', b"9" * 100_000]


def entry(sequence: int, generation: int, **changes: object) -> bytes:
    fields = {"schema_version": 2, "kind": "fence", "sequence": sequence, "generation": generation}
    return json.dumps({**fields, "writer": "another", "unix_seconds": 1.0, **changes}).encode()


@pytest.mark.parametrize("content", [*GARBAGE, entry(99_999_999, 1)], ids=lambda content: repr(content[:20]))
def test_an_entry_after_a_large_gap_does_not_count(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryBackend()
    first = LogWriter(store, 1)
    store.put("log/99999999.json", content)
    assert first.append_checkpoint(step=1).sequence == 1
    assert LogWriter(store, 2).fence == 2
    assert sequences(store) == [0, 1, 2]
    assert "ignoring log/99999999.json: the preceding entry is" in caplog.text


@pytest.mark.parametrize(
    "content", [*GARBAGE, entry(1, 10**9), entry(2, 1), entry(1, 10**30)], ids=lambda c: repr(c[:20])
)
def test_writers_append_after_an_object_that_is_not_an_entry(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryBackend()
    writer = LogWriter(store, 1)
    store.put(entry_key(1), content)
    assert writer.append_checkpoint(step=1).sequence == 2
    assert not writer.is_superseded()
    assert "log entry 1" in caplog.text or "log/00000001.json: its generation" in caplog.text
    store.put(entry_key(3), content)
    later = LogWriter(store, 2)
    assert later.fence == 4
    assert writer.is_superseded()
    with pytest.raises(SupersededError, match="generation 2 has owned the checkpoint log since entry 4"):
        writer.append_checkpoint(step=2)
    assert later.append_checkpoint(step=3).sequence == 5
    assert [each.step for each in newest_first(store) if each.kind == "checkpoint"] == [3, 1]


def test_generation_of_another_numbering_counts() -> None:
    store = MemoryBackend()
    LogWriter(store, 900_000)
    with pytest.raises(SupersededError):
        LogWriter(store, 5)


def test_too_many_objects_end_with_their_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "MAX_ATTEMPTS", 3)
    store = MemoryBackend()
    writer = LogWriter(store, 1)
    for sequence in range(1, 4):
        store.put(entry_key(sequence), b"\xff")
    with pytest.raises(StoreError, match=r"log/00000001.json: 3 attempts .* remove the objects"):
        writer.append_checkpoint(step=1)


def test_the_log_ends_at_eight_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "MAX_SEQUENCE", 1)
    store = MemoryBackend()
    writer = LogWriter(store, 1)
    writer.append_checkpoint(step=1)
    with pytest.raises(StoreError, match="the log ends at entry 1; copy the run to another store"):
        writer.append_checkpoint(step=2)
    with pytest.raises(StoreError, match="the log ends at entry 1"):
        LogWriter(store, 2)


PLACES = ("log/!{:07d}", "log/00000000.json.{:07d}", "log/00000001-{:07d}", "log/x{:07d}")
CROWDS = [(place, 50, 500, entries) for place in PLACES for entries in (1, 7, 40)]
MILLION = pytest.param(PLACES[1], log_module.MAX_LISTED, 1_000_000, 3, marks=pytest.mark.slow, id="a-million")


@pytest.mark.parametrize(("garbage", "limit", "count", "entries"), [*CROWDS, MILLION])
def test_a_prefix_full_of_objects_does_not_hide_the_log(
    monkeypatch: pytest.MonkeyPatch, garbage: str, limit: int, count: int, entries: int
) -> None:
    """The number of requests for a log is bounded, regardless of the sort order of foreign objects."""
    monkeypatch.setattr(log_module, "MAX_LISTED", limit)
    monkeypatch.setattr(log_module, "MAX_GAP", 16)
    store = MemoryBackend()
    first = LogWriter(store, 1)
    for step in range(1, entries):
        first.append_checkpoint(step=step)
    for number in range(count):
        store.objects[garbage.format(number)] = b""
    asked: list[int | None] = []
    listing = store.keys
    monkeypatch.setattr(store, "keys", lambda prefix, most=None: asked.append(most) or listing(prefix, most))
    assert sequences(store) == list(range(entries))
    assert not first.is_superseded()
    later = LogWriter(store, 2)
    assert later.fence == entries
    assert first.is_superseded()
    later.append_checkpoint(step=100)
    assert [each.step for each in newest_first(store) if each.kind == "checkpoint"][:1] == [100]
    assert all(most is not None for most in asked)
    assert len(asked) <= 60


def test_an_object_of_a_similar_name_is_not_an_entry() -> None:
    store = MemoryBackend()
    store.put("log/00000001.json.copy", b"{}")
    assert not log_module.exists(store, 1)
    store.put(entry_key(1), b"")
    assert log_module.exists(store, 1)
