"""Faults in a running gang and in its storage, with the expected results."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.chaos.contents import checkpoints, newest_chunk_file
from benchmarks.chaos.faulty_s3 import FaultyS3, Misbehaviour, S3Fault
from benchmarks.chaos.ranks import Gang
from training.checkpoint.storage.backend import Backend

StoreKind = Literal["directory", "s3", "tiers"]

HANG_SECONDS = 60.0
"""A gang that takes longer than this to exit is considered hung."""
NOTICE_SECONDS = 30.0
SHORT_NOTICE_SECONDS = (6.0, 12.0)
LARGEST_FILE_BYTES = 3000
"""File size limit that simulates a full disk: the next chunk cannot be written."""
CLOCK_JUMP_SECONDS = 3600.0
FAULTY_SHARE = 0.5
MIN_FAULTY_REQUESTS = 3
"""Number of faulty S3 requests before the gang is killed during the fault."""


@dataclass
class Target:
    """The gang and the storage into which a fault is injected.

    Attributes:
        gang: the running processes.
        backend: their store, bypassing the faults.
        root: directory of the store, or of its local tier; None if the store is S3 only.
        s3: the endpoint that the processes use; None for a directory.
        choice: random number generator for the fault.
        start_successor: function that starts the next generation's gang while this gang runs.
        extra_steps: number of steps to train during a persistent fault.
    """

    gang: Gang
    backend: Backend
    root: Path | None
    s3: FaultyS3 | None
    choice: random.Random
    start_successor: Callable[[], Gang]
    extra_steps: int


@dataclass(frozen=True)
class FaultResult:
    """Result of injecting a fault.

    Attributes:
        ended: whether all processes that should have exited did so.
        kills: number of killed processes.
        loses_nothing: whether the run must resume from the step that it had reached.
        damaged: whether the fault damaged the newest checkpoint.
        onset_step: step at which a persistent storage fault began; steps after it do not count against the bound.
        successor: the gang that continues the run; None if a new gang is started.
        problems: violations that the fault's own checks detected.
    """

    ended: bool
    kills: int = 0
    loses_nothing: bool = False
    damaged: bool = False
    onset_step: int | None = None
    successor: Gang | None = None
    problems: tuple[str, ...] = ()


def _newest_step(gang: Gang) -> int:
    return max(gang.losses(), default=0)


def _run_on(target: Target) -> None:
    goal = _newest_step(target.gang) + target.extra_steps
    target.gang.wait_until(lambda: _newest_step(target.gang) >= goal, HANG_SECONDS)


def _kill_all(target: Target) -> FaultResult:
    target.gang.send(signal.SIGKILL)
    return FaultResult(target.gang.wait(HANG_SECONDS), kills=len(target.gang.processes))


def _kill_one(target: Target) -> FaultResult:
    target.gang.send(signal.SIGKILL, [target.choice.randrange(len(target.gang.processes))])
    if not target.gang.records("start"):
        # The other ranks may wait for it to join until their timeout; a supervisor would terminate them earlier.
        target.gang.send(signal.SIGKILL)
        return FaultResult(target.gang.wait(HANG_SECONDS), kills=len(target.gang.processes))
    return FaultResult(target.gang.wait(HANG_SECONDS), kills=1)


def _stopped_in_order(target: Target, kills: int = 0) -> FaultResult:
    ended = target.gang.wait(HANG_SECONDS)
    outcomes = target.gang.outcomes()
    problems = []
    for outcome in outcomes:
        before_steps = outcome["step"] is None or outcome["checkpoint_step"] is None
        if outcome["outcome"] == "stopped" and not before_steps and outcome["step"] != outcome["checkpoint_step"]:
            problems.append(f"stopped at {outcome['step']} with a checkpoint of {outcome['checkpoint_step']}")
        elif outcome["outcome"] not in ("stopped", "finished"):
            problems.append(f"outcome {outcome['outcome']} after a stop request: {outcome['message']}")
    if ended and len(outcomes) != len(target.gang.processes):
        problems.append(f"{len(outcomes)} of {len(target.gang.processes)} ranks wrote an outcome")
    return FaultResult(ended, kills, loses_nothing=True, problems=tuple(problems))


def _terminate(target: Target) -> FaultResult:
    rank = target.choice.randrange(len(target.gang.processes))
    target.gang.send(signal.SIGTERM, [rank])
    target.gang.send(signal.SIGTERM)  # a second signal, sent to all ranks, must have no effect
    return _stopped_in_order(target)


def _notice(target: Target) -> FaultResult:
    # After a short notice, the ranks continue until the deadline. After a long notice, they stop immediately.
    trains_on = target.choice.random() < FAULTY_SHARE
    seconds = target.choice.uniform(*SHORT_NOTICE_SECONDS) if trains_on else NOTICE_SECONDS
    target.gang.request_stop(seconds, train_on=trains_on)
    return _stopped_in_order(target)


def _freeze_one(target: Target) -> FaultResult:
    frozen = target.choice.randrange(len(target.gang.processes))
    target.gang.send(signal.SIGSTOP, [frozen])
    others = [process for rank, process in enumerate(target.gang.processes) if rank != frozen]
    ended = target.gang.wait_until(lambda: not any(process.is_alive() for process in others), HANG_SECONDS)
    target.gang.send(signal.SIGKILL, [frozen])
    return FaultResult(target.gang.wait(HANG_SECONDS) and ended, kills=1)


def _new_generation(target: Target) -> FaultResult:
    successor = target.start_successor()
    return FaultResult(target.gang.wait(HANG_SECONDS), successor=successor)


def _superseded_writer(target: Target) -> FaultResult:
    target.gang.send(signal.SIGSTOP)
    successor = target.start_successor()
    successor.wait_until(lambda: successor.records("checkpoint"), HANG_SECONDS)
    target.gang.send(signal.SIGCONT)
    return FaultResult(target.gang.wait(HANG_SECONDS), successor=successor)


def _clock_jump(target: Target) -> FaultResult:
    target.gang.clock_offset.value = target.choice.choice((-1, 1)) * CLOCK_JUMP_SECONDS
    _run_on(target)
    target.gang.send(signal.SIGTERM)
    return _stopped_in_order(target)


def _full_disk(target: Target) -> FaultResult:
    for process in target.gang.processes:
        assert process.pid is not None, "it was started"
        for pid in (process.pid, *_children(process.pid)):
            try:
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (LARGEST_FILE_BYTES, LARGEST_FILE_BYTES))
            except ProcessLookupError:
                continue
    onset = _newest_step(target.gang)
    return FaultResult(target.gang.wait(HANG_SECONDS), onset_step=onset)


def _kill_writer(target: Target) -> FaultResult:
    """Kill a rank's writer process. Without it, no further save is possible, so all ranks must fail."""
    process = target.choice.choice(target.gang.processes)
    assert process.pid is not None, "it was started"
    onset, writers = _newest_step(target.gang), _children(process.pid)
    for pid in writers:
        os.kill(pid, signal.SIGKILL)
    if not writers:  # not started yet
        return _kill_all(target)
    return FaultResult(target.gang.wait(HANG_SECONDS), kills=len(writers), onset_step=onset)


