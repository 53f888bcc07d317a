"""One run, interrupted again and again until it is done, and compared with the run that nobody disturbed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from benchmarks.chaos.contents import checkpoints, differences, newest_whole_step, steps_after
from benchmarks.chaos.faults import FAULTS, HANG_SECONDS, Aftermath, Scene, StoreKind
from benchmarks.chaos.faulty_s3 import FaultyS3
from benchmarks.chaos.metrics import longest_save_steps, read_records
from benchmarks.chaos.ranks import Gang, WarmParent
from benchmarks.chaos.tally import Report
from benchmarks.local_moto import endpoint_environment
from training.checkpoint.backend import Backend, open_backend
from training.checkpoint.log import newest_first

INTERVAL_STEPS = 10
LOST_INTERVALS = 2
LOST_SAVES = 2
"""What a kill may cost: an interval, the save before it and the one that was under way, which may be longer than any
that was committed; and another interval when a wish for a save had to wait for the one before."""
RECORD_LAG_STEPS = 2
"""A step's record is written after the vote on it, so that a rank may have done more than the records show."""
MOST_STEPS_PER_CYCLE = 25
EARLY_SHARE = 0.15
"""Of the cycles, how many meet the gang while it starts."""
EARLY_SECONDS = 0.8
SLOWEST_STEP_SECONDS = 0.25
"""Of an unbroken run on a machine that does much else."""

CONFIG: dict[str, Any] = {
    "steps": 300,
    "global_batch_sequences": 8,
    "micro_batch_sequences": 2,
    "model": {"layers": 2, "heads": 2, "embedding": 32, "context": 32, "dropout": 0.1},
    "checkpoint": {"interval_steps": INTERVAL_STEPS},
    "validation": {"interval_steps": 100, "batches": 2},
    "threads": 1,
}


def most_lost_steps(run_directory: Path) -> int:
    """What a kill of this generation may cost at most; one that has not saved yet may lose its own steps, no more."""
    steps, starts = read_records(run_directory, "step"), read_records(run_directory, "start")
    if steps and starts and not read_records(run_directory, "checkpoint"):
        done: int = steps[-1]["step"] - (starts[0]["resumed_from_step"] or 0)
        return max(done, LOST_INTERVALS * INTERVAL_STEPS) + RECORD_LAG_STEPS
    return _cost(longest_save_steps(run_directory))


def _cost(save_steps: int) -> int:
    return LOST_INTERVALS * INTERVAL_STEPS + LOST_SAVES * save_steps + RECORD_LAG_STEPS


@dataclass(frozen=True)
class Reference:
    """The unbroken run of one world size: every loss, and the store with its end."""

    losses: Mapping[int, float]
    backend: Backend


def unbroken(parent: WarmParent, root: Path, world_size: int, config: Mapping[str, Any]) -> Reference:
    """Train without any disturbance.

    Raises:
        RuntimeError: even that does not work.
    """
    name = f"unbroken-{world_size}-ranks-{config['steps']}-steps"
    store = root / f"{name}-checkpoints"
    gang = parent.start(name, config, world_size, 1, str(store))
    ended = gang.wait(max(HANG_SECONDS * 2, config["steps"] * SLOWEST_STEP_SECONDS))
    losses = gang.losses()
    errors = gang.errors()
    gang.end()
    if not ended or len(losses) != config["steps"]:
        raise RuntimeError(f"the undisturbed run of {world_size} ranks did not get through:\n{errors}")
    return Reference(losses, open_backend(str(store)))


