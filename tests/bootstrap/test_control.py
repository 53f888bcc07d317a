"""Control records in S3 (moto's semantics of If-None-Match are those of S3), peers, memory."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bootstrap.aws import Aws
from bootstrap.documents import SuperviseTimings
from bootstrap.errors import ControlStoreError
from bootstrap.layout import Layout
from bootstrap.supervise.control import ControlStore, Observation
from bootstrap.supervise.memory import Memory, keep, recall
from bootstrap.supervise.peers import FORGET_SECONDS, SLOW_ANSWER_SECONDS, PeerLedger
from bootstrap.supervise.pings import Pings
from bootstrap.supervise.records import GenerationRecord, Heartbeat, Member, RunOutcome
from bootstrap.supervise.scope import RunScope
from bootstrap.system import System
from tests.bootstrap.account import REGION, Account

BEAT = Heartbeat("i-1", "10.0.0.1", 1, "ready", 0, 0, "d", 5.0)
OUTCOME = RunOutcome("first", "d", "finished", 9, "")


def record(generation: int, creator: str = "i-1") -> GenerationRecord:
    members = (Member("i-1", "10.0.0.1"), Member("i-2", "10.0.0.2"))
    return GenerationRecord(generation, "d", members, "10.0.0.1", 1234, creator)


@pytest.fixture
def store(account: Account) -> ControlStore:
    return ControlStore(Aws(REGION).client("s3", impatient=True), bucket=account.checkpoints, run="first")


def test_records_come_back_as_written(account: Account, store: ControlStore) -> None:
    assert store.observe() == Observation({}, None, None)
    store.beat(BEAT)
    assert store.elect(record(1)) and store.elect(record(2))
    store.record_outcome(OUTCOME)
    assert store.observe() == Observation({"i-1": BEAT}, record(2), OUTCOME)
    store.beat(replace(BEAT, sequence=2, outcome="stopped"))
    assert store.elect(record(3))
    observed = store.observe()
    assert (observed.heartbeats["i-1"].sequence, observed.newest) == (2, record(3))
    account.s3.delete_object(Bucket=account.checkpoints, Key="runs/first/control/outcome.json")
    assert store.observe().outcome is None


def test_one_of_many_is_elected(account: Account) -> None:
    barrier, won = threading.Barrier(8), []

    def race(number: int) -> None:
        store = ControlStore(Aws(REGION).client("s3"), bucket=account.checkpoints, run="first")
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


def test_a_bucket_that_refuses_is_an_error_in_words(account: Account) -> None:
    store = ControlStore(Aws(REGION).client("s3"), bucket="no-such-bucket-here", run="first")
    for call in (store.observe, lambda: store.beat(BEAT), lambda: store.elect(record(1))):
        with pytest.raises(ControlStoreError, match="s3://no-such-bucket-here/runs/first/control/.*NoSuchBucket"):
            call()


def test_a_damaged_record_is_named(account: Account, store: ControlStore) -> None:
    key = "runs/first/control/heartbeats/i-9.json"
    account.s3.put_object(Bucket=account.checkpoints, Key=key, Body=b"{}")
    with pytest.raises(ControlStoreError, match=f"{key}: cannot be read"):
        store.observe()


def test_silence_is_measured_by_the_own_clock() -> None:
    ledger = PeerLedger("i-me", poll_seconds=2.0)
    ledger.observe({"i-1": BEAT, "i-me": replace(BEAT, instance_id="i-me")}, 100.0)
    (peer,) = ledger.peers()
    assert not peer.proven  # it may be what a machine of last week left
    ledger.observe({"i-1": BEAT, "i-2": replace(BEAT, instance_id="i-2")}, 104.0)
    old, new = ledger.peers()
    assert (old.proven, old.silent_seconds) == (False, 4.0)
    assert (new.proven, new.silent_seconds) == (True, 0.0)
    ledger.observe({"i-1": replace(BEAT, sequence=0, generation=3)}, 106.0)  # a restarted supervisor counts anew
    (peer,) = ledger.peers()
    assert (peer.proven, peer.silent_seconds, peer.ended_seconds) == (True, 0.0, 0.0)
    ledger.observe({"i-1": replace(BEAT, sequence=1, generation=3, outcome="stopped")}, 107.0)
    ledger.observe({"i-1": replace(BEAT, sequence=2, generation=3, outcome="stopped")}, 109.0)
    assert ledger.peers()[0].ended_seconds == 2.0


def test_time_in_which_the_records_could_not_be_read_is_nobodys_silence() -> None:
    ledger = PeerLedger("i-me", poll_seconds=2.0)
    ledger.observe({"i-1": BEAT}, 100.0)
    ledger.observe({"i-1": replace(BEAT, sequence=2)}, 102.0)
    ledger.observe({"i-1": replace(BEAT, sequence=2)}, 130.0)  # S3 was away; the peer's next beat is still on its way
    assert ledger.peers()[0].silent_seconds == 2.0 + SLOW_ANSWER_SECONDS
    ledger.observe({"i-1": replace(BEAT, sequence=2)}, 132.0)
    assert ledger.peers()[0].silent_seconds == 4.0 + SLOW_ANSWER_SECONDS
    ledger.observe({"i-1": replace(BEAT, sequence=3)}, 134.0)
    assert ledger.peers()[0].silent_seconds == 0.0


class Answers(Pings):
    """Pings that nobody sends."""

    def __init__(self, unanswered: dict[str, float]) -> None:
        super().__init__("127.0.0.1")
        self.followed: dict[str, tuple[str, int]] = {}
        self._unanswered = unanswered

    def follow(self, peers: Mapping[str, tuple[str, int]]) -> None:
        self.followed = dict(peers)

    def unanswered_since(self, name: str) -> float | None:
        return self._unanswered.get(name)


def test_peers_are_asked_where_they_say_that_they_answer_until_they_are_long_gone() -> None:
    pings = Answers({"i-1": 103.0})
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
    [(2.0, 10.0, 5.0), (3.0, 10.0, 6.0), (4.0, 8.0, 8.0), (0.5, 4.0, 3.0), (0.2, 1.5, 1.5)],
)
def test_doubt_takes_half_the_time_out_and_never_less_than_two_beats_and_three_pings(
    beat_seconds: float, timeout_seconds: float, doubt_seconds: float
) -> None:
    assert SuperviseTimings(1.0, beat_seconds, timeout_seconds, 60.0, 600.0).doubt_seconds == doubt_seconds


def test_scope_knows_what_this_node_wrote_before_it_is_listed(store: ControlStore) -> None:
    scope = RunScope(store, "i-me")
    scope.take(Observation({}, record(4), None), 0.0, 1.0)
    assert scope.floor == 4
    scope.note_elected(record(5))
    scope.note_outcome(OUTCOME, 3.0)
    scope.take(Observation({}, record(4), None), 2.0, 4.0)  # listed before, arrived after
    assert scope.view()[2:] == (record(5), OUTCOME)
    scope.take(Observation({}, record(5), None), 5.0, 6.0)  # a person has removed it
    assert scope.view()[3] is None
    assert scope.floor == 4


def test_failures_without_progress_are_counted_over_restarts(tmp_path: Path) -> None:
    layout, memory = Layout(tmp_path), Memory("i-1", 5.0)
    for step, failures in [(10, 1), (10, 2), (20, 1), (20, 2), (20, 3)]:
        memory = memory.after_generation("d", failed=True, saved_step=step)
        keep(System(), layout, memory)
        memory = recall(System(), layout, "i-1")
        assert (memory.failures, memory.gives_up) == (failures, failures == 3)
    assert memory.after_generation("other", failed=True, saved_step=0).failures == 1
    assert memory.after_generation("d", failed=False, saved_step=20).failures == 3
    assert memory.after_generation("d", failed=False, saved_step=30).failures == 0
    assert recall(System(), layout, "i-2").failures == 0  # a copied disk
    layout.supervisor_state.write_text('{"version": 9}')
    assert recall(System(), layout, "i-1").failures == 0
