"""The critical path of the boot, and the table of latencies."""

from __future__ import annotations

import pytest

from benchmarks.boot.critical_path import Task, critical_path
from benchmarks.boot.latencies import OF_AN_ATTACHED_VOLUME, STEPS, table, tasks
from bootstrap.boot_steps.boot_sequence import STEPS as BOOT_STEPS


def test_finds_the_critical_path_and_the_savings_of_its_tasks() -> None:
    graph = [Task("a", (), 1), Task("b", ("a",), 5), Task("c", ("a",), 3), Task("d", ("b", "c"), 2)]

    found = critical_path(graph)

    assert found.path == ("a", "b", "d")
    assert (found.sum_seconds, found.path_seconds) == (11, 8)
    assert found.saved_seconds == {"a": 1, "b": 2, "d": 2}  # without b, the path leads through c


def test_rejects_a_task_listed_before_its_dependencies() -> None:
    with pytest.raises(ValueError, match="b depends on a"):
        critical_path([Task("b", ("a",), 1), Task("a", (), 1)])


def test_the_table_covers_every_boot_step_from_launch_to_first_training_step() -> None:
    assert {step.name for step in BOOT_STEPS} <= set(STEPS)
    for differences in ({}, OF_AN_ATTACHED_VOLUME):
        found = critical_path(tasks(BOOT_STEPS, differences))

        assert (found.path[0], found.path[-1]) == ("launch", "first_step")
        assert found.path_seconds < found.sum_seconds
    assert all("20" in row.source for row in table().values() if "://" in row.source)
