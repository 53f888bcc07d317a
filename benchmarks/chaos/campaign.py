"""Interrupts a run until it finishes, and compares it with an uninterrupted run."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from benchmarks.chaos.contents import checkpoints, differences, newest_readable_step, steps_after
from benchmarks.chaos.faults import FAULTS, HANG_SECONDS, FaultResult, StoreKind, Target
from benchmarks.chaos.faulty_s3 import FaultyS3
from benchmarks.chaos.metrics import longest_save_steps, read_records
from benchmarks.chaos.ranks import Gang, WarmParent
from benchmarks.chaos.tally import Report
from benchmarks.servers.local_moto import endpoint_environment
from training.checkpoint.log import newest_first
from training.checkpoint.resume import RESUMED_LOCALLY
from training.checkpoint.storage.backend import Backend
from training.checkpoint.storage.urls import open_backend

INTERVAL_STEPS = 10
LOST_INTERVALS = 2
LOST_SAVES = 2
"""Maximum cost of a kill: one interval, the save before it, and the save in flight, which may take longer than any
committed save. If a due save had to wait for the previous one, another interval is added."""
RECORD_LAG_STEPS = 2
"""Maximum lead of a rank over the records, in steps: a step's record is written after its flags are collected."""
MAX_STEPS_PER_CYCLE = 25
EARLY_SHARE = 0.15
"""Share of the cycles in which the fault is injected while the gang starts."""
EARLY_SECONDS = 0.8
SLOWEST_STEP_SECONDS = 0.25
"""Maximum duration of a reference run's step on a busy machine."""

CONFIG: dict[str, Any] = {
    "steps": 300,
    "global_batch_size": 8,
    "micro_batch_size": 2,
    "model": {
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "hidden_size": 32,
        "sequence_length": 32,
        "dropout": 0.1,
    },
    "checkpoint": {"interval_steps": INTERVAL_STEPS},
    "validation": {"interval_steps": 100, "batches": 2},
    "threads": 1,
}


def max_lost_steps(run_directory: Path) -> int:
    """Return the maximum number of steps that killing this generation may cost.

    Before its first save, it may cost all of its steps.
    """
    steps, starts = read_records(run_directory, "step"), read_records(run_directory, "start")
    if steps and starts and not read_records(run_directory, "checkpoint"):
        done: int = steps[-1]["step"] - (starts[0]["resumed_from_step"] or 0)
        return max(done, LOST_INTERVALS * INTERVAL_STEPS) + RECORD_LAG_STEPS
    return _cost(longest_save_steps(run_directory))


def _cost(save_steps: int) -> int:
    return LOST_INTERVALS * INTERVAL_STEPS + LOST_SAVES * save_steps + RECORD_LAG_STEPS


@dataclass(frozen=True)
class Reference:
    """The uninterrupted run for one world size: its losses, and the store with its final state."""

    losses: Mapping[int, float]
    backend: Backend


def train_reference(parent: WarmParent, root: Path, world_size: int, config: Mapping[str, Any]) -> Reference:
    """Train an uninterrupted run.

    Raises:
        RuntimeError: the run failed.
    """
    name = f"reference-{world_size}-ranks-{config['steps']}-steps"
    store = root / f"{name}-checkpoints"
    gang = parent.start(name, config, world_size, 1, str(store))
    ended = gang.wait(max(HANG_SECONDS * 2, config["steps"] * SLOWEST_STEP_SECONDS))
    losses = gang.losses()
    errors = gang.errors()
    gang.end()
    if not ended or len(losses) != config["steps"]:
        raise RuntimeError(f"the uninterrupted run with {world_size} ranks failed:\n{errors}")
    return Reference(losses, open_backend(str(store)))


