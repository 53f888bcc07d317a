"""The run's status from the trainer's records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bootstrap.errors import ControlStoreError
from bootstrap.supervise.membership.records import (
    Checkpoint,
    GenerationRecord,
    Member,
    RunStatus,
    run_status_from_bytes,
    to_text,
)
from bootstrap.supervise.run_status import Progress, StatusWriter


class Store:
    """A control store that keeps the last status."""

    run = "first"

    def __init__(self) -> None:
        self.statuses: list[RunStatus] = []
        self.failures = 0

    def report(self, status: RunStatus) -> None:
        if self.failures:
            self.failures -= 1
            raise ControlStoreError("status.json: timed out")
        self.statuses.append(status)


RECORD = GenerationRecord(2, "d" * 64, (Member("i-1", "10.0.0.1"), Member("i-2", "10.0.0.2")), "10.0.0.1", 1, "i-1")


def progress(*records: dict[str, Any]) -> Progress:
    found = Progress()
    for record in records:
        found.note(record)
    return found


def written(found: Progress) -> RunStatus:
    store, writer = Store(), StatusWriter(lambda: 1000.0)
    assert writer.follow(store, RECORD, found), "another generation"  # type: ignore[arg-type]
    assert not writer.follow(store, RECORD, found)  # type: ignore[arg-type]
    writer.check()
    (status,) = store.statuses
    assert run_status_from_bytes(to_text(status).encode(), "status.json") == status
    return status


def test_latest_values_are_reported() -> None:
    status = written(
        progress(
            {"record": "start", "step": 0, "steps_total": 100, "resumed_from_step": None},
            {"record": "step", "step": 10, "loss": 3.0, "tokens_per_second": 5.0, "step_seconds": 0.5, "mfu": None},
            {"record": "checkpoint", "step": 8, "unix_seconds": 990.0},
            {"record": "step", "step": 20, "loss": 2.0, "tokens_per_second": 6.0, "step_seconds": 0.4, "mfu": 0.3},
        )
    )
    assert (status.step, status.steps_total, status.loss, status.mfu) == (20, 100, 2.0, 0.3)
    assert status.members == ("i-1", "i-2") and status.checkpoint == Checkpoint(8, 990.0)


def test_the_last_save_reports_a_later_step() -> None:
    records = [{"record": "step", "step": 20}, {"record": "checkpoint", "step": 24, "unix_seconds": 990.0}]
    assert written(progress(*records)).step == 24
    assert written(progress(*records, {"record": "step", "step": 21})).step == 21, "after a rollback"


def test_before_the_first_step_the_resumed_checkpoint_is_the_newest() -> None:
    status = written(progress({"record": "start", "step": 40, "steps_total": 100, "resumed_from_step": 40}))
    assert (status.step, status.checkpoint, status.loss) == (40, Checkpoint(40, None), None)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, "3", True, None, [1]])
def test_invalid_values_of_user_code_are_left_out(value: object) -> None:
    status = written(
        progress(
            {"record": "step", "step": value, "loss": value},
            {"record": "checkpoint", "step": value, "unix_seconds": 1.0},
            {"record": ["start"]},
        )
    )
    assert (status.step, status.loss, status.checkpoint) == (None, None, None)


def test_only_the_first_member_reports() -> None:
    store, writer = Store(), StatusWriter(lambda: 1000.0)
    assert not writer.follow(store, None, progress())  # type: ignore[arg-type]
    writer.check()
    assert store.statuses == []


def test_the_last_status_of_a_generation_is_written_once_and_contains_the_last_save() -> None:
    store, writer = Store(), StatusWriter(lambda: 1000.0)
    found = progress({"record": "start", "step": 0, "steps_total": 100}, {"record": "step", "step": 20})
    writer.follow(store, RECORD, found)  # type: ignore[arg-type]
    writer.check()
    found.note({"record": "checkpoint", "step": 24, "unix_seconds": 990.0})
    assert writer.conclude() and not writer.conclude()
    store.failures = 1
    with pytest.raises(ControlStoreError):
        writer.check()
    for _ in range(3):  # the failed write is repeated, and nothing else is written
        writer.check()
    assert [(status.step, status.checkpoint) for status in store.statuses] == [(20, None), (24, Checkpoint(24, 990.0))]


def test_a_generation_that_follows_at_once_replaces_the_last_status_of_the_one_before() -> None:
    store, writer = Store(), StatusWriter(lambda: 1000.0)
    writer.follow(store, RECORD, progress({"record": "start", "step": 5}))  # type: ignore[arg-type]
    writer.conclude()
    assert writer.follow(store, replace(RECORD, generation=3), progress())  # type: ignore[arg-type]
    writer.check(), writer.check()
    assert [status.generation for status in store.statuses] == [3, 3]
    writer.follow(store, None, progress())  # type: ignore[arg-type]
    assert not writer.conclude(), "this node is not the first member"
