"""Changes of the gang in place: real ranks that lose, add or replace members, compared with resumed runs bit by bit."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.training.conftest import Gangs
from tests.training.reforming_nodes import CONFIG, STEPS, Nodes, assert_equals_resumed
from training.errors import NotReformedError
from training.process.reform.claims import Claim, Verdict, judge

MAX_GROWTH_KIB = 24 << 10
"""Greatest growth of a rank's memory over 120 changes: 0.2 MiB per change. One more set of process groups, buckets and
gradients of the tiny model takes more."""


@pytest.fixture
def nodes(gangs: Gangs, tmp_path: Path) -> Nodes:
    return Nodes(gangs, tmp_path)


def test_a_planned_leave_continues_like_a_resumed_run(nodes: Nodes) -> None:
    nodes.start(["a", "b", "c"], CONFIG)
    nodes.wait(lambda: len(nodes.losses()) > 5)
    nodes.hand_over(2, ["b", "c"], planned=True, to=["a", "b", "c"])
    assert nodes.ends("a", "b", "c") == [75, 0, 0], nodes.errors()
    (reform,) = nodes.records("reform")
    assert (reform["cause"], reform["world_size"], reform["bytes"]) == ("planned", 2, 0)
    left = nodes.nodes["a"].outcomes()[0]
    assert left["outcome"] == "stopped" and "the other nodes continue" in left["message"]
    outcomes = [nodes.nodes[name].outcomes()[0] for name in ("b", "c")]
    assert [(each["generation"], each["rank"]) for each in outcomes] == [(2, 0), (2, 1)]
    formed = json.loads((nodes.root / "c" / "formed" / "local-00.json").read_text())
    assert (formed["generation"], formed["rank"], formed["step"]) == (2, 1, reform["step"])
    assert_equals_resumed(nodes, 3, 2)


@pytest.mark.parametrize("victim", ["a", "c"])  # rank 0 hosts the store and writes the metrics
def test_the_survivors_of_a_killed_rank_continue_like_a_resumed_run(nodes: Nodes, victim: str) -> None:
    nodes.start(["a", "b", "c"], CONFIG)
    nodes.wait(lambda: len(nodes.losses()) > 5)
    os.kill(nodes.nodes[victim].processes[0].pid or 0, signal.SIGKILL)
    survivors = [name for name in ("a", "b", "c") if name != victim]
    nodes.hand_over(2, survivors, planned=False, to=survivors)
    assert nodes.ends(*survivors) == [0, 0], nodes.errors()
    assert nodes.records("reform")[0]["cause"] == "loss"
    assert_equals_resumed(nodes, 3, 2)


def test_a_rank_that_is_one_step_behind_takes_the_state_of_another(nodes: Nodes) -> None:
    nodes.start(["a", "b", "c"], CONFIG, unusual={"b": "behind"})
    nodes.wait(lambda: "an error injected" in nodes.nodes["b"].errors())
    os.kill(nodes.nodes["c"].processes[0].pid or 0, signal.SIGKILL)
    nodes.hand_over(2, ["a", "b"], planned=False, to=["a", "b"])
    assert nodes.ends("a", "b") == [0, 0], nodes.errors()
    (reform,) = nodes.records("reform")
    assert (reform["step"], reform["sources"], reform["receivers"]) == (8, 1, 1)
    assert reform["bytes"] > 0
    assert_equals_resumed(nodes, 3, 2)


def use_of(pid: int | None) -> tuple[int, int, int]:
    """Return a process's numbers of descriptors and threads, and its own memory in KiB."""
    process = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    private = int(status["RssAnon"].split()[0])
    return len(list((process / "fd").iterdir())), len(list((process / "task").iterdir())), private


@pytest.mark.slow
def test_many_changes_leave_nothing_behind(nodes: Nodes) -> None:
    """200 changes, alternately planned and after a loss."""
    nodes.start(["a", "b"], {**CONFIG, "steps": 1_000_000})
    nodes.wait(lambda: len(nodes.losses()) > 5)
    used: list[list[tuple[int, int, int]]] = []
    for generation in range(2, 202):
        nodes.hand_over(generation, ["a", "b"], planned=generation % 2 == 0, to=["a", "b"])
        nodes.wait_for_changes(generation - 1)
        used.append([use_of(nodes.nodes[name].processes[0].pid) for name in ("a", "b")])
    for rank in (0, 1):
        early, late = (
            [max(each[rank][kind] for each in part) for kind in range(3)] for part in (used[40:80], used[160:])
        )
        print(f"rank {rank}: descriptors, threads, KiB: changes 41 to 80 {early}, 161 to 200 {late}")
        assert late[0] <= early[0] + 2 and late[1] <= early[1] + 2, used
        assert late[2] <= early[2] + MAX_GROWTH_KIB, used


def test_a_frozen_rank_does_not_hold_the_others(nodes: Nodes) -> None:
    nodes.start(["a", "b", "c"], CONFIG)
    nodes.wait(lambda: len(nodes.losses()) > 5)
    frozen = nodes.nodes["c"].processes[0].pid or 0
    os.kill(frozen, signal.SIGSTOP)
    try:
        nodes.hand_over(2, ["a", "b"], planned=False, to=["a", "b"])
        assert nodes.ends("a", "b") == [0, 0], nodes.errors()
    finally:
        os.kill(frozen, signal.SIGKILL)
    assert sorted(nodes.losses()) == list(range(1, STEPS + 1))


