"""The faults: what is done to a running gang or to its storage, and what must come of it."""

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
from training.checkpoint.backend import Backend

StoreKind = Literal["directory", "s3", "tiers"]

HANG_SECONDS = 60.0
"""A gang that has not ended so long after it should have is counted as hanging."""
NOTICE_SECONDS = 30.0
SHORT_NOTICE_SECONDS = (6.0, 12.0)
LARGEST_FILE_BYTES = 3000
"""Of a process whose disk is full: its next chunk ends short."""
CLOCK_JUMP_SECONDS = 3600.0
FAULTY_SHARE = 0.5
LEAST_BEFALLEN = 3
"""Requests that a fault of S3 must have befallen before the gang is killed in the midst of it."""


@dataclass
class Scene:
    """Where a fault happens.

    Attributes:
        gang: the running processes.
        backend: their store, for the experimenter.
        root: the store's directory, or that of its fast tier; None on S3 alone.
        s3: the endpoint they use; None for a directory.
        choice: of everything random about it.
        successor: starts the next generation's gang beside this one.
        extra_steps: how many more to let it run under a lasting fault.
    """

    gang: Gang
    backend: Backend
    root: Path | None
    s3: FaultyS3 | None
    choice: random.Random
    successor: Callable[[], Gang]
    extra_steps: int


@dataclass(frozen=True)
class Aftermath:
    """What is known after a fault.

    Attributes:
        ended: whether all processes that should have ended did.
        kills: processes killed.
        loses_nothing: whether the run must go on at the very step that it reached.
        damaged: whether the newest checkpoint was damaged on purpose.
        onset_step: step at which a lasting storage fault began, before which the bound does not count.
        heir: the gang that is to go on; None: a new one is started.
        problems: violations seen at once, in words.
    """

    ended: bool
    kills: int = 0
    loses_nothing: bool = False
    damaged: bool = False
    onset_step: int | None = None
    heir: Gang | None = None
    problems: tuple[str, ...] = ()


def _newest_step(gang: Gang) -> int:
    return max(gang.losses(), default=0)


def _run_on(scene: Scene) -> None:
    goal = _newest_step(scene.gang) + scene.extra_steps
    scene.gang.wait_until(lambda: _newest_step(scene.gang) >= goal, HANG_SECONDS)


def _kill_all(scene: Scene) -> Aftermath:
    scene.gang.send(signal.SIGKILL)
    return Aftermath(scene.gang.wait(HANG_SECONDS), kills=len(scene.gang.processes))


def _kill_one(scene: Scene) -> Aftermath:
    scene.gang.send(signal.SIGKILL, [scene.choice.randrange(len(scene.gang.processes))])
    if not scene.gang.records("start"):
        # The others may be waiting for it to arrive, for as long as they are willing to; torchrun ends them at once.
        scene.gang.send(signal.SIGKILL)
        return Aftermath(scene.gang.wait(HANG_SECONDS), kills=len(scene.gang.processes))
    return Aftermath(scene.gang.wait(HANG_SECONDS), kills=1)


def _stopped_in_order(scene: Scene, kills: int = 0) -> Aftermath:
    ended = scene.gang.wait(HANG_SECONDS)
    outcomes = scene.gang.outcomes()
    problems = []
    for outcome in outcomes:
        before_steps = outcome["step"] is None or outcome["checkpoint_step"] is None
        if outcome["outcome"] == "stopped" and not before_steps and outcome["step"] != outcome["checkpoint_step"]:
            problems.append(f"stopped at {outcome['step']} with a checkpoint of {outcome['checkpoint_step']}")
        elif outcome["outcome"] not in ("stopped", "finished"):
            problems.append(f"told to stop, ended as {outcome['outcome']}: {outcome['message']}")
    if ended and len(outcomes) != len(scene.gang.processes):
        problems.append(f"{len(outcomes)} of {len(scene.gang.processes)} ranks said how they ended")
    return Aftermath(ended, kills, loses_nothing=True, problems=tuple(problems))


def _terminate(scene: Scene) -> Aftermath:
    rank = scene.choice.randrange(len(scene.gang.processes))
    scene.gang.send(signal.SIGTERM, [rank])
    scene.gang.send(signal.SIGTERM)  # again, and to all: it must change nothing
    return _stopped_in_order(scene)


def _notice(scene: Scene) -> Aftermath:
    # A short one may be used for steps; at a longer one, without the word for it, all stop at once.
    trains_on = scene.choice.random() < FAULTY_SHARE
    seconds = scene.choice.uniform(*SHORT_NOTICE_SECONDS) if trains_on else NOTICE_SECONDS
    scene.gang.request_stop(seconds, train_on=trains_on)
    return _stopped_in_order(scene)


def _freeze_one(scene: Scene) -> Aftermath:
    frozen = scene.choice.randrange(len(scene.gang.processes))
    scene.gang.send(signal.SIGSTOP, [frozen])
    others = [process for rank, process in enumerate(scene.gang.processes) if rank != frozen]
    ended = scene.gang.wait_until(lambda: not any(process.is_alive() for process in others), HANG_SECONDS)
    scene.gang.send(signal.SIGKILL, [frozen])
    return Aftermath(scene.gang.wait(HANG_SECONDS) and ended, kills=1)


def _new_generation(scene: Scene) -> Aftermath:
    heir = scene.successor()
    return Aftermath(scene.gang.wait(HANG_SECONDS), heir=heir)


def _superseded_writer(scene: Scene) -> Aftermath:
    scene.gang.send(signal.SIGSTOP)
    heir = scene.successor()
    heir.wait_until(lambda: heir.records("checkpoint"), HANG_SECONDS)
    scene.gang.send(signal.SIGCONT)
    return Aftermath(scene.gang.wait(HANG_SECONDS), heir=heir)


