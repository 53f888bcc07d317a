"""Changes of a generation in place, as situations and expected actions, and their files on a node."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from bootstrap.errors import ControlStoreError
from bootstrap.supervise.decide import decide, node_state
from bootstrap.supervise.in_place import (
    BLIND_SECONDS,
    CHANGE_LIMIT_SECONDS,
    FENCED_LIMIT_SECONDS,
    PLANNED_LIMIT_SECONDS,
)
from bootstrap.supervise.membership.records import GenerationRecord, Member, generation_from_bytes, to_text
from bootstrap.supervise.situation import (
    Active,
    AwaitChange,
    Conclude,
    Elect,
    Fence,
    HandOver,
    Hold,
    Kill,
    RequestStop,
    Result,
    Start,
    Wanted,
)
from bootstrap.supervise.trainers.trainer import Trainer
from bootstrap.system import System
from tests.bootstrap.test_decide import ME, NOTICE, NOW, THIRD, YOU, active, peer, record, situation, trains
from tests.bootstrap.test_trainer import begin, make, wait

ALL = (ME, YOU, THIRD)
FOURTH = Member("i-fourth", "10.0.0.4")
WANTED = Wanted("d1", nodes=3, min_nodes=1)


def formed(*members: Member, **changes: Any) -> Active:
    seen = frozenset(member.instance_id for member in members or ALL)
    return active(record=record(3, *(members or ALL)), seen=seen, is_formed=True, **changes)


def continues(generation: int, *members: Member, survivors: int, planned: bool = False) -> GenerationRecord:
    first = members[0]
    return GenerationRecord(
        generation, "d1", members, first.address, 29500, first.instance_id, survivors=survivors, planned=planned
    )


SILENT: dict[str, Any] = {"silent_seconds": 60.0}
LOSES = {"wanted": WANTED, "peers": (trains(), trains(THIRD, **SILENT))}
LATE = NOW - CHANGE_LIMIT_SECONDS - 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # The first sign of a change is noted, and then the first member that stays elects.
        ({**LOSES, "active": formed()}, [AwaitChange()]),
        (
            {"wanted": WANTED, "peers": (trains(), trains(THIRD)), "active": formed(changing_since=NOW)},
            [AwaitChange(is_needed=False)],
        ),
        ({**LOSES, "active": formed(changing_since=NOW)}, [Elect(4, (ME, YOU), survivors=2, planned=False)]),
        ({**LOSES, "active": formed(YOU, ME, THIRD, changing_since=NOW)}, []),
        (
            {
                "wanted": WANTED,
                "peers": (trains(outcome="killed"), trains(THIRD)),
                "active": formed(changing_since=NOW),
            },
            [Elect(4, (ME, THIRD), survivors=2, planned=False)],
        ),
        (
            {
                "wanted": WANTED,
                "peers": (trains(state="draining"), trains(THIRD)),
                "active": formed(changing_since=NOW),
            },
            [Elect(4, (ME, THIRD), survivors=2, planned=True)],
        ),
        # A node joins at a step on which all agree; not together with a loss.
        (
            {"wanted": WANTED, "peers": (trains(), peer(THIRD)), "active": formed(ME, YOU, changing_since=NOW)},
            [Elect(4, (ME, YOU, THIRD), survivors=2, planned=True)],
        ),
        (
            {"wanted": WANTED, "peers": (trains(**SILENT), peer(THIRD)), "active": formed(ME, YOU, changing_since=NOW)},
            [Elect(4, (ME,), survivors=1, planned=False)],
        ),
        # It waits for another node that is loading, but not for long.
        (
            {
                "wanted": Wanted("d1", nodes=4, min_nodes=1),
                "peers": (trains(), peer(THIRD), peer(FOURTH, run_digest="")),
                "active": formed(ME, YOU, changing_since=NOW - 1.0),
            },
            [],
        ),
        (
            {
                "wanted": Wanted("d1", nodes=4, min_nodes=1),
                "peers": (trains(), peer(THIRD), peer(FOURTH, run_digest="")),
                "active": formed(ME, YOU, changing_since=NOW - 2.0),
            },
            [Elect(4, (ME, YOU, THIRD), survivors=2, planned=True)],
        ),
        (
            {
                "wanted": Wanted("d1", nodes=4, min_nodes=1),
                "peers": (trains(), peer(THIRD), peer(FOURTH)),
                "active": formed(ME, YOU, changing_since=NOW - 1.0),
            },
            [Elect(4, (ME, YOU, THIRD, FOURTH), survivors=2, planned=True)],
        ),
        # This node leaves: the others elect. If they do not, the trainers stop as usual.
        (
            {"wanted": WANTED, "notice": NOTICE, "peers": (trains(), trains(THIRD)), "active": formed()},
            [AwaitChange()],
        ),
        (
            {
                "wanted": WANTED,
                "notice": NOTICE,
                "peers": (trains(), trains(THIRD)),
                "active": formed(changing_since=NOW),
            },
            [],
        ),
    ],
)
def test_the_members_that_stay_elect(given: dict[str, Any], expected: list[Any]) -> None:
    assert decide(situation(**given)) == expected


@pytest.mark.parametrize(
    "given",
    [
        {**LOSES, "active": formed(changing_since=LATE)},
        {**LOSES, "active": active(record=record(3, *ALL), changing_since=NOW)},  # the ranks cannot change
        {**LOSES, "wanted": Wanted("d1", nodes=3, min_nodes=3), "active": formed(changing_since=NOW)},
        {"wanted": WANTED, "peers": (trains(), trains(THIRD, outcome="failed")), "active": formed(changing_since=NOW)},
    ],
)
def test_otherwise_the_generation_ends(given: dict[str, Any]) -> None:
    (action,) = decide(situation(**given))
    assert isinstance(action, Kill)


def test_a_leaver_that_the_others_do_not_replace_stops_as_usual() -> None:
    late = formed(changing_since=LATE)
    (action,) = decide(situation(wanted=WANTED, notice=NOTICE, peers=(trains(), trains(THIRD)), active=late))
    assert isinstance(action, RequestStop) and action.train_on


NEXT = continues(4, ME, YOU, survivors=2)
PLANNED = continues(4, ME, YOU, survivors=2, planned=True)
WITHOUT = continues(4, YOU, THIRD, survivors=2, planned=True)
LOST = continues(4, YOU, THIRD, survivors=2)
AGAIN = continues(5, YOU, THIRD, ME, survivors=2, planned=True)


@pytest.mark.parametrize(
    ("newest", "given", "expected"),
    [
        (NEXT, {}, [HandOver(NEXT, 0)]),
        (NEXT, {"pending": NEXT, "handed_at": NOW}, []),
        (
            NEXT,
            {"pending": NEXT, "handed_at": NOW - 13},
            [Kill("lost_peer", "generation 4 was not formed within 12 s")],
        ),
        (PLANNED, {"pending": PLANNED, "handed_at": NOW - 13}, []),
        (
            PLANNED,
            {"pending": PLANNED, "handed_at": NOW - PLANNED_LIMIT_SECONDS - 1, "changing_since": NOW},
            [Elect(5, (ME, YOU), survivors=2, planned=True)],
        ),
        # A planned change that leaves this node out is handed to it; after a loss, its ranks wait to join again.
        (WITHOUT, {}, [HandOver(WITHOUT, None)]),
        (
            LOST,
            {},
            [Fence(LOST)],
        ),
    ],
)
def test_a_record_is_handed_to_the_ranks(newest: GenerationRecord, given: dict[str, Any], expected: list[Any]) -> None:
    members, peers = (ALL, (trains(), trains(THIRD))) if THIRD in newest.members else ((ME, YOU), (trains(),))
    wanted = Wanted("d1", nodes=len(members), min_nodes=1)
    assert decide(situation(wanted=wanted, peers=peers, newest=newest, active=formed(*members, **given))) == expected


def fenced(**changes: Any) -> Active:
    return formed(fenced_by=LOST, **{"fenced_at": NOW, **changes})


@pytest.mark.parametrize(
    ("newest", "active", "expected"),
    [
        (LOST, fenced(), []),
        (LOST, fenced(changing_since=NOW), []),  # it elects nothing
        (WITHOUT_AGAIN := continues(5, YOU, survivors=1), fenced(), [Fence(WITHOUT_AGAIN)]),
        (AGAIN, fenced(), [HandOver(AGAIN, 2)]),
        (AGAIN, fenced(pending=AGAIN, handed_at=NOW), []),
        (LATER := continues(6, YOU, ME, survivors=1, planned=True), fenced(pending=AGAIN), [HandOver(LATER, 1)]),
        (
            LOST,
            fenced(fenced_at=NOW - FENCED_LIMIT_SECONDS - 1),
            [Kill("lost_peer", "joined no generation within 300 s")],
        ),
        (
            record(5, YOU, THIRD, ME),  # from the checkpoint
            fenced(),
            [Kill("lost_peer", f"{YOU.instance_id} is alive but is not taking part in generation 3")],
        ),
    ],
)
def test_fenced_ranks_wait_for_a_generation_that_they_join(
    newest: GenerationRecord, active: Active, expected: list[Any]
) -> None:
    peers = (trains(generation=newest.generation), trains(THIRD, generation=newest.generation))
    assert decide(situation(wanted=WANTED, peers=peers, newest=newest, active=active)) == expected


def test_a_fenced_node_offers_to_join_and_leaves_at_once() -> None:
    peers = (trains(generation=4), trains(THIRD, generation=4))
    given = {"wanted": WANTED, "peers": peers, "newest": LOST}
    assert node_state(situation(**given, active=fenced())) == "ready"
    assert node_state(situation(**given, active=fenced(pending=AGAIN))) == "training"
    (kill,) = decide(situation(**given, active=fenced(), notice=NOTICE))
    assert isinstance(kill, Kill) and "spot interruption" in kill.message


def test_ranks_wait_while_their_supervisor_cannot_read_the_records() -> None:
    peers = (trains(), trains(THIRD))
    blind = {"wanted": WANTED, "peers": peers, "observed_at": NOW - BLIND_SECONDS - 1}
    assert decide(situation(**blind, active=formed())) == [Hold(True)]
    assert decide(situation(**blind, active=formed(is_blind=True))) == []
    assert decide(situation(wanted=WANTED, peers=peers, active=formed(is_blind=True))) == [Hold(False)]
    assert decide(situation(**blind, active=active(record=record(3, *ALL)))) == []  # its ranks cannot change


def test_a_change_under_way_is_replaced_when_another_member_is_lost() -> None:
    planned = continues(4, ME, YOU, THIRD, survivors=2, planned=True)
    pending = formed(ME, YOU, pending=planned, handed_at=NOW, changing_since=NOW)
    given = {"wanted": WANTED, "newest": planned, "active": pending}
    assert decide(situation(**given, peers=(trains(), peer(THIRD)))) == []
    lost = (trains(**SILENT), peer(THIRD))
    assert decide(situation(**given, peers=lost)) == [Elect(5, (ME,), survivors=1, planned=False)]


def test_only_members_that_join_start_trainers_for_a_record_in_place() -> None:
    joins = continues(4, YOU, ME, survivors=1, planned=True)
    assert decide(situation(newest=joins, peers=(trains(generation=4),))) == [Start(joins, 1)]
    survives = continues(4, ME, YOU, survivors=2)
    assert decide(situation(newest=survives, peers=(trains(generation=4),))) == []


def test_a_node_that_joins_waits_while_the_others_train() -> None:
    joins = Active(continues(4, YOU, THIRD, ME, survivors=2, planned=True), 2, NOW - 60.0, seen=frozenset({"i-you"}))
    trains_on = (trains(), trains(THIRD))
    assert decide(situation(wanted=WANTED, peers=trains_on, newest=joins.record, active=joins)) == []
    ended = (trains(), trains(THIRD, state="ready", outcome="lost_peer"))
    (kill,) = decide(situation(wanted=WANTED, peers=ended, newest=joins.record, active=joins))
    assert isinstance(kill, Kill) and kill.outcome == "lost_peer"


def test_a_killed_rank_is_a_failure_unless_the_others_continue() -> None:
    killed = formed(result=Result("killed", 7, "ranks [0] were killed"), ended_at=NOW)
    peers = (trains(), trains(THIRD))
    assert decide(situation(wanted=WANTED, peers=peers, active=killed)) == []
    without = continues(4, YOU, THIRD, survivors=2)
    (conclude,) = decide(situation(wanted=WANTED, peers=peers, active=killed, newest=without))
    assert isinstance(conclude, Conclude) and conclude.result.outcome == "lost_peer"
    ended = (trains(outcome="killed"), trains(THIRD, outcome="killed"))
    (conclude,) = decide(situation(wanted=WANTED, peers=ended, active=killed))
    assert isinstance(conclude, Conclude) and conclude.result.outcome == "failed"


def test_a_record_has_at_most_as_many_survivors_as_members() -> None:
    text = to_text(continues(4, ME, YOU, survivors=3)).encode()
    with pytest.raises(ControlStoreError, match="survivors: 3"):
        generation_from_bytes(text, "s3://b/generations/00000004.json")
    old = json.loads(to_text(record(4)))
    del old["survivors"], old["planned"]
    assert generation_from_bytes(json.dumps(old).encode(), "s3://b/generations/00000004.json").survivors == 0


# Writes what ranks write: that they are in a generation.
FORMS = """
import json, os, sys, time
def forms(generation):
    os.makedirs("formed", exist_ok=True)
    with open("formed/new", "w") as file:
        json.dump({"generation": generation, "rank": 0, "step": 1}, file)
    os.rename("formed/new", "formed/local-00.json")
