from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from bootstrap.boot_steps.boot_sequence import STEPS
from bootstrap.boot_steps.step_runner import Step, StepRunError, check_order, run_steps
from bootstrap.context import Context
from bootstrap.documents import NodeDocument
from bootstrap.errors import StepError
from bootstrap.events.log import EventLog
from bootstrap.layout import Layout
from bootstrap.system import System
from tests.bootstrap.test_documents import node

WAIT_SECONDS = 10.0


class Recorder(Step):
    """Records the calls of its methods."""

    def __init__(self, name: str, *after: str, log: list[str], skippable: bool = False, error: Any = None) -> None:
        self.name, self.after, self.may_be_skipped = name, after, skippable  # type: ignore[misc]
        self.log, self.error, self.exists = log, error, True

    def is_done(self, context: Context) -> bool:
        self.log.append(f"{self.name} is_done")
        return self.exists

    def act(self, context: Context) -> None:
        self.log.append(f"{self.name} act")
        if self.error is not None:
            raise self.error

    def verify(self, context: Context) -> None:
        self.log.append(f"{self.name} verify")


def make_context(root: Path, **changes: Any) -> Context:
    system, layout = System(), Layout(root)
    document = NodeDocument.from_json({**node(), **changes})
    nothing: Any = None
    return Context(system, layout, document, nothing, nothing, EventLog(system, layout.events))


def events(context: Context) -> list[dict[str, Any]]:
    return [json.loads(line) for line in context.layout.events.read_text().splitlines()]


def test_each_step_acts_verifies_and_leaves_a_marker(tmp_path: Path) -> None:
    context, log = make_context(tmp_path), []
    run_steps([Recorder("one", log=log), Recorder("two", "one", log=log)], context, timeout_seconds=WAIT_SECONDS)
    assert log == ["one act", "one verify", "two act", "two verify"]
    marker = json.loads((tmp_path / "state" / "two.done").read_text())
    assert marker["digest"] == context.node.digest()
    recorded = events(context)
    assert [(event["event"], event["step"], event["outcome"]) for event in recorded] == [
        ("boot_step", "one", "done"),
        ("boot_step", "two", "done"),
    ]
    assert all(event["ended_unix_seconds"] >= event["started_unix_seconds"] for event in recorded)


@pytest.mark.parametrize(
    ("exists", "changes", "again"),
    [(True, {}, ["one is_done"]), (False, {}, ["one is_done", "one act", "one verify"])]
    + [(True, {"gpus": 1}, ["one act", "one verify"])],
)
def test_a_second_boot_skips_finished_steps(
    tmp_path: Path, exists: bool, changes: dict[str, Any], again: list[str]
) -> None:
    log: list[str] = []
    step = Recorder("one", log=log, skippable=True)
    run_steps([step], make_context(tmp_path), timeout_seconds=WAIT_SECONDS)
    log.clear()
    step.exists = exists
    context = make_context(tmp_path, **changes)
    run_steps([step], context, timeout_seconds=WAIT_SECONDS)
    assert log == again
    assert events(context)[-1]["outcome"] == ("skipped" if again == ["one is_done"] else "done")


def test_an_unreadable_marker_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "one.done").write_text("{")
    log: list[str] = []
    run_steps([Recorder("one", log=log, skippable=True)], make_context(tmp_path), timeout_seconds=WAIT_SECONDS)
    assert log == ["one act", "one verify"]


def test_independent_steps_run_at_the_same_time_and_dependent_ones_after(tmp_path: Path) -> None:
    meeting, log = threading.Barrier(2, timeout=WAIT_SECONDS), []

    class Meeting(Recorder):
        def act(self, context: Context) -> None:
            meeting.wait()  # passes only if both run at the same time
            super().act(context)

    steps = [Meeting("left", log=log), Meeting("right", log=log), Recorder("last", "left", "right", log=log)]
    run_steps(steps, make_context(tmp_path), timeout_seconds=WAIT_SECONDS)
    assert log[-2:] == ["last act", "last verify"]


@pytest.mark.parametrize(
    ("error", "message", "remedy"),
    [
        (StepError("no disk", remedy="attach one", command=["mount"], exit_code=32), "no disk", "attach one"),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device", "message"),
        (KeyError("x"), "KeyError: 'x'", "bug"),
    ],
)
def test_failure_stops_the_plan(tmp_path: Path, error: Exception, message: str, remedy: str) -> None:
    context, log = make_context(tmp_path), []
    steps = [Recorder("one", log=log, error=error), Recorder("two", "one", log=log)]
    with pytest.raises(StepRunError) as caught:
        run_steps(steps, context, timeout_seconds=WAIT_SECONDS)
    assert caught.value.step == "one"
    assert caught.value.error.message == message
    assert remedy in caught.value.error.remedy
    assert log == ["one act"]
    assert events(context)[-1]["outcome"] == "failed"
    assert not (tmp_path / "state" / "one.done").exists()


def test_a_step_that_hangs_ends_the_plan_in_time(tmp_path: Path) -> None:
    release = threading.Event()

    class Hanging(Recorder):
        def act(self, context: Context) -> None:
            release.wait(WAIT_SECONDS)

    with pytest.raises(StepRunError, match="still running: slow") as caught:
        run_steps([Hanging("slow", log=[])], make_context(tmp_path), timeout_seconds=0.2)
    release.set()
    assert "boot_timeout_seconds" in caught.value.error.remedy


def test_the_boot_steps_are_in_a_valid_order() -> None:
    check_order(STEPS)
    assert [step.name for step in STEPS][-1] == "trainer_ready"
    with pytest.raises(ValueError, match="two is listed before one"):
        check_order([Recorder("two", "one", log=[]), Recorder("one", log=[])])
