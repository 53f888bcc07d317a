"""The supervisor's policy, as tables of situations and expected actions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bootstrap.documents.supervisor_limits import SuperviseTimings
from bootstrap.imds import InterruptionNotice
from bootstrap.supervise.decide import (
    NOTICE_SECONDS,
    RECLAIM_LIMIT_SECONDS,
    SCALE_IN_LIMIT_SECONDS,
    STOP_LIMIT_SECONDS,
    STRAGGLER_SECONDS,
    decide,
    node_state,
)
from bootstrap.supervise.membership.peers import Peer
from bootstrap.supervise.membership.records import GenerationRecord, Member, RunOutcome
from bootstrap.supervise.situation import (
    Active,
    Conclude,
    Elect,
    Judgement,
    Kill,
    Leave,
    LoadRun,
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
TIMINGS = SuperviseTimings(1.0, 2.0, TIMEOUT, GANG_TIMEOUT, 600.0)
DOUBT = TIMINGS.doubt_seconds
NOTICE = InterruptionNotice("terminate", UNIX + 120)
LEAVES = "spot interruption (terminate)"


def situation(**changes: Any) -> Situation:
    """Return the situation of a ready node that is alone in a run of two nodes."""
    base = Situation(
        now=NOW,
        now_unix=UNIX,
        me=ME,
        joined_unix_seconds=100.0,
        timings=TIMINGS,
        wanted=Wanted("d1", nodes=2, min_nodes=2),
        loaded_digest="d1",
        loading="idle",
        loading_message="",
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
        ("two nodes are ready: the first in join order elects", situation(peers=(peer(),)), [Elect(1, (ME, YOU))]),
        ("the later node waits for the first", situation(peers=(peer(joined_unix_seconds=50.0),)), []),
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
            "generation numbers continue",
            situation(peers=(peer(),), newest=record(8), floor=8),
            [Elect(9, (ME, YOU))],
        ),
        ("a peer of another digest is not eligible", situation(peers=(peer(run_digest="d2"),)), []),
        ("nor one that is loading", situation(peers=(peer(run_digest=""),)), []),
        ("nor one without an observed heartbeat", situation(peers=(peer(proven=False),)), []),
        ("nor a silent one", situation(peers=(peer(silent_seconds=TIMEOUT + 1),)), []),
        (
            "nor one without heartbeats and pongs",
            situation(peers=(peer(silent_seconds=DOUBT + 1, unanswered_seconds=DOUBT + 1),)),
            [],
        ),
        ("nor a draining one", situation(peers=(peer(state="draining"),)), []),
        ("nor a finished one", situation(peers=(peer(state="finished"),)), []),
        ("a peer is training: wait for it", situation(wanted=Wanted("d1", 1, 1), peers=(trains(),)), []),
        (
            "also without an observed heartbeat",
            situation(wanted=Wanted("d1", 1, 1), peers=(trains(proven=False),)),
            [],
        ),
        (
            "a silent peer is not waited for",
            situation(wanted=Wanted("d1", 1, 1), peers=(trains(silent_seconds=TIMEOUT + 1),)),
            [Elect(1, (ME,))],
        ),
        (
            "nor one without heartbeats and pongs, in training",
            situation(
                wanted=Wanted("d1", 1, 1), peers=(trains(silent_seconds=DOUBT + 1, unanswered_seconds=DOUBT + 1),)
            ),
            [Elect(1, (ME,))],
        ),
        (
            "a draining member that is saving is waited for",
            situation(
                wanted=Wanted("d1", 1, 1), newest=record(), floor=3, peers=(trains(state="draining"),), active=None
            ),
            [],
        ),
        (
            "until it has saved",
            situation(
                wanted=Wanted("d1", 1, 1),
                newest=record(),
                floor=3,
                peers=(trains(state="draining", outcome="stopped"),),
            ),
            [Elect(4, (ME,))],
        ),
        ("min_nodes before the timeout", situation(wanted=Wanted("d1", 3, 2), peers=(peer(),)), []),
        (
            "min_nodes after the timeout",
            situation(wanted=Wanted("d1", 3, 2), peers=(peer(),), ready_since=NOW - GANG_TIMEOUT),
            [Elect(1, (ME, YOU))],
        ),
        (
            "survivors continue at once",
            situation(
                wanted=Wanted("d1", 3, 1),
                newest=record(3, ME, YOU, THIRD),
                floor=3,
                peers=(peer(), trains(THIRD, state="draining", outcome="stopped")),
            ),
            [Elect(4, (ME, YOU))],
        ),
        (
            "once each of them is ready",
            situation(
                wanted=Wanted("d1", 3, 1),
                newest=record(3, ME, YOU, THIRD),
                floor=3,
                peers=(peer(), trains(THIRD, outcome="stopped")),
            ),
            [],
        ),
        (
            "or after a short wait",
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
            "nodes that did not train in it are not survivors",
            situation(wanted=Wanted("d1", 2, 1), newest=record(3, YOU, THIRD), floor=3),
            [],
        ),
        (
            "nor those of another run",
            situation(wanted=Wanted("d1", 2, 1), newest=record(3, ME, YOU, digest="d0"), floor=3),
            [],
        ),
        (
            "fewer than min_nodes wait indefinitely",
            situation(wanted=Wanted("d1", 3, 2), ready_since=NOW - 10 * GANG_TIMEOUT),
            [],
        ),
        ("nothing before the records were read", situation(wanted=Wanted("d1", 1, 1), observed_at=None), []),
        ("elected: start", situation(newest=record(3), floor=2), [Start(record(3), 0)]),
        ("elected second", situation(newest=record(3, YOU, ME), floor=2), [Start(record(3, YOU, ME), 1)]),
        ("a record from before this node joined is ignored", situation(newest=record(3), floor=3), []),
        ("not elected", situation(newest=record(3, YOU, THIRD), floor=2), []),
        ("elected for another run document", situation(newest=record(3, digest="d0"), floor=2), []),
        ("another run document: load it", situation(loaded_digest="d0"), [LoadRun()]),
        ("no run document loaded: load it", situation(loaded_digest=None), [LoadRun()]),
        ("loading", situation(loaded_digest="d0", loading="running"), []),
        (
            "loading failed",
            situation(loaded_digest="d0", loading="failed", loading_message="no dataset"),
            [RecordRunOutcome("failed", 0, "no dataset")],
        ),
        ("the run has ended", situation(recorded=RUN_FINISHED, peers=(peer(),)), []),
        (
            "the run has ended, and the node ends with it",
            situation(recorded=RUN_FAILED, ends_with_run=True),
            [Leave("the run has ended", False, False)],
        ),
        (
            "finished: the first member records it",
            situation(judgement=Judgement("finished", "d1", 9, "", mine=True, since=NOW)),
            [RecordRunOutcome("finished", 9, "")],
        ),
        (
            "the other members wait",
            situation(judgement=Judgement("finished", "d1", 9, "", mine=False, since=NOW - 1), peers=(peer(),)),
            [],
        ),
        (
            "and record it after the wait",
            situation(judgement=Judgement("finished", "d1", 9, "", mine=False, since=NOW - 2 * TIMEOUT - 1)),
            [RecordRunOutcome("finished", 9, "")],
        ),
        (
            "notice while idle: the run continues",
            situation(notice=NOTICE),
            [Leave("spot interruption (terminate)", False, True, run_continues=True)],
        ),
        (
            "notice before the outcome is recorded",
            situation(notice=NOTICE, judgement=Judgement("finished", "d1", 9, "", mine=False, since=NOW)),
            [RecordRunOutcome("finished", 9, ""), Leave("spot interruption (terminate)", False, True)],
        ),
        (
            "notice in the first hour: EC2 reclaims the instance",
            situation(notice=NOTICE, free_until_unix=UNIX + 121),
            [Leave(LEAVES, False, True, True, reclaim_unix=UNIX + 120 + RECLAIM_LIMIT_SECONDS)],
        ),
        (
            "notice at the end of the first hour: the instance shuts down",
            situation(notice=NOTICE, free_until_unix=UNIX + 120),
            [Leave(LEAVES, False, True, True)],
        ),
        (
            "notice in the first hour with a wrong clock: AWS's own times count",
            situation(notice=InterruptionNotice("terminate", UNIX - 5000), free_until_unix=UNIX - 4000),
            [Leave(LEAVES, False, True, True, reclaim_unix=UNIX + RECLAIM_LIMIT_SECONDS)],
        ),
        (
            "notice in the first hour with a clock that is slow",
            situation(notice=InterruptionNotice("terminate", UNIX + 5000), free_until_unix=UNIX + 6000),
            [Leave(LEAVES, False, True, True, reclaim_unix=UNIX + NOTICE_SECONDS + RECLAIM_LIMIT_SECONDS)],
        ),
        (
            "notice in the first hour, but the group terminates the instance",
            situation(notice=NOTICE, free_until_unix=UNIX + 3000, scale_in_since_unix=UNIX),
            [Leave(LEAVES, True, True, True)],
        ),
        (
            "a signal in the first hour is not an interruption",
            situation(signalled_since_unix=UNIX, free_until_unix=UNIX + 3000),
            [Leave("the supervisor received a signal", False, False, run_continues=True)],
        ),
        ("scale-in", situation(scale_in_since_unix=UNIX, recorded=RUN_FINISHED), [Leave("scale-in", True, True)]),
        (
            "notice and scale-in: the hook is completed as well",
            situation(notice=NOTICE, scale_in_since_unix=UNIX),
            [Leave("spot interruption (terminate)", True, True, run_continues=True)],
        ),
        (
            "stopped by an operator: the instance shuts down",
            situation(stopped_since_unix=UNIX),
            [Leave("an operator stopped the run", False, True, run_continues=True)],
        ),
        (
            "stopped while the group terminates the instance",
            situation(stopped_since_unix=UNIX, scale_in_since_unix=UNIX),
            [Leave("scale-in", True, True, run_continues=True)],
        ),
        (
            "signal: the instance keeps running",
            situation(signalled_since_unix=UNIX),
            [Leave("the supervisor received a signal", False, False, run_continues=True)],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_between_generations(name: str, given: Situation, expected: list[Any]) -> None:
    assert decide(given) == expected


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("nothing to do", training(), []),
        ("notice", training(notice=NOTICE), [RequestStop("spot interruption (terminate)", UNIX + 110, train_on=True)]),
        (
            "a short notice keeps a small margin",
            training(notice=InterruptionNotice("terminate", UNIX + 20)),
            [RequestStop("spot interruption (terminate)", UNIX + 18, train_on=True)],
        ),
        ("scale-in", training(scale_in_since_unix=UNIX), [RequestStop("scale-in", UNIX + SCALE_IN_LIMIT_SECONDS)]),
        ("run changed", training(wanted=Wanted("d2", 2, 2)), [RequestStop("the run document changed", STOP_AT)]),
        (
            "stop already requested",
            training(wanted=Wanted("d2", 2, 2), active=stopping(50)),
            [],
        ),
        (
            "a later notice is more urgent, without train_on",
            training(notice=NOTICE, active=stopping(250)),
            [RequestStop("spot interruption (terminate)", UNIX + 110)],
        ),
        (
            "a change after a notice is not more urgent",
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
            [Kill("failed", "the trainer did not exit in time after: x")],
        ),
        (
            "does not stop in time, by the monotonic clock",
            training(notice=NOTICE, active=stopping(-1), now_unix=UNIX - 3600),
            [Kill("failed", "the trainer did not exit in time after: x")],
        ),
        (
            "a clock that was set forward does not end a save",
            training(wanted=Wanted("d2", 2, 2), active=stopping(50), now_unix=UNIX + 3600),
            [],
        ),
        (
            "a notice with a slow clock leaves two minutes, not an hour",
            training(notice=NOTICE, noticed_unix=UNIX - 3600, now_unix=UNIX - 3600),
            [RequestStop("spot interruption (terminate)", UNIX - 3600 + 110, train_on=True)],
        ),
        (
            "a notice with a fast clock: save at once",
            training(notice=NOTICE, noticed_unix=UNIX + 3600, now_unix=UNIX + 3600),
            [RequestStop("spot interruption (terminate)", UNIX + 3600 + 110)],
        ),
        ("rebalance", training(rebalance_pending=True), [RequestSave()]),
        (
            "rebalance while stopping: the stop saves",
            training(rebalance_pending=True, active=stopping(50)),
            [],
        ),
        (
            "silent",
            training(peers=(trains(silent_seconds=TIMEOUT + 1),)),
            [Kill("lost_peer", "i-you does not send heartbeats")],
        ),
        ("silent for less", training(peers=(trains(silent_seconds=TIMEOUT),)), []),
        (
            "silent for half the time, without pongs",
            training(peers=(trains(silent_seconds=DOUBT + 1, unanswered_seconds=DOUBT + 1),)),
            [Kill("lost_peer", "i-you does not send heartbeats or respond to pings")],
        ),
        (
            "no pongs for less than that: datagrams may be lost",
            training(peers=(trains(silent_seconds=DOUBT + 1, unanswered_seconds=DOUBT),)),
            [],
        ),
        (
            "no pongs, but heartbeats: datagrams are dropped",
            training(peers=(trains(silent_seconds=DOUBT, unanswered_seconds=100),)),
            [],
        ),
        (
            "neither heartbeats nor pongs, but the generation has just started",
            training(peers=(trains(silent_seconds=50, unanswered_seconds=50),), active=active(started_at=NOW - DOUBT)),
            [],
        ),
        ("no longer in the records", training(peers=()), [Kill("lost_peer", "i-you does not send heartbeats")]),
        (
            "silence from before the generation does not count",
            training(peers=(trains(silent_seconds=50),), active=active(started_at=NOW - 5)),
            [],
        ),
        (
            "unreadable records do not count as silence",
            training(peers=(trains(silent_seconds=TIMEOUT),), now=NOW + 100),
            [],
        ),
        (
            "silence takes precedence over a notice",
            training(notice=NOTICE, peers=()),
            [Kill("lost_peer", "i-you does not send heartbeats")],
        ),
        (
            "a peer that restarted",
            training(peers=(peer(),)),
            [Kill("lost_peer", "i-you is alive but is not taking part in generation 3")],
        ),
        (
            "a peer that has not started yet",
            training(peers=(peer(),), active=active(seen=frozenset(), started_at=NOW - 5)),
            [],
        ),
        (
            "a peer that never starts",
            training(peers=(peer(),), active=active(seen=frozenset())),
            [Kill("lost_peer", "i-you is alive but is not taking part in generation 3")],
        ),
        (
            "a peer failed",
            training(peers=(trains(outcome="failed"),)),
            [Kill("failed", "i-you ended its part: failed")],
        ),
        (
            "a peer lost another",
            training(peers=(trains(outcome="lost_peer"),)),
            [Kill("lost_peer", "i-you ended its part: lost_peer")],
        ),
        (
            "a peer stopped, left, and is silent",
            training(peers=(trains(state="draining", outcome="stopped", silent_seconds=TIMEOUT + 1),)),
            [],
        ),
        ("a peer stopped recently", training(peers=(trains(state="ready", outcome="stopped"),)), []),
        (
            "a peer finished long ago",
            training(peers=(trains(outcome="finished", ended_seconds=STRAGGLER_SECONDS + 1),)),
            [Kill("failed", f"i-you finished {STRAGGLER_SECONDS + 1:.0f} s ago, but this node is still running")],
        ),
        (
            "overtaken",
            training(newest=record(4, YOU, THIRD)),
            [Kill("lost_peer", "generation 4 started without this node")],
        ),
        (
            "overtaken while saving before leaving: the fence decides",
            training(newest=record(4, YOU, THIRD), notice=NOTICE),
            [RequestStop("spot interruption (terminate)", UNIX + 110, train_on=True)],
        ),
        ("failed elsewhere", training(recorded=RUN_FAILED), [Kill("failed", "the run has failed: three times")]),
        ("finished elsewhere: no action", training(recorded=RUN_FINISHED), []),
        (
            "the missing node is ready",
            training(wanted=Wanted("d1", 3, 2), peers=(trains(), peer(THIRD))),
            [RequestStop("the gang grows to 3 nodes", STOP_AT)],
        ),
        (
            "only the first member requests the stop",
            training(wanted=Wanted("d1", 3, 2), peers=(trains(), peer(THIRD)), active=active(rank=1)),
            [],
        ),
        (
            "stopped by an operator",
            training(stopped_since_unix=UNIX - 5),
            [RequestStop("an operator stopped the run", STOP_AT - 5)],
        ),
        (
            "stopped while a restart is pending: no later deadline",
            training(stopped_since_unix=UNIX, active=stopping(STOP_LIMIT_SECONDS)),
            [],
        ),
        (
            "a restart of this generation",
            training(restart_generation=record().generation),
            [RequestStop("an operator requested a restart", STOP_AT)],
        ),
        ("a restart of an earlier generation", training(restart_generation=record().generation - 1), []),
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
        ("failed, no news of the others", training(active=ended("failed")), None),
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
        ("failed, the peer is no longer in the records", training(active=ended("failed"), peers=()), "lost_peer"),
        ("failed, the peer restarted", training(active=ended("failed"), peers=(peer(),)), "lost_peer"),
        (
            "failed, the peer lost a third node",
            training(active=ended("failed"), peers=(trains(outcome="lost_peer"),)),
            "lost_peer",
        ),
        ("failed, and the peer continues", training(active=ended("failed", at=NOW - 2 * TIMEOUT - 1)), "failed"),
        ("failed while leaving: no time to wait", training(active=ended("failed"), notice=NOTICE), "failed"),
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


LOST = "gpu 0000:1b:00: Xid 79 since boot: the GPU fell off the bus"


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("nothing can be saved", training(gpu_fault=LOST), [Kill("lost_peer", LOST)]),
        ("also with a notice", training(gpu_fault=LOST, notice=NOTICE), [Kill("lost_peer", LOST)]),
        (
            "the trainer's failure is not one of the run",
            training(gpu_fault=LOST, active=ended("failed", message="CUDA error")),
            [Conclude(Result("lost_peer", 7, f"{LOST}; trainer: CUDA error"))],
        ),
        ("the node leaves", situation(gpu_fault=LOST), [Leave(LOST, False, True, run_continues=True)]),
        (
            "the node leaves while its group terminates it",
            situation(gpu_fault=LOST, scale_in_since_unix=1.0),
            [Leave(LOST, True, True, run_continues=True)],
        ),
    ],
)
def test_a_lost_gpu(name: str, given: Situation, expected: list[Any]) -> None:
    assert decide(given) == expected, name
    assert node_state(given) == "draining"


@pytest.mark.parametrize(("seconds", "expected"), [(None, 20.0), (105.0, 105.0)])
def test_the_grace_period_is_the_deadline_of_a_save_after_a_signal(seconds: float | None, expected: float) -> None:
    (stop,) = decide(training(signalled_since_unix=UNIX, signal_seconds=seconds))
    assert stop == RequestStop("the supervisor received a signal", UNIX + expected)
