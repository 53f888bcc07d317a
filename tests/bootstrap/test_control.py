"""Control records in S3 (moto implements If-None-Match like S3), peers, and the saved state."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bootstrap.aws import Aws
from bootstrap.documents.supervisor_limits import SuperviseTimings
from bootstrap.errors import ControlStoreError
from bootstrap.layout import Layout
from bootstrap.supervise.membership.control import ControlStore, Observation
from bootstrap.supervise.membership.peers import FORGET_SECONDS, SLOW_RESPONSE_SECONDS, PeerLedger
from bootstrap.supervise.membership.pings import Pings
from bootstrap.supervise.membership.records import GenerationRecord, Heartbeat, Member, RunOutcome
from bootstrap.supervise.membership.scope import RunScope
from bootstrap.supervise.saved_state import SavedState, load_state, save_state
from bootstrap.system import System
from tests.bootstrap.account import REGION, Account

BEAT = Heartbeat("i-1", "10.0.0.1", 1, "ready", 0, 0, "d", 5.0)
OUTCOME = RunOutcome("first", "d", "finished", 9, "")


def record(generation: int, creator: str = "i-1") -> GenerationRecord:
    members = (Member("i-1", "10.0.0.1"), Member("i-2", "10.0.0.2"))
    return GenerationRecord(generation, "d", members, "10.0.0.1", 1234, creator)


@pytest.fixture
def store(account: Account) -> ControlStore:
    return ControlStore(Aws(REGION).client("s3", patience="low"), **account.scope())


def test_records_round_trip(account: Account, store: ControlStore) -> None:
    assert store.observe() == Observation({}, None, None)
    store.beat(BEAT)
    assert store.elect(record(1)) and store.elect(record(2))
    store.record_outcome(OUTCOME)
    assert store.observe() == Observation({"i-1": BEAT}, record(2), OUTCOME, last_generation=2)
    store.beat(replace(BEAT, sequence=2, outcome="stopped"))
    assert store.elect(record(3))
    observed = store.observe()
    assert (observed.heartbeats["i-1"].sequence, observed.newest) == (2, record(3))
    account.s3.delete_object(Bucket=account.records, Key=f"runs/{account.name}/first/control/outcome.json")
    assert store.observe().outcome is None


def test_exactly_one_of_many_writers_is_elected(account: Account) -> None:
    barrier, won = threading.Barrier(8), []

    def race(number: int) -> None:
        store = ControlStore(Aws(REGION).client("s3"), **account.scope())
        barrier.wait()
        if store.elect(record(1, f"i-{number}")):
            won.append(number)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert account.control("generations/00000001.json")["created_by"] == f"i-{won[0]}"


def test_an_unavailable_bucket_raises_with_its_name(account: Account) -> None:
    store = ControlStore(Aws(REGION).client("s3"), **{**account.scope(), "bucket": "no-such-bucket-here"})
    for call in (store.observe, lambda: store.beat(BEAT), lambda: store.elect(record(1))):
        with pytest.raises(ControlStoreError, match="s3://no-such-bucket-here/runs/.*/first/control/.*NoSuchBucket"):
            call()


def test_silence_is_measured_by_the_local_clock() -> None:
    ledger = PeerLedger("i-me", poll_seconds=2.0)
    ledger.observe({"i-1": BEAT, "i-me": replace(BEAT, instance_id="i-me")}, 100.0)
    (peer,) = ledger.peers()
    assert not peer.proven  # the record may be left over from a terminated instance
    ledger.observe({"i-1": BEAT, "i-2": replace(BEAT, instance_id="i-2")}, 104.0)
    old, new = ledger.peers()
    assert (old.proven, old.silent_seconds) == (False, 4.0)
    assert (new.proven, new.silent_seconds) == (True, 0.0)
    ledger.observe({"i-1": replace(BEAT, sequence=0, generation=3)}, 106.0)  # a restarted supervisor starts from 0
    (peer,) = ledger.peers()
    assert (peer.proven, peer.silent_seconds, peer.ended_seconds) == (True, 0.0, 0.0)
    ledger.observe({"i-1": replace(BEAT, sequence=1, generation=3, outcome="stopped")}, 107.0)
    ledger.observe({"i-1": replace(BEAT, sequence=2, generation=3, outcome="stopped")}, 109.0)
    assert ledger.peers()[0].ended_seconds == 2.0


def test_time_without_readable_records_does_not_count_as_silence() -> None:
    ledger = PeerLedger("i-me", poll_seconds=2.0)
    ledger.observe({"i-1": BEAT}, 100.0)
    ledger.observe({"i-1": replace(BEAT, sequence=2)}, 102.0)
    ledger.observe(
        {"i-1": replace(BEAT, sequence=2)}, 130.0
    )  # S3 was unavailable; the peer's next heartbeat is not yet written
    assert ledger.peers()[0].silent_seconds == 2.0 + SLOW_RESPONSE_SECONDS
    ledger.observe({"i-1": replace(BEAT, sequence=2)}, 132.0)
    assert ledger.peers()[0].silent_seconds == 4.0 + SLOW_RESPONSE_SECONDS
    ledger.observe({"i-1": replace(BEAT, sequence=3)}, 134.0)
    assert ledger.peers()[0].silent_seconds == 0.0


class FakePings(Pings):
    """Pings with given results."""

    def __init__(self, unanswered: dict[str, float]) -> None:
        super().__init__("127.0.0.1")
        self.followed: dict[str, tuple[str, int]] = {}
        self._unanswered = unanswered

    def follow(self, peers: Mapping[str, tuple[str, int]]) -> None:
        self.followed = dict(peers)

    def unanswered_since(self, name: str) -> float | None:
        return self._unanswered.get(name)


def test_peers_are_pinged_at_their_port_until_they_are_forgotten() -> None:
    pings = FakePings({"i-1": 103.0})
    ledger = PeerLedger("i-me", pings, poll_seconds=600.0)
    beat, deaf = replace(BEAT, port=7), replace(BEAT, instance_id="i-2")
    ledger.observe({"i-1": beat, "i-2": deaf, "i-me": replace(beat, instance_id="i-me")}, 100.0)
    assert pings.followed == {"i-1": (BEAT.address, 7)}
    ledger.observe({"i-1": beat, "i-2": replace(deaf, sequence=2)}, 104.0)
    assert [(peer.silent_seconds, peer.unanswered_seconds) for peer in ledger.peers()] == [(4.0, 1.0), (0.0, None)]
    ledger.observe({"i-1": beat}, 100.0 + FORGET_SECONDS)
    assert pings.followed == {}
    pings.stop()


@pytest.mark.parametrize(
    ("beat_seconds", "timeout_seconds", "doubt_seconds"),
    [(2.0, 10.0, 3.0), (3.0, 10.0, 3.75), (4.0, 8.0, 5.0), (0.5, 4.0, 2.75), (0.2, 1.5, 1.5), (2.0, 40.0, 12.0)],
)
def test_doubt_outlasts_a_late_beat_and_a_short_stall(
    beat_seconds: float, timeout_seconds: float, doubt_seconds: float
) -> None:
    assert SuperviseTimings(1.0, beat_seconds, timeout_seconds, 60.0, 600.0).doubt_seconds == doubt_seconds


def test_own_writes_are_visible_before_they_are_listed(store: ControlStore) -> None:
    scope = RunScope(store, "i-me")
    scope.update(Observation({}, record(4), None), 0.0, 1.0)
    assert scope.floor == 4
    scope.note_elected(record(5))
    scope.note_outcome(OUTCOME, 3.0)
    scope.update(Observation({}, record(4), None), 2.0, 4.0)  # a listing from before the write
    assert scope.view()[2:] == (record(5), OUTCOME)
    scope.update(Observation({}, record(5), None), 5.0, 6.0)  # a user has deleted the record
    assert scope.view()[3] is None
    assert scope.floor == 4


def test_failures_without_progress_are_counted_across_restarts(tmp_path: Path) -> None:
    layout, state = Layout(tmp_path), SavedState("i-1", 5.0)
    for step, failures in [(10, 1), (10, 2), (20, 1), (20, 2), (20, 3)]:
        state = state.after_generation("d", failed=True, saved_step=step)
        save_state(System(), layout, state)
        state = load_state(System(), layout, "i-1")
        assert (state.failures, state.has_failed) == (failures, failures == 3)
    assert state.after_generation("other", failed=True, saved_step=0).failures == 1
    assert state.after_generation("d", failed=False, saved_step=20).failures == 3
    assert state.after_generation("d", failed=False, saved_step=30).failures == 0
    assert load_state(System(), layout, "i-2").failures == 0  # a copied disk
    layout.supervisor_state.write_text('{"version": 9}')
    assert load_state(System(), layout, "i-1").failures == 0
