"""Objects under the control prefix that no supervisor wrote: each is set aside, and the other records are read.

Any node of a deployment may write these keys, so their contents are untrusted. Sources (2026-11): RFC 8259, sections 6
and 9 (numbers and nesting have no limit in JSON; a parser sets its own);
https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html (up to 1,000 keys per page, in UTF-8 order).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bootstrap.aws import Aws
from bootstrap.context import Context
from bootstrap.documents.object_keys import control_prefix
from bootstrap.errors import ControlStoreError
from bootstrap.supervise.membership import control, records
from bootstrap.supervise.membership.control import ControlStore, Observation
from bootstrap.supervise.membership.pings import Pings
from bootstrap.supervise.membership.scope import RunScope
from bootstrap.supervise.monitors import Board, ControlWatch
from bootstrap.system import System
from tests.bootstrap.account import REGION, ROLE_ID, Account
from tests.bootstrap.recorded_events import RecordedEvents
from tests.bootstrap.test_control import BEAT, OUTCOME, record

NINTH = f"heartbeats/{ROLE_ID}:i-9.json"
DEEP = b"[" * 100_000 + b"]" * 100_000
NOT_JSON = [b"\xff", b"", b"{}", b"[]", b"null", b"\x00", DEEP, b'{"a":' * 5000 + b"1" + b"}" * 5000, b"9" * 100_000]


def changed_beat(**fields: Any) -> bytes:
    return json.dumps({**asdict(replace(BEAT, instance_id="i-9")), **fields}).encode()


BAD_BEATS = [
    *NOT_JSON,
    changed_beat().replace(b'"sequence": 1', b'"sequence": 1e999'),
    changed_beat(sequence=-1),
    changed_beat(sequence=True),
    changed_beat(sequence=10**400),
    changed_beat(joined_unix_seconds=float("nan")),
    changed_beat(address="10.0.0.1\0"),
    changed_beat(address="peer.example.com"),
    changed_beat(address="999.1.1.1"),
    changed_beat(port=65536),
    changed_beat(state="zz"),
    changed_beat(state=[]),
    changed_beat(outcome={}),
    changed_beat(generation=10**9),
    changed_beat(run_digest="d" * 100_000),
    changed_beat(instance_id="i-1"),
    changed_beat(padding="x" * records.MAX_RECORD_BYTES),
]


@pytest.fixture
def store(account: Account) -> ControlStore:
    return ControlStore(Aws(REGION).client("s3", patience="low"), **account.scope())


def put(account: Account, name: str, content: bytes) -> None:
    account.s3.put_object(Bucket=account.records, Key=control_prefix(account.name, "first") + name, Body=content)


def good_records(store: ControlStore) -> None:
    store.beat(BEAT)
    assert store.elect(record(1)) and store.elect(record(2))


@pytest.mark.parametrize("content", BAD_BEATS, ids=lambda content: repr(content[:40]))
def test_a_bad_heartbeat_is_set_aside_and_reported_once(account: Account, store: ControlStore, content: bytes) -> None:
    good_records(store)
    put(account, NINTH, content)
    observed = store.observe()
    assert (dict(observed.heartbeats), observed.newest, observed.outcome) == ({"i-1": BEAT}, record(2), None)
    assert [each.url for each in observed.set_aside] == [
        f"s3://{account.records}/{control_prefix(account.name, 'first')}{NINTH}"
    ]
    assert observed.set_aside[0].reason
    assert store.observe().set_aside == ()
    put(account, NINTH, changed_beat(added_by_a_newer_version=1))
    assert set(store.observe().heartbeats) == {"i-1", "i-9"}


@pytest.mark.parametrize("content", [*NOT_JSON, json.dumps({**asdict(OUTCOME), "outcome": "zz"}).encode()])
def test_a_bad_outcome_does_not_end_the_run(account: Account, store: ControlStore, content: bytes) -> None:
    good_records(store)
    put(account, "outcome.json", content)
    observed = store.observe()
    assert (observed.newest, observed.outcome, len(observed.set_aside)) == (record(2), None, 1)
    store.record_outcome(replace(OUTCOME, message="x" * 1_000_000))
    outcome = store.observe().outcome
    assert outcome is not None and outcome.outcome == "finished"


@pytest.mark.parametrize(
    "name",
    ["generations/99999999.json", "generations/00000004.json", "generations/zz", "zz", "generations/00000000.json"],
)
@pytest.mark.parametrize("content", [b"\xff", json.dumps(asdict(record(99_999_999))).encode()])
def test_generations_continue_after_an_object_that_was_not_elected(
    account: Account, store: ControlStore, name: str, content: bytes
) -> None:
    good_records(store)
    put(account, name, content)
    observed = store.observe()
    assert (observed.newest, observed.last_generation) == (record(2), 2)
    assert store.elect(record(3))
    later = store.observe()
    assert later.newest == record(3)
    expected = [] if name == "generations/00000000.json" else [name]  # 0: an old number, never read
    assert [each.url.rpartition("/control/")[2] for each in (*observed.set_aside, *later.set_aside)] == expected


def test_a_damaged_record_takes_its_number(account: Account, store: ControlStore) -> None:
    good_records(store)
    put(account, "generations/00000003.json", b"\xff")
    scope = RunScope(store, "i-me")
    scope.update(store.observe(), 0.0, 1.0)
    assert (scope.view()[2], scope.last_generation) == (record(2), 3)
    assert not store.elect(record(3))
    assert store.elect(record(4))
    scope.update(store.observe(), 1.0, 2.0)
    assert (scope.view()[2], scope.last_generation) == (record(4), 4)


def test_a_damaged_newest_record_does_not_take_back_the_generation(account: Account, store: ControlStore) -> None:
    good_records(store)
    assert store.observe().newest == record(2)
    put(account, "generations/00000002.json", b"\xff")
    assert store.observe().newest == record(2)
    late = ControlStore(Aws(REGION).client("s3"), **account.scope())
    observed = late.observe()
    assert (observed.newest, observed.last_generation) == (record(1), 2)


def test_the_first_generation_of_a_run_is_bounded(account: Account, store: ControlStore) -> None:
    put(account, "generations/99999999.json", json.dumps(asdict(record(99_999_999))).encode())
    observed = store.observe()
    assert (observed.newest, observed.last_generation, len(observed.set_aside)) == (None, 0, 1)


def test_listings_are_bounded_and_known_peers_stay_visible(
    account: Account, store: ControlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "MAX_PAGES", 1)
    good_records(store)
    store.record_outcome(OUTCOME)
    assert store.observe().heartbeats == {"i-1": BEAT}
    for number in range(1001):  # one page is 1,000 keys
        put(account, f"heartbeats/{ROLE_ID}:i-0{number:04d}.json", b"\xff")
    calls: list[str] = []
    s3 = Aws(REGION).client("s3")
    s3.meta.events.register("before-call.s3.ListObjectsV2", lambda **_: calls.append("list"))
    newcomer = ControlStore(s3, **account.scope())
    observed = newcomer.observe()
    assert (observed.newest, observed.outcome) == (record(2), OUTCOME)
    assert len(calls) == 4  # one page in order, and one for each kind
    store.beat(replace(BEAT, sequence=2))
    again = store.observe()
    assert {name: beat.sequence for name, beat in again.heartbeats.items()} == {"i-1": 2}
    assert again.outcome == OUTCOME
    assert len(again.set_aside) <= control.MAX_REPORTS


def test_reports_are_bounded(account: Account, store: ControlStore) -> None:
    for number in range(control.MAX_REPORTS + 20):
        put(account, f"zz-{number}", b"")
    assert len(store.observe().set_aside) == control.MAX_REPORTS
    assert store.observe().set_aside == ()


def test_the_latest_heartbeats_are_read_when_there_are_too_many(
    account: Account, store: ControlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "MAX_HEARTBEATS", 2)
    listed = {
        f"heartbeats/{ROLE_ID}:i-{number}.json": control._Listed("e", 1, float(number))
        for number in range(5)  # noqa: SLF001
    }
    assert store._heartbeat_names(listed) == [f"heartbeats/{ROLE_ID}:i-{number}.json" for number in (4, 3)]  # noqa: SLF001


def test_a_truncated_response_is_read_again(account: Account, store: ControlStore) -> None:
    good_records(store)

    class Cut:
        def __init__(self, s3: Any) -> None:
            self._s3, self.cuts = s3, True

        def get_object(self, **arguments: Any) -> Any:
            answer = self._s3.get_object(**arguments)
            if self.cuts:
                return {**answer, "Body": SimpleNamespace(read=lambda _: b'{"gener')}
            return answer

        def get_paginator(self, name: str) -> Any:
            return self._s3.get_paginator(name)

    cut = Cut(account.s3)
    interrupted = ControlStore(cut, **account.scope())
    with pytest.raises(ControlStoreError, match="cannot read"):
        interrupted.observe()
    cut.cuts = False
    assert interrupted.observe() == Observation({"i-1": BEAT}, record(2), None, last_generation=2)


def test_the_monitor_reports_each_object_as_an_event(account: Account, store: ControlStore) -> None:
    good_records(store)
    put(account, "zz", b"")
    put(account, NINTH, b"\xff")
    board, events = Board(), RecordedEvents()
    board.scope = RunScope(store, "i-me")
    watch = ControlWatch(cast(Context, SimpleNamespace(system=System(), events=events)), board)
    watch.check()
    watch.check()
    assert [(each["event"], each["url"].rpartition("/control/")[2]) for each in events.events] == [
        ("control_record_set_aside", "zz"),
        ("control_record_set_aside", NINTH),
    ]
    assert [peer.instance_id for peer in board.scope.view()[0]] == ["i-1"]


@pytest.fixture
def pings() -> Iterator[Pings]:
    own = Pings("127.0.0.1", interval_seconds=0.01)
    own.start()
    yield own
    own.stop()


def test_pings_survive_every_address(pings: Pings) -> None:
    pings.follow({f"i-{n}": address for n, address in enumerate([("\0", 1), ("127.0.0.1", 99999), ("", -1)])})
    pings.follow({"i-9": ("127.0.0.1", pings.port)})
    while pings.unanswered_since("i-9") is not None or not pings._targets["i-9"].answered:  # noqa: SLF001
        assert pings._thread is not None and pings._thread.is_alive()  # noqa: SLF001


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_bytes_are_a_record_or_a_control_store_error(data: st.DataObject) -> None:
    base = data.draw(st.sampled_from([asdict(BEAT), json.loads(records.to_text(record(1))), asdict(OUTCOME)]))
    for key in data.draw(st.lists(st.sampled_from(sorted(base)), max_size=3)):
        base[key] = data.draw(JSON_VALUES)
    content = data.draw(st.one_of(st.binary(max_size=64), st.just(json.dumps(base).encode())))
    for decode in (
        records.heartbeat_from_bytes,
        records.generation_from_bytes,
        records.run_outcome_from_bytes,
    ):
        try:
            decode(content, "s3://bucket/i-1.json")
        except ControlStoreError as error:
            assert str(error).startswith("s3://bucket/i-1.json: ")
