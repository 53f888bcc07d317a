"""Retention rules, and a run that applies the rules in its config."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.checkpoint.runs import complete_steps, save, start
from training.checkpoint.manifest import LogEntry, ValidationRecord
from training.checkpoint.retention import Retention
from training.checkpoint.storage.directory import DirectoryBackend
from training.checkpoint.storage.urls import open_backend
from training.checkpoint.tool.inspection import describe_checkpoints
from training.errors import ConfigurationError


def entry(sequence: int, hours: float = 0.0, loss: float | None = None, validated: int | None = None) -> LogEntry:
    validation = None
    if loss is not None:
        validation = ValidationRecord(step=sequence if validated is None else validated, loss=loss)
    return LogEntry(
        kind="checkpoint",
        sequence=sequence,
        generation=1,
        writer="w",
        unix_seconds=hours * 3600,
        step=sequence,
        validation=validation,
    )


def kept(retention: Retention, entries: list[LogEntry], tags: dict[int, list[str]] | None = None) -> list[int]:
    return sorted(retention.kept(entries[::-1], tags or {}))


def test_keeps_newest_best_spaced_and_tagged_checkpoints() -> None:
    losses = [5.0, 2.0, 3.0, 2.5, 4.0, 6.0, 7.0, 8.0]
    entries = [entry(number, hours=number, loss=loss) for number, loss in enumerate(losses)]
    assert kept(Retention(2), entries) == [6, 7]
    assert kept(Retention(2, keep_best=2), entries) == [1, 3, 6, 7]
    assert kept(Retention(2, keep_every_hours=3.0), entries) == [0, 3, 6, 7]
    assert kept(Retention(2), entries, {4: ["paper"], 99: ["lost"]}) == [4, 6, 7]
    reasons = Retention(2, 1, 3.0).kept(entries[::-1], {6: ["b", "a"]})
    assert reasons[6] == ["newest 2 of 2", "every 3 h", "tag a", "tag b"]
    assert reasons[1] == ["best 1 of 1"]


def test_a_measurement_counts_for_the_closest_checkpoint_only() -> None:
    entries = [entry(0, loss=9.0), entry(1, loss=1.0), entry(2, loss=1.0, validated=1), entry(3, loss=2.0), entry(4)]
    assert kept(Retention(2, keep_best=1), entries) == [1, 3, 4]
    assert kept(Retention(2, keep_best=2), entries) == [1, 3, 4]
    assert kept(Retention(2, keep_best=3), entries) == [0, 1, 3, 4]


def test_of_equal_losses_the_newest_is_best() -> None:
    entries = [entry(0, loss=1.0), entry(1, loss=1.0), entry(2, loss=3.0), entry(3, loss=4.0)]
    assert kept(Retention(2, keep_best=1), entries) == [1, 2, 3]


def test_clock_changes_neither_drop_nor_keep_too_much() -> None:
    hours = [0, 1, 100, 2, 3, 4, 5, 6, 7, 8, 9]
    entries = [entry(number, hours=hour) for number, hour in enumerate(hours)]
    assert kept(Retention(2, keep_every_hours=5.0), entries) == [0, 2, 3, 8, 9, 10]


@settings(max_examples=100, deadline=None)
@given(
    times=st.lists(st.floats(0, 50), min_size=1, max_size=25),
    losses=st.lists(st.one_of(st.none(), st.floats(0, 3)), min_size=25, max_size=25),
    retention=st.builds(
        Retention,
        keep_last=st.integers(2, 4),
        keep_best=st.integers(0, 3),
        keep_every_hours=st.one_of(st.none(), st.floats(0.5, 20)),
    ),
)
def test_collecting_after_every_save_keeps_the_same_as_collecting_once(
    times: list[float], losses: list[float | None], retention: Retention
) -> None:
    """The rules never require a checkpoint that was dropped earlier."""
    entries = [entry(number, hours=hour, loss=losses[number]) for number, hour in enumerate(times)]
    remaining: list[LogEntry] = []
    for each in entries:
        remaining.append(each)
        decided = retention.kept(remaining[::-1], {})
        remaining = [one for one in remaining if one.sequence in decided]
    assert [one.sequence for one in remaining] == kept(retention, entries)


def test_reports_all_invalid_rules_at_once() -> None:
    with pytest.raises(ConfigurationError) as refused:
        Retention(1, -1, 0.0)
    assert [problem.split(":")[0] for problem in refused.value.problems] == [
        "keep_last",
        "keep_best",
        "keep_every_hours",
    ]
    with pytest.raises(ConfigurationError, match="keep_every_hours: nan"):
        Retention(2, 0, math.nan)


def test_writer_keeps_the_best_in_addition_to_the_newest(tmp_path: Path) -> None:
    backend = DirectoryBackend(tmp_path)
    writer = start(backend, retention=Retention(keep_best=1))
    for step, loss in enumerate([3.0, 1.0, 2.0, 4.0, 5.0], start=1):
        save(writer, step, validation_loss=loss)
    assert complete_steps(backend) == [5, 4, 2]
    conditions = {each["step"]: each["condition"] for each in describe_checkpoints(backend)}
    assert conditions == {1: "collected", 2: "complete", 3: "collected", 4: "complete", 5: "complete"}


def test_run_with_keep_best_saves_at_validations(gangs: Any, tiny_config: dict[str, Any]) -> None:
    checkpoint = {"interval_steps": 1000, "keep_best": 1}
    config = {**tiny_config, "steps": 8, "checkpoint": checkpoint, "validation": {"interval_steps": 4, "batches": 1}}
    run = gangs.finish("run", config)
    by_step = {each["step"]: each for each in describe_checkpoints(open_backend(run.checkpoints))}
    measured = {record["step"]: record["loss"] for record in run.records("validation")}
    assert {step: each["reason"] for step, each in by_step.items()} == {4: "validation", 8: "finished"}
    assert {step: each["validation_loss"] for step, each in by_step.items()} == measured
