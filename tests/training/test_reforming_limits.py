"""Changes of the gang in place that go wrong: nothing waits past the limit, and the outcome is always in order."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.training.conftest import Gangs, free_port
from tests.training.reforming_nodes import CONFIG, STEPS, Nodes, assert_equals_resumed

FOLLOWS_SECONDS = 8.0
"""A later handover is followed before the limit of the one that it replaces, which is 10 s."""


@pytest.fixture
def nodes(gangs: Gangs, tmp_path: Path) -> Nodes:
    return Nodes(gangs, tmp_path)


def signal_rank(nodes: Nodes, name: str, number: signal.Signals) -> None:
    os.kill(nodes.nodes[name].processes[0].pid or 0, number)


def listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 0.5):
            return True
    except OSError:
        return False


def test_one_survivor_alone_continues_like_a_resumed_run(nodes: Nodes) -> None:
    """Without other ranks, no priming clears the gradients of the step that was broken."""
    nodes.start(["a", "b"], CONFIG)
    nodes.wait(lambda: len(nodes.losses()) > 5)
    signal_rank(nodes, "a", signal.SIGKILL)
    nodes.hand_over(2, ["b"], planned=False, to=["b"])
    assert nodes.ends("b") == [0], nodes.errors()
    assert_equals_resumed(nodes, 2, 1)


def test_a_priming_that_was_broken_leaves_no_gradients(nodes: Nodes) -> None:
    port = nodes.hand_over(2, ["a", "c"], survivors=1, planned=False, to=["c"])
    nodes.start(["c"], CONFIG, generation=2, joins=True, unusual={"c": "dies priming"})
    nodes.wait(lambda: "this rank joins" in nodes.nodes["c"].errors())
    nodes.start(["a", "b"], CONFIG)
    nodes.wait(lambda: len(nodes.losses()) > 5)
    signal_rank(nodes, "b", signal.SIGKILL)
    nodes.hand_over(2, ["a", "c"], survivors=1, planned=False, to=["a"], port=port)
    assert nodes.ends("c") == [9], nodes.errors()
    nodes.hand_over(3, ["a"], planned=False, to=["a"])
    assert nodes.ends("a") == [0], nodes.errors()
    assert "generation 2 was not formed: prime" in nodes.nodes["a"].errors()
    assert_equals_resumed(nodes, 2, 1)


@pytest.mark.parametrize("second", ["b", "d"])  # the host of the next generation's store, or another rank
def test_a_second_loss_while_the_ranks_meet_is_one_more_change(nodes: Nodes, second: str) -> None:
    nodes.start(["a", "b", "c", "d"], CONFIG)
    nodes.wait(lambda: len(nodes.losses()) > 5)
    signal_rank(nodes, "a", signal.SIGKILL)
    signal_rank(nodes, second, signal.SIGSTOP)
    port = nodes.hand_over(2, ["b", "c", "d"], planned=False, to=["b", "c", "d"])
    survivors = ["c", "d"] if second == "b" else ["b", "c"]
    if second == "d":
        nodes.wait(lambda: listens(port))  # the others wait for it
    else:
        nodes.wait(lambda: all("waiting for the next generation" in nodes.nodes[each].errors() for each in survivors))
    handed = time.time()
    nodes.hand_over(3, survivors, planned=False, to=survivors)
    try:
        assert nodes.ends(*survivors) == [0, 0], nodes.errors()
    finally:
        signal_rank(nodes, second, signal.SIGKILL)
    (reform,) = nodes.records("reform")
    assert reform["generation"] == 3 and reform["unix_seconds"] - handed < FOLLOWS_SECONDS
    assert_equals_resumed(nodes, 4, 2)


def test_a_rank_that_cannot_change_reports_the_generation_and_rank_that_its_supervisor_knows(nodes: Nodes) -> None:
    nodes.start(["a", "b", "c"], CONFIG, unusual={"b": "cannot prime", "c": "cannot prime"})
    nodes.wait(lambda: len(nodes.losses()) > 5)
    signal_rank(nodes, "a", signal.SIGKILL)
    nodes.hand_over(2, ["b", "c"], planned=False, to=["b", "c"])
    assert nodes.ends("b", "c") == [74, 74], nodes.errors()
    for name, rank in (("b", 1), ("c", 2)):
        (outcome,) = nodes.nodes[name].outcomes()
        assert (outcome["generation"], outcome["rank"], outcome["outcome"]) == (1, rank, "not_reformed")
        assert "prime: RuntimeError" in outcome["message"]
        assert (nodes.root / name / "outcomes" / f"rank-{rank:05d}.json").exists()


def test_a_wait_without_a_limit_ends_with_the_change(nodes: Nodes) -> None:
    nodes.start(["a", "b", "c"], CONFIG, unusual={"b": "hangs", "c": "hangs"})
    nodes.wait(lambda: len(nodes.losses()) > 5)
    signal_rank(nodes, "a", signal.SIGKILL)
    nodes.hand_over(2, ["b", "c"], planned=False, to=["b", "c"])
    assert nodes.ends("b", "c") == [74, 74], nodes.errors()
    (outcome,) = nodes.nodes["b"].outcomes()
    assert (outcome["generation"], outcome["rank"], outcome["outcome"]) == (1, 1, "not_reformed")
    assert "in claim" in nodes.nodes["b"].errors()  # the stack of the thread that waits


def test_a_rank_whose_main_thread_does_not_notice_a_loss_ends(nodes: Nodes) -> None:
    nodes.start(["a", "b"], CONFIG, unusual={"b": "does not notice"})
    nodes.wait(lambda: "an endless wait" in nodes.nodes["b"].errors())
    signal_rank(nodes, "a", signal.SIGKILL)
    nodes.hand_over(2, ["b"], planned=False, to=["b"])
    assert nodes.ends("b") == [74], nodes.errors()
    (outcome,) = nodes.nodes["b"].outcomes()
    assert (outcome["generation"], outcome["rank"], outcome["outcome"]) == (1, 1, "not_reformed")
    assert "did not begin the change" in outcome["message"]
    assert "in pass_gate" in nodes.nodes["b"].errors()


def test_a_rank_that_joins_does_not_fail_if_the_gang_ends(nodes: Nodes) -> None:
    from training.process.store import gang_store

    nodes.start(["c"], CONFIG, generation=2, joins=True)
    port = nodes.hand_over(2, ["a", "b", "c"], survivors=2, planned=True, to=["c"])
    stores = [gang_store("127.0.0.1", port, True, timedelta(seconds=10))]
    nodes.wait(lambda: stores[0].check(["ready/2"]))
    stores.clear()
    assert nodes.ends("c") == [74], nodes.errors()
    (outcome,) = nodes.nodes["c"].outcomes()
    assert outcome["outcome"] == "not_reformed" and "has ended" in outcome["message"]


def test_the_others_continue_without_a_rank_that_dies_while_they_wait_for_it(nodes: Nodes) -> None:
    """Rank 0 waits at the store that it hosts itself, the other rank at a connection to it."""
    nodes.start(["a", "b"], CONFIG)
    nodes.wait(lambda: len(nodes.losses()) > 5)
    nodes.hand_over(2, ["a", "b", "c"], survivors=2, planned=True, to=["c", "a", "b"])
    nodes.start(["c"], CONFIG, generation=2, joins=True, unusual={"c": "dies"})
    assert nodes.ends("c") == [9]
    handed = time.time()
    nodes.hand_over(3, ["a", "b"], planned=True, to=["a", "b"])
    assert nodes.ends("a", "b") == [0, 0], nodes.errors()
    (reform,) = nodes.records("reform")
    assert reform["generation"] == 3 and reform["unix_seconds"] - handed < FOLLOWS_SECONDS
    assert sorted(nodes.losses()) == list(range(1, STEPS + 1))


def test_ranks_agree_on_the_handover_that_they_have_reported(tmp_path: Path) -> None:
    """A handover that arrives between the flags and their sums must not change one rank's decision."""
    from training.loop.reforming.change import Reforming
    from training.process.distributed import ControlFlags
    from training.process.outcome import Outcome

    def hand_over(generation: int) -> None:
        document = {"generation": generation, "nodes": 1, "node_rank": None, "survivors": 1, "planned": True}
        text = json.dumps({**document, "master_address": "127.0.0.1", "master_port": free_port()})
        (tmp_path / "next").write_text(text)
        (tmp_path / "next").rename(tmp_path / "generation.json")

    gang = SimpleNamespace(world_size=1, rank=0, local_rank=0, local_world_size=1)
    state = SimpleNamespace(step=3)
    run: Any = SimpleNamespace(run_directory=tmp_path, generation=1, gang=gang, state=state)
    reforming = Reforming(run, lambda: Outcome(1, 0, "not_reformed", 3, None), joins=False)
    hand_over(2)
    assert reforming.ready_for() == 2
    hand_over(3)
    agreed = reforming.agreed(ControlFlags(next=2, next_squared=4))
    assert agreed is not None and agreed.generation == 2
    assert reforming.ready_for() == 3
    assert reforming.agreed(ControlFlags(next=2, next_squared=4)) is None