@dataclass
class Campaign:
    """A run and its faults.

    Attributes:
        name: name of its directories, and the seed for its choices.
        parent: process that forks its gangs.
        root: directory for its files.
        config: the run's configuration.
        world_size: number of ranks.
        reference: the uninterrupted run.
        report: report that receives the results.
        backend: the store, bypassing the faults.
        url: the store's URL for the ranks.
        s3: the faulty endpoint between the ranks and their store, if it is S3.
        local_tier: directory of the local tier, if there is one.
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
    local_tier: Path | None = None
    _generation: int = 0
    _successor: Gang | None = None
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
        """The kind of store, which determines the faults."""
        if self.local_tier is not None:
            return "tiers"
        return "directory" if self.s3 is None else "s3"

    def plan(self, number: int) -> tuple[random.Random, str]:
        """Return the choices and the fault of a cycle; they depend only on the name and the number."""
        deck = [fault for fault, (weight, _) in FAULTS[self.kind].items() for _ in range(weight)]
        random.Random(self.name).shuffle(deck)  # noqa: S311 (not a secret)
        return random.Random(f"{self.name}/{number}"), deck[number % len(deck)]  # noqa: S311

    def cycle(self, number: int, fault: str | None = None) -> bool:
        """Train, inject a fault, and check the result; return True if the run has finished."""
        choice, planned = self.plan(number)
        name = fault or planned
        gang, self._successor = self._successor or self._start(), None
        is_early = choice.random() < EARLY_SHARE
        early_seconds, steps = choice.uniform(0.0, EARLY_SECONDS), choice.randint(1, MAX_STEPS_PER_CYCLE)
        extra_steps = choice.randint(INTERVAL_STEPS, MAX_STEPS_PER_CYCLE)
        if is_early:
            gang.wait_until(lambda: False, early_seconds)
        else:
            gang.wait_until(lambda: len(gang.losses()) >= steps, HANG_SECONDS)
        root = self.local_tier if self.s3 is not None else Path(self.url)
        target = Target(gang, self.backend, root, self.s3, choice, self._start, extra_steps)
        result = FAULTS[self.kind][name][1](target)
        tally = self.report.of(name)
        tally.cycles += 1
        tally.kills += result.kills
        self._judge(gang, name, result, number)
        self._successor = result.successor
        return self._is_done(gang)

    def finish(self) -> None:
        """Let the run finish, and compare it with the uninterrupted run."""
        gang, self._successor = self._successor or self._start(), None
        ended = gang.wait(HANG_SECONDS * 2)
        self._judge(gang, self._last_fault, FaultResult(ended), -1)
        outcomes = [outcome["outcome"] for outcome in gang.outcomes()]
        if outcomes != ["finished"] * self.world_size:
            self.report.note(self._last_fault, "wrong", f"{self.name}: the run did not finish: {gang.errors()[-2000:]}")
            return
        self.report.runs_compared += 1
        unequal = differences(self.backend, self.reference.backend)
        if unequal:
            self.report.note(self._last_fault, "unequal", f"{self.name}: bits differ from the reference: {unequal[:5]}")

    def close(self) -> None:
        """End all processes."""
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

    def _judge(self, gang: Gang, fault: str, result: FaultResult, number: int) -> None:
        note: Callable[[str, str], None] = lambda kind, text: self.report.note(  # noqa: E731
            fault, kind, f"{self.name}, cycle {number}, generation {gang.generation}: {text}"
        )
        if not result.ended:
            note("hangs", f"did not end within {HANG_SECONDS} s: {gang.errors()[-1500:]}")
        gang.end()
        for problem in result.problems:
            note("wrong", problem)
        self._judge_start(gang)
        losses = gang.losses()
        for step, loss in losses.items():
            if self.reference.losses[step] != loss:
                note("wrong", f"the loss at step {step} is {loss!r}, expected {self.reference.losses[step]!r}")
                break
        newest = next(checkpoints(self.backend), None)
        if newest is not None and result.damaged:
            self._damaged.add(newest.entry.sequence)
        if newest is not None and newest.problem is not None and newest.entry.sequence not in self._damaged:
            note("unreadable", newest.problem)
        for problem in self._stale_commits():
            note("stale", problem)
        reported_steps = [outcome["step"] for outcome in gang.outcomes() if outcome["step"] is not None]
        self._longest_save_steps = max(self._longest_save_steps, longest_save_steps(gang.directory))
        self._last_fault = fault
        self._done_step = max([*losses, *reported_steps], default=self._expected_step or 0)
        self._expected_step = newest_readable_step(self.backend)
        self._bound = None if result.successor is not None else self._bound_after(result, gang.directory)

    def _judge_start(self, gang: Gang) -> None:
        """Compare the step that the gang resumed from with the store's contents when the previous gang ended."""
        starts = gang.records("start")
        if not starts or self._bound is None:
            return
        resumed = starts[0]["resumed_from_step"]
        # A writer that outlives its trainer may have committed after the store was read.
        later = steps_after(self.backend, self._expected_step or 0)
        # Comparing the losses shows whether the state in the local tier was correct.
        if self.local_tier is not None and RESUMED_LOCALLY in gang.errors():
            later.add(resumed)
            self.report.local_resumes += 1
        if resumed != self._expected_step and resumed not in later:
            problem = f"resumed from step {resumed}, the newest readable one is {self._expected_step}"
            self.report.note(self._last_fault, "wrong", f"{self.name}, generation {gang.generation}: {problem}")
        lost = max(0, self._done_step - (resumed or 0))
        self.report.note_lost(self._last_fault, lost, self._bound, f"{self.name}, generation {gang.generation}")

    def _bound_after(self, result: FaultResult, directory: Path) -> int:
        if result.loses_nothing:
            return 0
        bound = max_lost_steps(directory)
        if result.damaged:  # the previous checkpoint may be older than this generation, and its save may be slow
            bound += _cost(self._longest_save_steps)
        return bound if result.onset_step is None else bound + max(0, self._done_step - result.onset_step)

    def _stale_commits(self) -> list[str]:
        """Check new log entries: generations must not decrease; return the problems."""
        judged = self._judged_sequence
        appended = list(takewhile(lambda entry: entry.sequence > judged, newest_first(self.backend)))
        stale = []
        for entry in reversed(appended):
            if entry.generation < self._judged_generation:
                stale.append(
                    f"entry {entry.sequence} of generation {entry.generation} follows an entry of generation "
                    f"{self._judged_generation}"
                )
            self._judged_sequence = entry.sequence
            self._judged_generation = max(entry.generation, self._judged_generation)
        return stale
