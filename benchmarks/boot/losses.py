"""What each kind of loss costs: until it is seen, until the next generation steps, and in steps that are done again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.boot.gang import Gang, events
from benchmarks.chaos.nodes import Node
from benchmarks.chaos.supervised import RUN


@dataclass(frozen=True)
class Loss:
    """What one disturbance cost.

    Attributes:
        detection_seconds: from the disturbance to the first machine that has ended its generation because of it.
        restart_seconds: from the disturbance to the first step of the next generation.
        steps_lost: done by the disturbed generation, and done again.
        parts_seconds: of the time after the detection: to the next generation's record, to its trainer's first word, to
            its first step.
        also: further figures of this kind of disturbance, in the unit of their name.
        endings: how the disturbed generation, and any between it and the next that trained, ended on each machine.
    """

    detection_seconds: float
    restart_seconds: float
    steps_lost: int
    parts_seconds: dict[str, float]
    also: dict[str, float] = field(default_factory=dict)
    endings: list[str] = field(default_factory=list)


def lose_first(gang: Gang, generation: int) -> tuple[Loss, int]:
    """The machine of rank 0 is gone; the others go on without it. Returns the generation that follows."""
    members = len(gang.nodes)
    node = gang.first(generation)
    disturbed = time.time()
    gang.lose(node)
    heir = gang.wait("a generation without the lost node", lambda: gang.training(generation, members - 1))
    return _cost(gang, generation, heir, disturbed), heir


def grow(gang: Gang, generation: int) -> tuple[Loss, int]:
    """A machine joins: from the start of its supervisor, which has code and data still to fetch."""
    members = len(gang.nodes)
    first = gang.first(generation)
    disturbed = time.time()
    node = gang.launch()
    heir = gang.wait("a generation with the new node", lambda: gang.training(generation, members + 1))
    loss = _cost(gang, generation, heir, disturbed)
    loss.also.update(_growth(gang, node, first, generation, heir, disturbed))
    return loss, heir


def _growth(gang: Gang, node: Node, first: Node, generation: int, heir: int, disturbed: float) -> dict[str, float]:
    """Return what the time from a new node's start to the first step with it went into, one after the other."""
    ready = events(node, "standby_ready")[0]
    ended, stop = max(_when(gang, "generation_ended", generation)), first.run_directory(RUN, generation) / "stop"
    moments = {
        "supervisor_starts": events(node, "supervisor_started")[0]["unix_seconds"],
        "code_and_data_are_fetched": ready["unix_seconds"] - ready["seconds"],
        "standby_imports": ready["unix_seconds"],
        "first_node_sees_it": stop.stat().st_mtime if stop.exists() else ended,
        "others_stop_and_save": ended,
        "election": max(_when(gang, "generation_started", heir)),
        "trainers_start": gang.records(heir, "start")[0]["unix_seconds"],
        "first_step": gang.records(heir, "step")[0]["unix_seconds"],
    }
    parts, before = {}, disturbed
    for name, moment in moments.items():
        parts[f"{name}_seconds"] = moment - before
        before = moment
    return parts


def _when(gang: Gang, name: str, generation: int) -> list[float]:
    return [
        event["unix_seconds"]
        for node in gang.nodes
        for event in events(node, name)
        if event["generation"] == generation
    ]


def freeze_last(gang: Gang, generation: int) -> tuple[Loss, int]:
    """Every process of a machine stops, and goes on when the others train without it."""
    return _away(gang, generation, gang.freeze)


def cut_last(gang: Gang, generation: int) -> tuple[Loss, int]:
    """What a machine sends is dropped, and what is sent to it, until the others train without it."""
    return _away(gang, generation, gang.cut)


def _away(gang: Gang, generation: int, leave: Callable[[Node], Callable[[], None]]) -> tuple[Loss, int]:
    members = len(gang.nodes)
    node = gang.last(generation)
    disturbed = time.time()
    come_back = leave(node)
    heir = gang.wait("a generation without the node", lambda: gang.training(generation, members - 1))
    back = time.time()
    come_back()
    whole = gang.wait("a generation with the node that is back", lambda: gang.training(heir, members))
    ended = next(event for event in events(node, "generation_ended") if event["generation"] == generation)
    loss = _cost(gang, generation, heir, disturbed, without=node)
    loss.also["back_to_its_trainers_ended_seconds"] = ended["unix_seconds"] - back
    loss.also["back_to_first_step_seconds"] = gang.records(whole, "step")[0]["unix_seconds"] - back
    return loss, whole


def give_notice(seconds: float) -> Callable[[Gang, int], tuple[Loss, int]]:
    """Return what gives the last node notice of so long, and launches its replacement, as the group does."""

    def deed(gang: Gang, generation: int) -> tuple[Loss, int]:
        members = len(gang.nodes)
        node = gang.last(generation)
        noticed = time.time()
        node.metadata.give_notice(seconds)
        gang.launch()
        heir = gang.wait("a generation after the notice", lambda: gang.training(generation))
        gang.wait("the machine's end", lambda: node.process.poll() is not None)
        whole = gang.wait("a whole gang after the notice", lambda: gang.training(generation, members))
        seen = events(node, "interruption_notice")[0]["unix_seconds"]
        loss = _cost(gang, generation, heir, noticed)
        loss.also.update(_saves(gang, generation, noticed, seen, noticed + seconds))
        gang.end_left()
        return loss, whole

    return deed


def _saves(gang: Gang, generation: int, noticed: float, seen: float, reclaim: float) -> dict[str, float]:
    saves = [save for save in gang.records(generation, "checkpoint") if save["unix_seconds"] >= seen]
    steps = [step for step in gang.records(generation, "step") if step["unix_seconds"] >= seen]
    if not saves:
        raise RuntimeError(f"generation {generation} saved nothing after its notice")
    return {
        "notice_to_first_saved_seconds": saves[0]["unix_seconds"] - noticed,
        "last_save_asked_to_saved_seconds": saves[-1]["seconds"],
        "last_saved_before_reclaim_seconds": reclaim - saves[-1]["unix_seconds"],
        "trained_on_seconds": steps[-1]["unix_seconds"] - seen if steps else 0.0,
        "trained_on_steps": float(len(steps)),
    }


def _cost(gang: Gang, generation: int, heir: int, disturbed: float, without: Node | None = None) -> Loss:
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
        if event["generation"] == heir
    )
    start, step = gang.records(heir, "start")[0], gang.records(heir, "step")[0]
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
        endings=_endings(gang, generation, heir, disturbed),
    )


def _endings(gang: Gang, generation: int, heir: int, disturbed: float) -> list[str]:
    return [
        f"{event['unix_seconds'] - disturbed:.1f} s, {node.instance_id}, generation {event['generation']}: "
        f"{event['outcome']} at step {event['step']}: {event['message'][:300]}"
        for node in gang.nodes
        for event in events(node, "generation_ended")
        if generation <= event["generation"] < heir
    ]