def ends(generation, rank):
    os.makedirs("outcomes", exist_ok=True)
    with open("outcomes/new", "w") as file:
        json.dump({"generation": generation, "rank": rank, "outcome": OUTCOME, "step": 9, "message": "m"}, file)
    os.rename("outcomes/new", f"outcomes/rank-{rank:05d}.json")
forms(3)
while not os.path.exists("generation.json"):
    time.sleep(0.01)
record = json.load(open("generation.json"))
"""


@pytest.mark.parametrize(("outcome", "expected"), [("finished", "finished"), ("not_reformed", "lost_peer")])
def test_the_outcome_of_ranks_that_have_changed(tmp_path: Path, outcome: str, expected: str) -> None:
    trainer = make(tmp_path, 1)
    begin(
        trainer,
        f"OUTCOME = {outcome!r}\n{FORMS}"
        "forms(record['generation'])\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
        "ends(record['generation'], record['node_rank'])",
    )
    wait(lambda: trainer.formed() == 3, "the ranks to be in their loop")
    trainer.hand_over(continues(4, ME, YOU, survivors=2), 0)
    wait(lambda: trainer.formed() == 4, "the ranks to change")
    assert trainer.poll() is None
    (tmp_path / "gen-3" / "go").touch()
    result = wait(trainer.poll, "the outcome")
    assert (result.outcome, result.step) == (expected, 9)


def test_a_killed_rank_is_reported_before_its_node_has_ended(tmp_path: Path) -> None:
    trainer = Trainer(System(), tmp_path / "gen-3", (0,), 3)
    begin(
        trainer,
        f"OUTCOME = ''\n{FORMS}"
        "os.makedirs('exits')\nopen('exits/new', 'w').write(json.dumps({'exit_code': -9}))\n"
        "os.rename('exits/new', 'exits/rank-00000.json')\ntime.sleep(600)",
    )
    wait(lambda: trainer.formed() == 3, "the ranks to be in their loop")
    assert trainer.poll() is None
    trainer.hand_over(continues(4, ME, YOU, survivors=2), 0)
    result = wait(trainer.poll, "the result")
    assert result.outcome == "killed" and f"-{int(signal.SIGKILL)}" in result.message
    trainer.finish()
