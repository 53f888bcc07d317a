"""Cost of each in-place change of the gang: the longest pause between two steps, and the number of steps lost."""

from __future__ import annotations

import json
import os
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.boot.gang import Gang
from benchmarks.chaos.nodes import Node

MIN_STEPS = 20
"""Number of steps before and after a change, over which the usual step time is measured."""


@dataclass(frozen=True)
class Reform:
    """Cost of one change.

    Attributes:
        pause_seconds: longest time between two steps after the disturbance, minus the usual step time.
        next_step_seconds: time from the disturbance to the end of that pause.
        steps_lost: steps that were computed twice, or are missing.
        seconds: the trainers' own measurement of the change, by phase.
        restarts: number of trainers that restarted on the remaining nodes; 0 if the change was made in place.
    """

    pause_seconds: float
    next_step_seconds: float
    steps_lost: int
    seconds: dict[str, float]
    restarts: int


def leave(gang: Gang) -> Reform:
    """Send the last node a notice."""
    node = _last(gang)
    reform = _measure(gang, lambda: node.metadata.give_notice(20.0), members_of(gang) - 1)
    gang.wait("the exit of the node", lambda: node.process.poll() is not None)
    gang.forget_exited()
    return reform


def kill_process(gang: Gang) -> Reform:
    """Kill the ranks of the last node with SIGKILL, as the kernel does when memory runs out."""
    node = _last(gang)

    def kill() -> None:
        for pid in node.trainers():
            os.kill(pid, signal.SIGKILL)

    return _measure(gang, kill, members_of(gang) - 1)


def cut_off(gang: Gang) -> Reform:
    """Lose the last node without letting it send a packet."""
    node = _last(gang)
    return _measure(gang, lambda: gang.lose(node), members_of(gang) - 1)


def join(gang: Gang) -> Reform:
    """Launch a node."""

    def launch() -> None:
        gang.launch()

    return _measure(gang, launch, members_of(gang) + 1)


REFORMS: dict[str, Callable[[Gang], Reform]] = {
    "planned_leave": leave,
    "killed_process": kill_process,
    "machine_cut_off": cut_off,
    "join": join,
}


def records_of(gang: Gang, kind: str) -> list[dict[str, Any]]:
    """Return the records of all nodes, in order of time. Each step has one writer."""
    found = []
    for node in gang.everyone:
        for path in node.root.glob("runs/*/gen-*/metrics.jsonl"):
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            found += [json.loads(line) for line in lines if line.endswith("\n")]
    return sorted((each for each in found if each["record"] == kind), key=lambda each: float(each["unix_seconds"]))


def members_of(gang: Gang) -> int:
    """Return the number of ranks that are training."""
    changes = [*records_of(gang, "start"), *records_of(gang, "reform")]
    newest = max(changes, key=lambda each: float(each["unix_seconds"]), default=None)
    return 0 if newest is None else int(newest["world_size"])


def wait_for(gang: Gang, members: int) -> None:
    """Wait until a gang of this size has trained for a while."""
    gang.wait(f"a gang of {members}", lambda: members_of(gang) == members)
    before = len(records_of(gang, "step"))
    gang.wait("steps", lambda: len(records_of(gang, "step")) >= before + MIN_STEPS)


def _last(gang: Gang) -> Node:
    return gang.nodes[-1]


def _measure(gang: Gang, disturb: Callable[[], None], members: int) -> Reform:
    starts = len(records_of(gang, "start"))
    disturbed = time.time()
    disturb()
    gang.wait(f"a gang of {members}", lambda: members_of(gang) == members)
    before = len(records_of(gang, "step"))
    gang.wait("steps", lambda: len(records_of(gang, "step")) >= before + MIN_STEPS)
    steps = records_of(gang, "step")
    times = [float(each["unix_seconds"]) for each in steps]
    gaps = [(later - earlier, later) for earlier, later in zip(times, times[1:], strict=False) if later >= disturbed]
    longest, ended = max(gaps)
    numbers = [int(each["step"]) for each in steps]
    changes = [each for each in records_of(gang, "reform") if float(each["unix_seconds"]) >= disturbed]
    seconds = {} if not changes else {k: v for k, v in changes[0].items() if k.endswith("seconds") and k[0] != "u"}
    return Reform(
        pause_seconds=longest - statistics.median(gap for gap, _ in gaps),
        next_step_seconds=ended - disturbed,
        steps_lost=len(numbers) - len(set(numbers)) + (max(numbers) - min(numbers) + 1 - len(set(numbers))),
        seconds=seconds,
        restarts=len(records_of(gang, "start")) - starts,
    )