def test_a_join_continues_like_a_resumed_run(nodes: Nodes) -> None:
    nodes.start(["a", "b"], {**CONFIG, "steps": STEPS})
    nodes.wait(lambda: len(nodes.losses()) > 2)
    nodes.hand_over(2, ["a", "b", "c"], survivors=2, planned=True, to=["c", "a", "b"])
    nodes.start(["c"], CONFIG, generation=2, joins=True)
    assert nodes.ends("a", "b", "c") == [0, 0, 0], nodes.errors()
    (reform,) = nodes.records("reform")
    assert reform["bytes"] > 0 and reform["world_size"] == 3
    assert_equals_resumed(nodes, 2, 3)


def test_a_rank_that_the_others_have_lost_joins_again_without_a_restart(nodes: Nodes) -> None:
    """It was rank 0: it wrote the metrics, and hosted the store."""
    config = {**CONFIG, "steps": 400}
    nodes.start(["c", "a", "b"], config)
    nodes.wait(lambda: len(nodes.losses()) > 5)
    nodes.hand_over(2, ["a", "b"], planned=False, to=["a", "b", "c"])
    nodes.wait(lambda: nodes.records("reform"))
    assert nodes.nodes["c"].processes[0].is_alive(), nodes.errors()
    nodes.hand_over(3, ["a", "b", "c"], survivors=2, planned=True, to=["a", "b", "c"])
    assert nodes.ends("a", "b", "c") == [0, 0, 0], nodes.errors()
    lost, joined = nodes.records("reform")
    assert (lost["cause"], lost["world_size"]) == ("loss", 2)
    assert (joined["cause"], joined["world_size"], joined["sources"], joined["receivers"]) == ("planned", 3, 2, 1)
    assert sorted(nodes.losses()) == list(range(1, 401))
    assert [record["rank"] for record in nodes.nodes["c"].outcomes()] == [2]


def test_ranks_wait_for_a_generation_while_their_supervisor_asks_them_to(nodes: Nodes) -> None:
    nodes.start(["a", "b"], CONFIG, unusual={"a": "impatient"})
    nodes.wait(lambda: len(nodes.losses()) > 5)
    (nodes.root / "a" / "hold").write_text("{}")
    os.kill(nodes.nodes["b"].processes[0].pid or 0, signal.SIGKILL)
    nodes.wait(lambda: "has waited longer than its limit" in nodes.nodes["a"].errors())
    (nodes.root / "a" / "hold").unlink()
    nodes.hand_over(2, ["a"], planned=False, to=["a"])
    assert nodes.ends("a") == [0], nodes.errors()
    assert sorted(nodes.losses()) == list(range(1, STEPS + 1))


def test_one_rank_alone_continues_and_grows_again(nodes: Nodes) -> None:
    nodes.start(["a", "b"], {**CONFIG, "steps": 200})
    nodes.wait(lambda: len(nodes.losses()) > 5)
    os.kill(nodes.nodes["a"].processes[0].pid or 0, signal.SIGKILL)
    nodes.hand_over(2, ["b"], planned=False, to=["b"])
    nodes.wait(lambda: nodes.records("reform"))
    nodes.hand_over(3, ["b", "c"], survivors=1, planned=True, to=["c", "b"])
    nodes.start(["c"], {**CONFIG, "steps": 200}, generation=3, joins=True)
    assert nodes.ends("b", "c") == [0, 0], nodes.errors()
    assert [record["world_size"] for record in nodes.records("reform")] == [1, 2]
    assert sorted(nodes.losses()) == list(range(1, 201))


def test_without_a_next_generation_the_checkpoint_decides(nodes: Nodes) -> None:
    nodes.start(["a", "b"], CONFIG)
    nodes.wait(lambda: len(nodes.losses()) > 5)
    os.kill(nodes.nodes["b"].processes[0].pid or 0, signal.SIGKILL)
    assert nodes.ends("a") == [74], nodes.errors()
    outcome = nodes.nodes["a"].outcomes()[0]
    assert outcome["outcome"] == "not_reformed" and "no generation continues this one" in outcome["message"]


def claim(step: int | None, digest: str = "", previous: str = "", **changes: bool) -> Claim:
    return Claim(step, digest, previous, **{"is_whole": step is not None, **changes})


def test_the_newest_complete_step_is_the_source() -> None:
    behind, ahead, joins = claim(6, "x", "w"), claim(7, "y", "x"), claim(None)
    assert judge([behind, ahead, ahead, joins]) == Verdict(7, [1, 2], [0, 3])
    inside = claim(8, "z", "y", is_whole=False)
    assert judge([ahead, inside]) == Verdict(7, [0], [1])


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ([claim(None), claim(3, is_whole=False)], "no rank holds a complete state"),
        ([claim(7, "x"), claim(7, "y")], "different steps"),
        ([claim(7, "y", "x"), claim(6, "other")], "different steps"),
        ([claim(7, "y", "x"), claim(5, "w")], "rank 1 is at step 5"),
        ([claim(7, "y", "x", fits=False)], "not compiled"),
    ],
)
def test_any_difference_ends_in_the_checkpoint(claims: list[Claim], reason: str) -> None:
    with pytest.raises(NotReformedError, match=reason):
        judge(claims)
