"""The supervisor's policy, as tables of situations and what follows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bootstrap.documents import SuperviseTimings
from bootstrap.imds import InterruptionNotice
from bootstrap.supervise.decide import SCALE_IN_LIMIT_SECONDS, STOP_LIMIT_SECONDS, STRAGGLER_SECONDS, decide, node_state
from bootstrap.supervise.peers import Peer
from bootstrap.supervise.records import GenerationRecord, Member, RunOutcome
from bootstrap.supervise.situation import (
    Active,
    Conclude,
    Elect,
    Judgement,
    Kill,
    Leave,
    Prepare,
    RecordRunOutcome,
    RequestSave,
    RequestStop,
    Result,
    Situation,
    Start,
    Wanted,
)

ME, YOU, THIRD = Member("i-me", "10.0.0.1"), Member("i-you", "10.0.0.2"), Member("i-third", "10.0.0.3")
NOW, UNIX = 1000.0, 1_800_000_000.0
TIMEOUT, GANG_TIMEOUT = 10.0, 60.0
HALF = TIMEOUT / 2
TIMINGS = SuperviseTimings(1.0, 2.0, TIMEOUT, GANG_TIMEOUT, 600.0)
NOTICE = InterruptionNotice("terminate", UNIX + 120)


def situation(**changes: Any) -> Situation:
    """A node that is ready and alone in a run of two nodes."""
    base = Situation(
        now=NOW,
        now_unix=UNIX,
        me=ME,
        joined_unix_seconds=100.0,
        timings=TIMINGS,
        wanted=Wanted("d1", nodes=2, min_nodes=2),
        prepared_digest="d1",
        preparation="idle",
        preparation_message="",
        notice=None,
        noticed_unix=UNIX,
        scale_in_since_unix=None,
        signalled_since_unix=None,
        rebalance_pending=False,
        peers=(),
        observed_at=NOW,
        newest=None,
        floor=0,
        active=None,
        ready_since=NOW - 1,
        recorded=None,
        judgement=None,
    )
    return replace(base, **changes)


def peer(member: Member = YOU, **changes: Any) -> Peer:
    base = Peer(
        instance_id=member.instance_id,
        address=member.address,
        state="ready",
        generation=0,
        outcome=None,
        run_digest="d1",
        joined_unix_seconds=200.0,
        proven=True,
        silent_seconds=1.0,
        ended_seconds=1.0,
    )
    return replace(base, **changes)


def trains(member: Member = YOU, **changes: Any) -> Peer:
    return peer(member, **{"state": "training", "generation": 3, **changes})


def record(generation: int = 3, *members: Member, digest: str = "d1") -> GenerationRecord:
    gang = members or (ME, YOU)
    return GenerationRecord(generation, digest, gang, gang[0].address, 29500, gang[0].instance_id)


def active(**changes: Any) -> Active:
    base = Active(record(), rank=0, started_at=NOW - 100, seen=frozenset({"i-you"}))
    return replace(base, **changes)


def stopping(seconds_left: float) -> Active:
    return active(stop_reason="x", stop_deadline_unix=UNIX + seconds_left, stop_deadline=NOW + seconds_left)


def training(**changes: Any) -> Situation:
    return situation(
        **{"active": active(), "newest": record(), "floor": 2, "peers": (trains(),), "ready_since": None, **changes}
    )


def ended(outcome: Any, step: int = 7, message: str = "why", at: float = NOW) -> Active:
    return active(result=Result(outcome, step, message), ended_at=at)


SAVED = trains(state="draining", outcome="stopped")
STOP_AT = UNIX + STOP_LIMIT_SECONDS
RUN_FAILED = RunOutcome("run", "d1", "failed", 7, "three times")
RUN_FINISHED = RunOutcome("run", "d1", "finished", 9, "")


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("alone", situation(), []),
        ("two are there: the first in join order elects", situation(peers=(peer(),)), [Elect(1, (ME, YOU))]),
        ("the later one waits for the first", situation(peers=(peer(joined_unix_seconds=50.0),)), []),
        (
            "equal join times: by name",
            situation(peers=(peer(joined_unix_seconds=100.0),)),
            [Elect(1, (ME, YOU))],
        ),
        (
            "more than needed: the first in join order",
            situation(peers=(peer(THIRD, joined_unix_seconds=300.0), peer())),
            [Elect(1, (ME, YOU))],
        ),
        (
            "numbers go on",
            situation(peers=(peer(),), newest=record(8), floor=8),
            [Elect(9, (ME, YOU))],
        ),
        ("a peer of another digest is not eligible", situation(peers=(peer(run_digest="d2"),)), []),
        ("nor one that prepares", situation(peers=(peer(run_digest=""),)), []),
        ("nor one that was never seen to move", situation(peers=(peer(proven=False),)), []),
        ("nor a silent one", situation(peers=(peer(silent_seconds=TIMEOUT + 1),)), []),
        (
            "nor one that neither beats nor answers",
            situation(peers=(peer(silent_seconds=HALF + 1, unanswered_seconds=HALF + 1),)),
            [],
        ),
        ("nor a draining one", situation(peers=(peer(state="draining"),)), []),
        ("nor a finished one", situation(peers=(peer(state="finished"),)), []),
        ("somebody trains: nobody is overtaken", situation(wanted=Wanted("d1", 1, 1), peers=(trains(),)), []),
        (
            "not even by one who has not seen it move yet",
            situation(wanted=Wanted("d1", 1, 1), peers=(trains(proven=False),)),
            [],
        ),
        (
            "a silent one holds nobody up",
            situation(wanted=Wanted("d1", 1, 1), peers=(trains(silent_seconds=TIMEOUT + 1),)),
            [Elect(1, (ME,))],
        ),
        (
            "nor does one that neither beats nor answers",
            situation(wanted=Wanted("d1", 1, 1), peers=(trains(silent_seconds=HALF + 1, unanswered_seconds=HALF + 1),)),
            [Elect(1, (ME,))],
        ),
        (
            "a draining member that still saves is waited for",
            situation(
                wanted=Wanted("d1", 1, 1), newest=record(), floor=3, peers=(trains(state="draining"),), active=None
            ),
            [],
        ),
        (
            "and no longer when it has saved",
            situation(
                wanted=Wanted("d1", 1, 1),
                newest=record(),
                floor=3,
                peers=(trains(state="draining", outcome="stopped"),),
            ),
            [Elect(4, (ME,))],
        ),
        ("min_nodes before the time-out", situation(wanted=Wanted("d1", 3, 2), peers=(peer(),)), []),
        (
            "min_nodes after the time-out",
            situation(wanted=Wanted("d1", 3, 2), peers=(peer(),), ready_since=NOW - GANG_TIMEOUT),
            [Elect(1, (ME, YOU))],
        ),
        (
            "survivors go on at once",
            situation(
                wanted=Wanted("d1", 3, 1),
                newest=record(3, ME, YOU, THIRD),
                floor=3,
                peers=(peer(), trains(THIRD, state="draining", outcome="stopped")),
            ),
            [Elect(4, (ME, YOU))],
        ),
        (
            "when each of them is ready",
            situation(
                wanted=Wanted("d1", 3, 1),
                newest=record(3, ME, YOU, THIRD),
                floor=3,
                peers=(peer(), trains(THIRD, outcome="stopped")),
            ),
            [],
        ),
        (
            "which they do not wait long for",
            situation(
                wanted=Wanted("d1", 3, 1),
                newest=record(3, ME, YOU, THIRD),
                floor=3,
                peers=(peer(), trains(THIRD, outcome="stopped")),
                ready_since=NOW - TIMEOUT,
            ),
            [Elect(4, (ME, YOU))],
        ),
        (
            "those who never trained in it are no survivors",
            situation(wanted=Wanted("d1", 2, 1), newest=record(3, YOU, THIRD), floor=3),
            [],
        ),
        (
            "nor those of another run",
            situation(wanted=Wanted("d1", 2, 1), newest=record(3, ME, YOU, digest="d0"), floor=3),
            [],
        ),
        (
            "fewer than min_nodes wait for ever",
            situation(wanted=Wanted("d1", 3, 2), ready_since=NOW - 10 * GANG_TIMEOUT),
            [],
        ),
        ("nothing before the records were read", situation(wanted=Wanted("d1", 1, 1), observed_at=None), []),
        ("elected: start", situation(newest=record(3), floor=2), [Start(record(3), 0)]),
        ("elected second", situation(newest=record(3, YOU, ME), floor=2), [Start(record(3, YOU, ME), 1)]),
        ("what was there before this node came is not for it", situation(newest=record(3), floor=3), []),
        ("not elected", situation(newest=record(3, YOU, THIRD), floor=2), []),
        ("elected for another run document", situation(newest=record(3, digest="d0"), floor=2), []),
        ("another run document: prepare", situation(prepared_digest="d0"), [Prepare()]),
        ("first of all: prepare", situation(prepared_digest=None), [Prepare()]),
        ("preparing", situation(prepared_digest="d0", preparation="running"), []),
        (
            "cannot be prepared",
            situation(prepared_digest="d0", preparation="failed", preparation_message="no dataset"),
            [RecordRunOutcome("failed", 0, "no dataset")],
        ),
        ("the run is over", situation(recorded=RUN_FINISHED, peers=(peer(),)), []),
        (
            "finished: the first member says so",
            situation(judgement=Judgement("finished", "d1", 9, "", mine=True, since=NOW)),
            [RecordRunOutcome("finished", 9, "")],
        ),
        (
            "the others give it time",
            situation(judgement=Judgement("finished", "d1", 9, "", mine=False, since=NOW - 1), peers=(peer(),)),
            [],
        ),
        (
            "and stand in for it",
            situation(judgement=Judgement("finished", "d1", 9, "", mine=False, since=NOW - 2 * TIMEOUT - 1)),
            [RecordRunOutcome("finished", 9, "")],
        ),
        (
            "notice while idle: the run goes on",
            situation(notice=NOTICE),
            [Leave("spot interruption (terminate)", False, True, run_goes_on=True)],
        ),
        (
            "notice with the run's end not yet recorded",
            situation(notice=NOTICE, judgement=Judgement("finished", "d1", 9, "", mine=False, since=NOW)),
            [RecordRunOutcome("finished", 9, ""), Leave("spot interruption (terminate)", False, True)],
        ),
        ("scale-in", situation(scale_in_since_unix=UNIX, recorded=RUN_FINISHED), [Leave("scale-in", True, True)]),
        (
            "notice and scale-in: the hook is completed too",
            situation(notice=NOTICE, scale_in_since_unix=UNIX),
            [Leave("spot interruption (terminate)", True, True, run_goes_on=True)],
        ),
        (
            "signal: the machine stays",
            situation(signalled_since_unix=UNIX),
            [Leave("the supervisor was told to end", False, False, run_goes_on=True)],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_between_generations(name: str, given: Situation, expected: list[Any]) -> None:
    assert decide(given) == expected


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("all is well", training(), []),
        ("notice", training(notice=NOTICE), [RequestStop("spot interruption (terminate)", UNIX + 110, train_on=True)]),
        (
            "a short notice keeps a small margin",
            training(notice=InterruptionNotice("terminate", UNIX + 20)),
            [RequestStop("spot interruption (terminate)", UNIX + 18, train_on=True)],
        ),
        ("scale-in", training(scale_in_since_unix=UNIX), [RequestStop("scale-in", UNIX + SCALE_IN_LIMIT_SECONDS)]),
        ("run changed", training(wanted=Wanted("d2", 2, 2)), [RequestStop("the run document changed", STOP_AT)]),
        (
            "asked already",
            training(wanted=Wanted("d2", 2, 2), active=stopping(50)),
            [],
        ),
        (
            "a notice after that is more urgent, and does not make it wait",
            training(notice=NOTICE, active=stopping(250)),
            [RequestStop("spot interruption (terminate)", UNIX + 110)],
        ),
        (
            "a change after a notice is not",
            training(
                notice=NOTICE,
                wanted=Wanted("d2", 2, 2),
                active=stopping(110),
            ),
            [],
        ),
        (
            "does not stop in time",
            training(notice=NOTICE, active=stopping(-1)),
            [Kill("failed", "the trainer did not end in time after: x")],
        ),
        (
            "does not stop in time, by the time that passed and not by the clock, which was set",
            training(notice=NOTICE, active=stopping(-1), now_unix=UNIX - 3600),
            [Kill("failed", "the trainer did not end in time after: x")],
        ),
        (
            "a clock that was set forward ends no save",
            training(wanted=Wanted("d2", 2, 2), active=stopping(50), now_unix=UNIX + 3600),
            [],
        ),
        (
            "a notice read on a clock that is behind leaves two minutes, not an hour",
            training(notice=NOTICE, noticed_unix=UNIX - 3600, now_unix=UNIX - 3600),
            [RequestStop("spot interruption (terminate)", UNIX - 3600 + 110, train_on=True)],
        ),
        (
            "a notice read on a clock that is ahead: save at once, for as long as the machine lives",
            training(notice=NOTICE, noticed_unix=UNIX + 3600, now_unix=UNIX + 3600),
            [RequestStop("spot interruption (terminate)", UNIX + 3600 + 110)],
        ),
        ("rebalance", training(rebalance_pending=True), [RequestSave()]),
        (
            "rebalance while stopping: the stop saves",
            training(rebalance_pending=True, active=stopping(50)),
            [],
        ),
        ("silent", training(peers=(trains(silent_seconds=TIMEOUT + 1),)), [Kill("lost_peer", "i-you is silent")]),
        ("silent for less", training(peers=(trains(silent_seconds=TIMEOUT),)), []),
        (
            "half as silent, but it no longer answers either",
            training(peers=(trains(silent_seconds=HALF + 1, unanswered_seconds=HALF + 1),)),
            [Kill("lost_peer", "i-you is silent, and does not answer")],
        ),
        (
            "no answer for less than that: some datagrams may be lost",
            training(peers=(trains(silent_seconds=HALF + 1, unanswered_seconds=HALF),)),
            [],
        ),
        (
            "no answer, but it beats: something drops datagrams",
            training(peers=(trains(silent_seconds=HALF, unanswered_seconds=100),)),
            [],
        ),
        (
            "neither beat nor answer, but the generation has just begun",
            training(peers=(trains(silent_seconds=50, unanswered_seconds=50),), active=active(started_at=NOW - HALF)),
            [],
        ),
        ("gone from the records", training(peers=()), [Kill("lost_peer", "i-you is silent")]),
        (
            "silence from before the generation does not count",
            training(peers=(trains(silent_seconds=50),), active=active(started_at=NOW - 5)),
            [],
        ),
        (
            "unreadable records are nobody's silence",
            training(peers=(trains(silent_seconds=TIMEOUT),), now=NOW + 100),
            [],
        ),
        (
            "silence goes before a notice",
            training(notice=NOTICE, peers=()),
            [Kill("lost_peer", "i-you is silent")],
        ),
        (
            "a peer that began anew",
            training(peers=(peer(),)),
            [Kill("lost_peer", "i-you is alive, and does not take part in generation 3")],
        ),
        (
            "a peer that has not begun yet",
            training(peers=(peer(),), active=active(seen=frozenset(), started_at=NOW - 5)),
            [],
        ),
        (
            "a peer that never begins",
            training(peers=(peer(),), active=active(seen=frozenset())),
            [Kill("lost_peer", "i-you is alive, and does not take part in generation 3")],
        ),
        (
            "a peer failed",
            training(peers=(trains(outcome="failed"),)),
            [Kill("failed", "the part of i-you ended: failed")],
        ),
        (
            "a peer lost another",
            training(peers=(trains(outcome="lost_peer"),)),
            [Kill("lost_peer", "the part of i-you ended: lost_peer")],
        ),
        (
            "a peer stopped, left, and is silent",
            training(peers=(trains(state="draining", outcome="stopped", silent_seconds=TIMEOUT + 1),)),
            [],
        ),
        ("a peer stopped a moment ago", training(peers=(trains(state="ready", outcome="stopped"),)), []),
        (
            "a peer finished long ago",
            training(peers=(trains(outcome="finished", ended_seconds=STRAGGLER_SECONDS + 1),)),
            [Kill("failed", f"i-you finished {STRAGGLER_SECONDS + 1:.0f} s ago, and this node did not end")],
        ),
        (
            "overtaken",
            training(newest=record(4, YOU, THIRD)),
            [Kill("lost_peer", "generation 4 has begun without this node")],
        ),
        (
            "overtaken while saving before leaving: the fence decides, not we",
            training(newest=record(4, YOU, THIRD), notice=NOTICE),
            [RequestStop("spot interruption (terminate)", UNIX + 110, train_on=True)],
        ),
        ("given up elsewhere", training(recorded=RUN_FAILED), [Kill("failed", "the run was given up: three times")]),
        ("finished elsewhere: it ends by itself", training(recorded=RUN_FINISHED), []),
        (
            "the missing node has come",
            training(wanted=Wanted("d1", 3, 2), peers=(trains(), peer(THIRD))),
            [RequestStop("the gang grows to 3 nodes", STOP_AT)],
        ),
        (
            "the first member says so, not all",
            training(wanted=Wanted("d1", 3, 2), peers=(trains(), peer(THIRD)), active=active(rank=1)),
            [],
        ),
        ("too few to fill the gang", training(wanted=Wanted("d1", 4, 2), peers=(trains(), peer(THIRD))), []),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_while_training(name: str, given: Situation, expected: list[Any]) -> None:
    assert decide(given) == expected


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("stopped", training(active=ended("stopped")), "stopped"),
        ("finished", training(active=ended("finished")), "finished"),
        ("bad configuration", training(active=ended("bad_configuration")), "bad_configuration"),
        ("killed for a lost peer", training(active=ended("lost_peer")), "lost_peer"),
        ("failed, the others not heard of", training(active=ended("failed")), None),
        ("failed, and so did the peer", training(active=ended("failed"), peers=(trains(outcome="failed"),)), "failed"),
        (
            "failed, the peer ended otherwise",
            training(active=ended("failed"), peers=(trains(outcome="stopped"),)),
            "failed",
        ),
        (
            "failed, the peer's outcome is that of an older generation",
            training(active=replace(ended("failed"), seen=frozenset()), peers=(peer(generation=2, outcome="stopped"),)),
            None,
        ),
        ("failed, because the peer is gone", training(active=ended("failed"), peers=()), "lost_peer"),
        ("failed, because the peer began anew", training(active=ended("failed"), peers=(peer(),)), "lost_peer"),
        (
            "failed, because a third is gone, says the peer",
            training(active=ended("failed"), peers=(trains(outcome="lost_peer"),)),
            "lost_peer",
        ),
        ("failed, and the peer goes on", training(active=ended("failed", at=NOW - 2 * TIMEOUT - 1)), "failed"),
        ("failed, and leaving: no time for that", training(active=ended("failed"), notice=NOTICE), "failed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settling(name: str, given: Situation, expected: str | None) -> None:
    actions = decide(given)
    if expected is None:
        assert actions == []
    else:
        (conclude,) = actions
        assert isinstance(conclude, Conclude)
        assert (conclude.result.outcome, conclude.result.step) == (expected, 7)
        assert "why" in conclude.result.message


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (situation(), "ready"),
        (training(), "training"),
        (training(active=ended("failed")), "training"),
        (training(notice=NOTICE), "draining"),
        (situation(scale_in_since_unix=UNIX, recorded=RUN_FINISHED), "draining"),
        (situation(recorded=RUN_FAILED), "finished"),
        (situation(judgement=Judgement("finished", "d1", 9, "", mine=False, since=NOW)), "finished"),
    ],
)
def test_node_state(given: Situation, expected: str) -> None:
    assert node_state(given) == expected


LOST = "gpu 0000:1b:00: Xid 79 since the machine started: the GPU fell off the bus"


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("nothing can be saved", training(gpu_fault=LOST), [Kill("lost_peer", LOST)]),
        ("not even at a notice", training(gpu_fault=LOST, notice=NOTICE), [Kill("lost_peer", LOST)]),
        (
            "a trainer that died of it is no failure of the run",
            training(gpu_fault=LOST, active=ended("failed", message="CUDA error")),
            [Conclude(Result("lost_peer", 7, f"{LOST}; the trainer said: CUDA error"))],
        ),
        ("the machine goes", situation(gpu_fault=LOST), [Leave(LOST, False, True, run_goes_on=True)]),
    ],
)
def test_a_gpu_that_is_lost(name: str, given: Situation, expected: list[Any]) -> None:
    assert decide(given) == expected, name
    assert node_state(given) == "draining"
