"""Nodes of one process each that change their gang in place, and the resumed runs to compare them with."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bootstrap.supervise.membership.records import GenerationRecord, Member
from bootstrap.supervise.trainers.trainer import handover_text
from tests.training.conftest import TINY, Gangs, Trained, free_port
from tests.training.rank_process import RANKS
from tests.training.test_bit_equal_resume import assert_same_end

STEPS = 40
WAIT_SECONDS = 230.0
"""Limit for a condition: below that of a test. On a machine with a load of 30 on two cores, ranks start in 100 s."""
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
        self,
        names: list[str],
        config: dict[str, Any],
        generation: int = 1,
        joins: bool = False,
        unusual: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Start ranks; `unusual` names those with an injected fault (tests.training.rank_process)."""
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
            process = self.gangs._context.Process(
                target=RANKS[unusual.get(name, "usual")], args=(arguments, environment, str(directory / "stderr-0"))
            )
            process.start()
            run.processes.append(process)

    def hand_over(
        self,
        generation: int,
        members: list[str],
        *,
        survivors: int | None = None,
        planned: bool,
        to: list[str],
        port: int | None = None,
    ) -> int:
        """Hand a generation to these nodes; return the port of its store."""
        port = port or free_port()
        nodes = tuple(Member(name, "127.0.0.1") for name in members)
        survivors = len(members) if survivors is None else survivors
        record = GenerationRecord(generation, "", nodes, "127.0.0.1", port, members[0], survivors, planned)
        for name in to:
            path = self.root / name / "generation.json.new"
            path.parent.mkdir(exist_ok=True)
            path.write_text(handover_text(record, record.rank_of(name)))
            path.rename(self.root / name / "generation.json")
        return port

    def records(self, kind: str) -> list[dict[str, Any]]:
        return [record for node in self.nodes.values() for record in node.records(kind)]

    def losses(self) -> dict[int, float]:
        return {record["step"]: record["loss"] for record in self.records("step")}

    def wait(self, condition: Callable[[], object], seconds: float = WAIT_SECONDS) -> None:
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


def resumed_at(step: int, before: int, after: int, gangs: Gangs, root: Path) -> Trained:
    """Run the steps up to `step` with some ranks, kill them, and resume from its checkpoint with others."""
    config = {**CONFIG, "checkpoint": {"interval_steps": step}}
    checkpoints = str(root / "reference")
    first = gangs.start("first", config, before, generation=1, checkpoints=checkpoints)
    first.wait_for(lambda: first.records("checkpoint"))
    first.kill()
    assert step in first.committed_steps()
    # On a loaded machine, it saves again before it is killed, and its writer outlives it.
    for path in (root / "reference" / "log").glob("*.json"):
        if json.loads(path.read_text()).get("step", 0) > step:
            path.unlink()
    return gangs.finish("second", CONFIG, after, generation=2, checkpoints=checkpoints)


def assert_equals_resumed(nodes: Nodes, before: int, after: int) -> None:
    (reform,) = nodes.records("reform")
    step = reform["step"]
    reference = resumed_at(step, before, after, nodes.gangs, nodes.root)
    losses = nodes.losses()
    assert sorted(losses) == list(range(1, STEPS + 1))
    assert reference.losses() == {number: losses[number] for number in range(step + 1, STEPS + 1)}
    assert_same_end(nodes.checkpoints, reference.checkpoints)