def _children(pid: int) -> list[int]:
    listing = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in listing.read_text().split()] if listing.exists() else []


def _damage(how: Callable[[Path, random.Random], None]) -> Callable[[Target], FaultResult]:
    def fault(target: Target) -> FaultResult:
        assert target.root is not None, "files are damaged in a directory"
        killed = _kill_all(target)
        readable = [found for found in checkpoints(target.backend) if found.problem is None]
        if len(readable) < 2:  # no checkpoint to fall back to: only kill
            return killed
        how(newest_chunk_file(target.backend, target.root, target.choice), target.choice)
        return FaultResult(killed.ended, killed.kills, damaged=True)

    return fault


def _flip_bit(path: Path, choice: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[choice.randrange(len(content))] ^= 1 << choice.randrange(8)
    path.write_bytes(content)


def _truncate(path: Path, choice: random.Random) -> None:
    os.truncate(path, choice.randrange(path.stat().st_size))


def _remove(path: Path, choice: random.Random) -> None:
    path.unlink()


def _damage_local_tier(how: Callable[[Path, random.Random], None]) -> Callable[[Target], FaultResult]:
    """Kill all ranks and damage every file in the local tier: only saves that are not yet durable may be lost."""

    def fault(target: Target) -> FaultResult:
        assert target.root is not None, "a local tier is a directory"
        killed = _kill_all(target)
        for path in [path for path in target.root.rglob("*") if path.is_file() and path.stat().st_size]:
            how(path, target.choice)
        return killed

    return fault


def _cut_off_upload(target: Target) -> FaultResult:
    """Kill ranks and writers while uploads to S3 hang, as if their container died: only the local tier has the save."""
    assert target.s3 is not None, "there is an upload"
    pids = [process.pid for process in target.gang.processes if process.pid is not None]
    onset, writers = _newest_step(target.gang), [child for pid in pids for child in _children(pid)]
    target.s3.misbehaviour = Misbehaviour(delay_seconds=HANG_SECONDS)
    _run_on(target)
    for pid in (*pids, *writers):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    ended = target.gang.wait(HANG_SECONDS)
    target.s3.misbehaviour = Misbehaviour()
    return FaultResult(ended, kills=len(pids) + len(writers), onset_step=onset)


def _misbehave(fault: S3Fault) -> Callable[[Target], FaultResult]:
    def inject(target: Target) -> FaultResult:
        assert target.s3 is not None, "an S3 fault requires it"
        onset = _newest_step(target.gang)
        target.s3.misbehaviour = Misbehaviour(fault, FAULTY_SHARE)
        if fault == "truncated bodies":  # affects only readers: let a successor resume during the fault
            killed = _kill_all(target)
            successor = target.start_successor()
            successor.wait_until(successor.losses, HANG_SECONDS)
            target.s3.misbehaviour = Misbehaviour()
            return FaultResult(killed.ended, killed.kills, successor=successor)
        goal = target.s3.done[fault] + MIN_FAULTY_REQUESTS
        target.gang.wait_until(lambda: target.s3 is not None and target.s3.done[fault] >= goal, HANG_SECONDS)
        killed = _kill_all(target)
        target.s3.misbehaviour = Misbehaviour()
        return FaultResult(killed.ended, killed.kills, onset_step=onset)

    return inject


FAULTS: dict[StoreKind, dict[str, tuple[int, Callable[[Target], FaultResult]]]] = {
    "directory": {
        "kill all ranks": (6, _kill_all),
        "kill one rank": (6, _kill_one),
        "SIGTERM": (2, _terminate),
        "notice": (2, _notice),
        "SIGSTOP one rank": (1, _freeze_one),
        "new generation": (1, _new_generation),
        "superseded writer": (1, _superseded_writer),
        "clock jump": (1, _clock_jump),
        "full disk": (1, _full_disk),
        "kill checkpoint writer": (1, _kill_writer),
        "flipped bit": (1, _damage(_flip_bit)),
        "truncated file": (1, _damage(_truncate)),
        "lost object": (1, _damage(_remove)),
    },
    "s3": {
        "kill all ranks": (2, _kill_all),
        "notice": (1, _notice),
        "errors of S3": (1, _misbehave("errors")),
        "SlowDown": (1, _misbehave("slow-down")),
        "timeouts of S3": (1, _misbehave("timeouts")),
        "truncated bodies": (1, _misbehave("truncated bodies")),
        "lost responses": (1, _misbehave("lost responses")),
    },
    "tiers": {
        "kill all ranks": (4, _kill_all),
        "kill one rank": (1, _kill_one),
        "SIGTERM": (1, _terminate),
        "notice": (1, _notice),
        "kill checkpoint writer": (1, _kill_writer),
        "errors of S3": (1, _misbehave("errors")),
        "upload cut off": (2, _cut_off_upload),
        "local tier lost": (1, _damage_local_tier(_remove)),
        "local tier damaged": (1, _damage_local_tier(_flip_bit)),
    },
}
"""Weight and function of each fault, by kind of store."""
