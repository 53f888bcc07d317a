"""Cost of each kind of loss: time to detection, time to the next generation's first step, and repeated steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.boot.gang import Gang, events
from benchmarks.chaos.nodes import Node
from benchmarks.chaos.supervised import RUN


@dataclass(frozen=True)
class Loss:
    """Cost of one disturbance.

    Attributes:
        detection_seconds: Time from the disturbance until the first node has ended its generation.
        restart_seconds: Time from the disturbance to the first step of the next generation.
        steps_lost: Number of steps in the disturbed generation that are repeated.
        parts_seconds: Parts of the time after detection: until the next generation's record, until its trainer starts,
            and until its first step.
        also: Other figures for this kind of disturbance, with the units in their names.
        endings: Each node's outcome in the disturbed generation, and in any later generation that did not train.
    """

    detection_seconds: float
    restart_seconds: float
    steps_lost: int
    parts_seconds: dict[str, float]
    also: dict[str, float] = field(default_factory=dict)
    endings: list[str] = field(default_factory=list)


def lose_first(gang: Gang, generation: int) -> tuple[Loss, int]:
    """Lose the node with rank 0; return the cost and the next generation."""
    members = len(gang.nodes)
    node = gang.first(generation)
    disturbed = time.time()
    gang.lose(node)
    successor = gang.wait("a generation without the lost node", lambda: gang.training(generation, members - 1))
    return _cost(gang, generation, successor, disturbed), successor


def grow(gang: Gang, generation: int) -> tuple[Loss, int]:
    """Add a node, starting with its supervisor, which still has to load code and data."""
    members = len(gang.nodes)
    first = gang.first(generation)
    disturbed = time.time()
    node = gang.launch()
    successor = gang.wait("a generation with the new node", lambda: gang.training(generation, members + 1))
    loss = _cost(gang, generation, successor, disturbed)
    loss.also.update(_growth(gang, node, first, generation, successor, disturbed))
    return loss, successor


def _growth(gang: Gang, node: Node, first: Node, generation: int, successor: int, disturbed: float) -> dict[str, float]:
    """Return the sequential parts of the time from a new node's start to the first step that includes it."""
    ready = events(node, "standby_ready")[0]
    ended, stop = max(_when(gang, "generation_ended", generation)), first.run_directory(RUN, generation) / "stop"
    times = {
        "supervisor_starts": events(node, "supervisor_started")[0]["unix_seconds"],
        "code_and_data_are_loaded": ready["unix_seconds"] - ready["seconds"],
        "standby_imports": ready["unix_seconds"],
        "first_node_sees_it": stop.stat().st_mtime if stop.exists() else ended,
        "others_stop_and_save": ended,
        "election": max(_when(gang, "generation_started", successor)),
        "trainers_start": gang.records(successor, "start")[0]["unix_seconds"],
        "first_step": gang.records(successor, "step")[0]["unix_seconds"],
    }
    parts, before = {}, disturbed
    for name, at in times.items():
        parts[f"{name}_seconds"] = at - before
        before = at
    return parts


def _when(gang: Gang, name: str, generation: int) -> list[float]:
    return [
        event["unix_seconds"]
        for node in gang.nodes
        for event in events(node, name)
        if event["generation"] == generation
    ]


def freeze_last(gang: Gang, generation: int) -> tuple[Loss, int]:
    """Freeze a node until the other nodes train without it."""
    return _absence(gang, generation, gang.freeze)


def disconnect_last(gang: Gang, generation: int) -> tuple[Loss, int]:
    """Disconnect a node until the other nodes train without it."""
    return _absence(gang, generation, gang.disconnect)


def _absence(gang: Gang, generation: int, leave: Callable[[Node], Callable[[], None]]) -> tuple[Loss, int]:
    members = len(gang.nodes)
    node = gang.last(generation)
    disturbed = time.time()
    restore = leave(node)
    successor = gang.wait("a generation without the node", lambda: gang.training(generation, members - 1))
    back = time.time()
    restore()
    complete = gang.wait("a generation with the restored node", lambda: gang.training(successor, members))
    ended = next(event for event in events(node, "generation_ended") if event["generation"] == generation)
    loss = _cost(gang, generation, successor, disturbed, without=node)
    loss.also["back_to_its_trainers_ended_seconds"] = ended["unix_seconds"] - back
    loss.also["back_to_first_step_seconds"] = gang.records(complete, "step")[0]["unix_seconds"] - back
    return loss, complete


def give_notice(seconds: float) -> Callable[[Gang, int], tuple[Loss, int]]:
    """Return a disturbance that sends the last node a notice of this length and launches its replacement."""

    def disturb(gang: Gang, generation: int) -> tuple[Loss, int]:
        members = len(gang.nodes)
        node = gang.last(generation)
        noticed = time.time()
        node.metadata.give_notice(seconds)
        gang.launch()
        successor = gang.wait("a generation after the notice", lambda: gang.training(generation))
        gang.wait("the exit of the node", lambda: node.process.poll() is not None)
        complete = gang.wait("a complete gang after the notice", lambda: gang.training(generation, members))
        seen = events(node, "interruption_notice")[0]["unix_seconds"]
        loss = _cost(gang, generation, successor, noticed)
        loss.also.update(_saves(gang, generation, noticed, seen, noticed + seconds))
        gang.forget_exited()
        return loss, complete

    return disturb


def _saves(gang: Gang, generation: int, noticed: float, seen: float, reclaim: float) -> dict[str, float]:
    saves = [save for save in gang.records(generation, "checkpoint") if save["unix_seconds"] >= seen]
    steps = [step for step in gang.records(generation, "step") if step["unix_seconds"] >= seen]
    if not saves:
        raise RuntimeError(f"generation {generation} did not save after its notice")
    return {
        "notice_to_first_saved_seconds": saves[0]["unix_seconds"] - noticed,
        "last_save_requested_to_saved_seconds": saves[-1]["seconds"],
        "last_saved_before_reclaim_seconds": reclaim - saves[-1]["unix_seconds"],
        "trained_on_seconds": steps[-1]["unix_seconds"] - seen if steps else 0.0,
        "trained_on_steps": float(len(steps)),
    }


def _cost(gang: Gang, generation: int, successor: int, disturbed: float, without: Node | None = None) -> Loss:
    ended = min(
        event["unix_seconds"]
        for node in gang.nodes
        if node is not without
        for event in events(node, "generation_ended")
        if event["generation"] == generation
    )
    started = min(
        event["unix_seconds"]
        for node in gang.nodes
        for event in events(node, "generation_started")
        if event["generation"] == successor
    )
    start, step = gang.records(successor, "start")[0], gang.records(successor, "step")[0]
    done = max(record["step"] for record in gang.records(generation, "step"))
    return Loss(
        detection_seconds=ended - disturbed,
        restart_seconds=step["unix_seconds"] - disturbed,
        steps_lost=max(0, done - (start["resumed_from_step"] or 0)),
        parts_seconds={
            "ended_to_generation": started - ended,
            "generation_to_trainer": start["unix_seconds"] - started,
            "trainer_to_first_step": step["unix_seconds"] - start["unix_seconds"],
        },
        endings=_endings(gang, generation, successor, disturbed),
    )


def _endings(gang: Gang, generation: int, successor: int, disturbed: float) -> list[str]:
    return [
        f"{event['unix_seconds'] - disturbed:.1f} s, {node.instance_id}, generation {event['generation']}: "
        f"{event['outcome']} at step {event['step']}: {event['message'][:300]}"
        for node in gang.nodes
        for event in events(node, "generation_ended")
        if generation <= event["generation"] < successor
    ]
