"""Changes of the gang in place: real ranks that lose, add or replace members, compared with resumed runs bit by bit."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import TINY, Gangs, Trained, free_port
from tests.training.rank_process import run_rank, run_rank_behind
from tests.training.test_bit_equal_resume import assert_same_end
from training.errors import NotReformedError
from training.process.reform.claims import Claim, Verdict, judge

STEPS = 40
CONFIG = {
    **TINY,
    "steps": STEPS,
    "global_batch_size": 12,
    "checkpoint": {"interval_steps": 1000},
    "validation": {"interval_steps": 15, "batches": 2},
    "parallel": {"reform": True},
}


class Nodes:
    """Nodes of one process each, every one with its own run directory, as under supervisors."""

    def __init__(self, gangs: Gangs, tmp_path: Path) -> None:
        self.gangs, self.root = gangs, tmp_path
        self.nodes: dict[str, Trained] = {}
        self.port = free_port()
        self.checkpoints = str(tmp_path / "store")

    def start(
        self, names: list[str], config: dict[str, Any], generation: int = 1, joins: bool = False, behind: str = ""
    ) -> None:
        for rank, name in enumerate(names):
            directory = self.root / name
            directory.mkdir(exist_ok=True)
            (directory / "config.json").write_text(json.dumps(config))
            run = Trained(directory, self.checkpoints)
            self.nodes[name] = run
            self.gangs._started.append(run)
            environment = {"RANK": str(rank), "WORLD_SIZE": str(len(names)), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port)}
            environment["TRAINSTACK_STORE_HOST"] = "rank 0"
            environment["TORCHELASTIC_USE_AGENT_STORE"] = "True"
            arguments = [
                *("train", "--config", str(directory / "config.json"), "--dataset", str(self.gangs._dataset)),
                *("--checkpoints", self.checkpoints, "--run-directory", str(directory)),
                *("--generation", str(generation), *(["--joins"] if joins else [])),
            ]
            target = run_rank_behind if name == behind else run_rank
            process = self.gangs._context.Process(
                target=target, args=(arguments, environment, str(directory / "stderr-0"))
            )
            process.start()
            run.processes.append(process)

    def hand_over(
        self, generation: int, members: list[str], *, survivors: int | None = None, planned: bool, to: list[str]
    ) -> None:
        port = free_port()
        for name in to:
            document = {
                "schema_version": 1,
                "generation": generation,
                "nodes": len(members),
                "node_rank": members.index(name) if name in members else None,
                "survivors": len(members) if survivors is None else survivors,
                "planned": planned,
                "master_address": "127.0.0.1",
                "master_port": port,
            }
            path = self.root / name / "generation.json.new"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(document))
            path.rename(self.root / name / "generation.json")

    def records(self, kind: str) -> list[dict[str, Any]]:
        return [record for node in self.nodes.values() for record in node.records(kind)]

    def losses(self) -> dict[int, float]:
        return {record["step"]: record["loss"] for record in self.records("step")}

    def wait(self, condition: Callable[[], object], seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.errors()
            time.sleep(0.005)  # polling: files of other processes have no notification

    def wait_for_changes(self, count: int) -> None:
        self.wait(lambda: len(self.records("reform")) == count)

    def errors(self) -> str:
        return "\n".join(f"== {name}\n{node.errors()}" for name, node in self.nodes.items())

    def ends(self, *names: str) -> list[int | None]:
        return [self.nodes[name].wait()[0] for name in names]


@pytest.fixture
def nodes(gangs: Gangs, tmp_path: Path) -> Nodes:
    return Nodes(gangs, tmp_path)


def resumed_at(step: int, before: int, after: int, gangs: Gangs, root: Path) -> Trained:
    """Run the steps up to `step` with some ranks, kill them, and resume from its checkpoint with others."""
    config = {**CONFIG, "checkpoint": {"interval_steps": step}}
    checkpoints = str(root / "reference")
    first = gangs.start("first", config, before, generation=1, checkpoints=checkpoints)
    first.wait_for(lambda: first.records("checkpoint"))
    first.kill()
    assert first.committed_steps()[0] == step, "killed too late for the test"
    return gangs.finish("second", CONFIG, after, generation=2, checkpoints=checkpoints)


def assert_equals_resumed(nodes: Nodes, before: int, after: int) -> None:
    (reform,) = nodes.records("reform")
    step = reform["step"]
    reference = resumed_at(step, before, after, nodes.gangs, nodes.root)
    losses = nodes.losses()
    assert sorted(losses) == list(range(1, STEPS + 1))
    assert reference.losses() == {number: losses[number] for number in range(step + 1, STEPS + 1)}
    assert_same_end(nodes.checkpoints, reference.checkpoints)


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
    nodes.start(["a", "b", "c"], CONFIG, behind="b")
    nodes.wait(lambda: "an error injected" in nodes.nodes["b"].errors())
    os.kill(nodes.nodes["c"].processes[0].pid or 0, signal.SIGKILL)
    nodes.hand_over(2, ["a", "b"], planned=False, to=["a", "b"])
    assert nodes.ends("a", "b") == [0, 0], nodes.errors()
    (reform,) = nodes.records("reform")
    assert (reform["step"], reform["sources"], reform["receivers"]) == (8, 1, 1)
    assert reform["bytes"] > 0
    assert_equals_resumed(nodes, 3, 2)


def entries(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())


@pytest.mark.slow
def test_many_changes_leave_nothing_behind(nodes: Nodes) -> None:
    nodes.start(["a", "b"], {**CONFIG, "steps": 1_000_000})
    nodes.wait(lambda: len(nodes.losses()) > 5)
    used: list[list[tuple[int, int]]] = []
    for generation in range(2, 42):
        nodes.hand_over(generation, ["a", "b"], planned=generation % 2 == 0, to=["a", "b"])
        nodes.wait_for_changes(generation - 1)
        pids = [nodes.nodes[name].processes[0].pid for name in ("a", "b")]
        used.append([(entries(f"/proc/{pid}/fd"), entries(f"/proc/{pid}/task")) for pid in pids])
    for rank in (0, 1):
        early, late = (max(each[rank] for each in part) for part in (used[5:15], used[30:]))
        assert late[0] <= early[0] + 2 and late[1] <= early[1] + 2, used


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


def test_one_rank_alone_goes_on_and_grows_again(nodes: Nodes) -> None:
    nodes.start(["a", "b"], {**CONFIG, "steps": 400})
    nodes.wait(lambda: len(nodes.losses()) > 5)
    os.kill(nodes.nodes["a"].processes[0].pid or 0, signal.SIGKILL)
    nodes.hand_over(2, ["b"], planned=False, to=["b"])
    nodes.wait(lambda: nodes.records("reform"))
    nodes.hand_over(3, ["b", "c"], survivors=1, planned=True, to=["c", "b"])
    nodes.start(["c"], {**CONFIG, "steps": 400}, generation=3, joins=True)
    assert nodes.ends("b", "c") == [0, 0], nodes.errors()
    assert [record["world_size"] for record in nodes.records("reform")] == [1, 2]
    assert sorted(nodes.losses()) == list(range(1, 401))


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
