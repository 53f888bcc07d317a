"""The longest chain of the boot, and the table behind it."""

from __future__ import annotations

import pytest

from benchmarks.boot.critical_path import Task, critical_path
from benchmarks.boot.latencies import OF_AN_ATTACHED_VOLUME, STEPS, table, tasks
from bootstrap import boot


def test_the_longest_chain_is_found_with_what_each_of_its_tasks_would_save() -> None:
    graph = [Task("a", (), 1), Task("b", ("a",), 5), Task("c", ("a",), 3), Task("d", ("b", "c"), 2)]

    found = critical_path(graph)

    assert found.path == ("a", "b", "d")
    assert (found.sum_seconds, found.path_seconds) == (11, 8)
    assert found.saved_seconds == {"a": 1, "b": 2, "d": 2}  # without b, c takes the rest of its time


def test_a_task_before_what_it_waits_for_is_refused() -> None:
    with pytest.raises(ValueError, match="b waits for a"):
        critical_path([Task("b", ("a",), 1), Task("a", (), 1)])


def test_every_step_of_the_boot_is_in_the_table_and_the_graph_runs_from_order_to_first_step() -> None:
    assert {step.name for step in boot.STEPS} <= set(STEPS)
    for differences in ({}, OF_AN_ATTACHED_VOLUME):
        found = critical_path(tasks(boot.STEPS, differences))

        assert (found.path[0], found.path[-1]) == ("launch", "first_step")
        assert found.path_seconds < found.sum_seconds
    assert all("20" in row.source for row in table().values() if "://" in row.source)