def _clock_jump(scene: Scene) -> Aftermath:
    scene.gang.clock_offset.value = scene.choice.choice((-1, 1)) * CLOCK_JUMP_SECONDS
    _run_on(scene)
    scene.gang.send(signal.SIGTERM)
    return _stopped_in_order(scene)


def _full_disk(scene: Scene) -> Aftermath:
    for process in scene.gang.processes:
        assert process.pid is not None, "it was started"
        for pid in (process.pid, *_children(process.pid)):
            try:
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (LARGEST_FILE_BYTES, LARGEST_FILE_BYTES))
            except ProcessLookupError:
                continue
    onset = _newest_step(scene.gang)
    return Aftermath(scene.gang.wait(HANG_SECONDS), onset_step=onset)


def _kill_writer(scene: Scene) -> Aftermath:
    """Kill what writes checkpoints beside a rank; without it there can be no further save, so all ranks must fail."""
    process = scene.choice.choice(scene.gang.processes)
    assert process.pid is not None, "it was started"
    onset, writers = _newest_step(scene.gang), _children(process.pid)
    for pid in writers:
        os.kill(pid, signal.SIGKILL)
    if not writers:  # it had not come so far
        return _kill_all(scene)
    return Aftermath(scene.gang.wait(HANG_SECONDS), kills=len(writers), onset_step=onset)


def _children(pid: int) -> list[int]:
    listing = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in listing.read_text().split()] if listing.exists() else []


def _damage(how: Callable[[Path, random.Random], None]) -> Callable[[Scene], Aftermath]:
    def fault(scene: Scene) -> Aftermath:
        assert scene.root is not None, "files are damaged in a directory"
        killed = _kill_all(scene)
        whole = [found for found in checkpoints(scene.backend) if found.problem is None]
        if len(whole) < 2:  # nothing to fall back on: this is then a plain kill
            return killed
        how(newest_chunk_file(scene.backend, scene.root, scene.choice), scene.choice)
        return Aftermath(killed.ended, killed.kills, damaged=True)

    return fault


def _flip_bit(path: Path, choice: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[choice.randrange(len(content))] ^= 1 << choice.randrange(8)
    path.write_bytes(content)


def _truncate(path: Path, choice: random.Random) -> None:
    os.truncate(path, choice.randrange(path.stat().st_size))


def _remove(path: Path, choice: random.Random) -> None:
    path.unlink()


def _spoil_near(how: Callable[[Path, random.Random], None]) -> Callable[[Scene], Aftermath]:
    """Kill all, and do something to every file of the fast tier: at most what was not durable may be lost."""

    def fault(scene: Scene) -> Aftermath:
        assert scene.root is not None, "a fast tier is a directory"
        killed = _kill_all(scene)
        for path in [path for path in scene.root.rglob("*") if path.is_file() and path.stat().st_size]:
            how(path, scene.choice)
        return killed

    return fault


def _cut_off_upload(scene: Scene) -> Aftermath:
    """Kill ranks and writers, as with their container, while S3 answers to no upload: near is all there is."""
    assert scene.s3 is not None, "there is an upload"
    pids = [process.pid for process in scene.gang.processes if process.pid is not None]
    onset, writers = _newest_step(scene.gang), [child for pid in pids for child in _children(pid)]
    scene.s3.misbehaviour = Misbehaviour(delay_seconds=HANG_SECONDS)
    _run_on(scene)
    for pid in (*pids, *writers):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    ended = scene.gang.wait(HANG_SECONDS)
    scene.s3.misbehaviour = Misbehaviour()
    return Aftermath(ended, kills=len(pids) + len(writers), onset_step=onset)


def _misbehave(fault: S3Fault) -> Callable[[Scene], Aftermath]:
    def inject(scene: Scene) -> Aftermath:
        assert scene.s3 is not None, "a fault of S3 needs it"
        onset = _newest_step(scene.gang)
        scene.s3.misbehaviour = Misbehaviour(fault, FAULTY_SHARE)
        if fault == "truncated bodies":  # only readers see them: let one resume through it
            killed = _kill_all(scene)
            heir = scene.successor()
            heir.wait_until(heir.losses, HANG_SECONDS)
            scene.s3.misbehaviour = Misbehaviour()
            return Aftermath(killed.ended, killed.kills, heir=heir)
        goal = scene.s3.done[fault] + LEAST_BEFALLEN
        scene.gang.wait_until(lambda: scene.s3 is not None and scene.s3.done[fault] >= goal, HANG_SECONDS)
        killed = _kill_all(scene)
        scene.s3.misbehaviour = Misbehaviour()
        return Aftermath(killed.ended, killed.kills, onset_step=onset)

    return inject


FAULTS: dict[StoreKind, dict[str, tuple[int, Callable[[Scene], Aftermath]]]] = {
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
        "time-outs of S3": (1, _misbehave("time-outs")),
        "truncated bodies": (1, _misbehave("truncated bodies")),
        "lost answers": (1, _misbehave("lost answers")),
    },
    "tiers": {
        "kill all ranks": (4, _kill_all),
        "kill one rank": (1, _kill_one),
        "SIGTERM": (1, _terminate),
        "notice": (1, _notice),
        "kill checkpoint writer": (1, _kill_writer),
        "errors of S3": (1, _misbehave("errors")),
        "upload cut off": (2, _cut_off_upload),
        "near disk lost": (1, _spoil_near(_remove)),
        "near disk damaged": (1, _spoil_near(_flip_bit)),
    },
}
"""By kind of store: name to weight and deed."""