@dataclass
class Campaign:
    """One run under fire.

    Attributes:
        name: of its directories, and the seed of its choices.
        parent: forks its gangs.
        root: for all its files.
        config: of the run.
        world_size: ranks.
        reference: the unbroken run.
        report: takes in what is seen.
        backend: the store, as the experimenter reads it.
        url: the store, as the ranks are told.
        s3: the endpoint between the ranks and their store, if it is S3.
        near: directory of the fast tier before it, if there is one.
    """

    name: str
    parent: WarmParent
    root: Path
    config: Mapping[str, Any]
    world_size: int
    reference: Reference
    report: Report
    backend: Backend
    url: str
    s3: FaultyS3 | None = None
    near: Path | None = None
    _generation: int = 0
    _heir: Gang | None = None
    _last_fault: str = "none"
    _done_step: int = 0
    _expected_step: int | None = None
    _bound: int | None = None
    _longest_save_steps: int = 0
    _damaged: set[int] = field(default_factory=set)
    _judged_sequence: int = -1
    _judged_generation: int = 0
    _gangs: list[Gang] = field(default_factory=list)

    @property
    def kind(self) -> StoreKind:
        """Which faults apply."""
        if self.near is not None:
            return "tiers"
        return "directory" if self.s3 is None else "s3"

    def plan(self, number: int) -> tuple[random.Random, str]:
        """What cycle ``number`` does: the same for the same name."""
        deck = [fault for fault, (weight, _) in FAULTS[self.kind].items() for _ in range(weight)]
        random.Random(self.name).shuffle(deck)  # noqa: S311 an experiment, not a secret
        return random.Random(f"{self.name}/{number}"), deck[number % len(deck)]  # noqa: S311

    def cycle(self, number: int, fault: str | None = None) -> bool:
        """Run, disturb, judge; return whether the run is done."""
        choice, planned = self.plan(number)
        name = fault or planned
        gang, self._heir = self._heir or self._start(), None
        is_early = choice.random() < EARLY_SHARE
        early_seconds, steps = choice.uniform(0.0, EARLY_SECONDS), choice.randint(1, MOST_STEPS_PER_CYCLE)
        extra_steps = choice.randint(INTERVAL_STEPS, MOST_STEPS_PER_CYCLE)
        if is_early:
            gang.wait_until(lambda: False, early_seconds)
        else:
            gang.wait_until(lambda: len(gang.losses()) >= steps, HANG_SECONDS)
        root = self.near if self.s3 is not None else Path(self.url)
        scene = Scene(gang, self.backend, root, self.s3, choice, self._start, extra_steps)
        aftermath = FAULTS[self.kind][name][1](scene)
        tally = self.report.of(name)
        tally.cycles += 1
        tally.kills += aftermath.kills
        self._judge(gang, name, aftermath, number)
        self._heir = aftermath.heir
        return self._is_done(gang)

    def finish(self) -> None:
        """Let the run go to its end and compare it with the unbroken one."""
        gang, self._heir = self._heir or self._start(), None
        ended = gang.wait(HANG_SECONDS * 2)
        self._judge(gang, self._last_fault, Aftermath(ended), -1)
        outcomes = [outcome["outcome"] for outcome in gang.outcomes()]
        if outcomes != ["finished"] * self.world_size:
            self.report.note(
                self._last_fault, "wrong", f"{self.name}: the run does not finish: {gang.errors()[-2000:]}"
            )
            return
        self.report.runs_compared += 1
        unequal = differences(self.backend, self.reference.backend)
        if unequal:
            self.report.note(self._last_fault, "unequal", f"{self.name}: other bits than unbroken: {unequal[:5]}")

    def close(self) -> None:
        """End what still runs."""
        for gang in self._gangs:
            gang.end()

    def _start(self) -> Gang:
        self._generation += 1
        environment = None if self.s3 is None else endpoint_environment(self.s3.endpoint)
        directory = f"{self.name}/gen-{self._generation}"
        gang = self.parent.start(directory, self.config, self.world_size, self._generation, self.url, environment)
        self._gangs.append(gang)
        return gang

    def _is_done(self, gang: Gang) -> bool:
        return any(outcome["outcome"] == "finished" for outcome in gang.outcomes())

    def _judge(self, gang: Gang, fault: str, aftermath: Aftermath, number: int) -> None:
        note: Callable[[str, str], None] = lambda kind, told: self.report.note(  # noqa: E731
            fault, kind, f"{self.name}, cycle {number}, generation {gang.generation}: {told}"
        )
        if not aftermath.ended:
            note("hangs", f"not ended in {HANG_SECONDS} s: {gang.errors()[-1500:]}")
        gang.end()
        for problem in aftermath.problems:
            note("wrong", problem)
        self._judge_start(gang)
        losses = gang.losses()
        for step, loss in losses.items():
            if self.reference.losses[step] != loss:
                note("wrong", f"the loss of step {step} is {loss!r}, unbroken it is {self.reference.losses[step]!r}")
                break
        newest = next(checkpoints(self.backend), None)
        if newest is not None and aftermath.damaged:
            self._damaged.add(newest.entry.sequence)
        if newest is not None and newest.problem is not None and newest.entry.sequence not in self._damaged:
            note("unreadable", newest.problem)
        for told in self._stale_commits():
            note("stale", told)
        steps_told = [outcome["step"] for outcome in gang.outcomes() if outcome["step"] is not None]
        self._longest_save_steps = max(self._longest_save_steps, longest_save_steps(gang.directory))
        self._last_fault = fault
        self._done_step = max([*losses, *steps_told], default=self._expected_step or 0)
        self._expected_step = newest_whole_step(self.backend)
        self._bound = None if aftermath.heir is not None else self._bound_after(aftermath, gang.directory)

    def _judge_start(self, gang: Gang) -> None:
        """Hold where the gang went on against what the store had when the one before had ended."""
        starts = gang.records("start")
        if not starts or self._bound is None:
            return
        resumed = starts[0]["resumed_from_step"]
        # A writer that outlives its trainer may have committed after the look at the store.
        later = steps_after(self.backend, self._expected_step or 0)
        # Bit by bit the losses show whether what was near was right.
        if self.near is not None and "was not durable yet" in gang.errors():
            later.add(resumed)
            self.report.near_resumes += 1
        if resumed != self._expected_step and resumed not in later:
            told = f"{self.name}, generation {gang.generation}: from {resumed}, newest whole is {self._expected_step}"
            self.report.note(self._last_fault, "wrong", told)
        lost = max(0, self._done_step - (resumed or 0))
        self.report.note_lost(self._last_fault, lost, self._bound, f"{self.name}, generation {gang.generation}")

    def _bound_after(self, aftermath: Aftermath, directory: Path) -> int:
        if aftermath.loses_nothing:
            return 0
        bound = most_lost_steps(directory)
        if aftermath.damaged:  # the one before it may be of an earlier generation, and was as long under way as any
            bound += _cost(self._longest_save_steps)
        return bound if aftermath.onset_step is None else bound + max(0, self._done_step - aftermath.onset_step)

    def _stale_commits(self) -> list[str]:
        """Look at what was appended to the log since the last look: no later place may have an earlier generation."""
        judged = self._judged_sequence
        appended = list(takewhile(lambda entry: entry.sequence > judged, newest_first(self.backend)))
        stale = []
        for entry in reversed(appended):
            if entry.generation < self._judged_generation:
                stale.append(
                    f"entry {entry.sequence} of generation {entry.generation} is after {self._judged_generation}'s"
                )
            self._judged_sequence = entry.sequence
            self._judged_generation = max(entry.generation, self._judged_generation)
        return stale
