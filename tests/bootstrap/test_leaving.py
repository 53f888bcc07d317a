"""Order of a supervisor's last actions: events are delivered before the instance may terminate."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bootstrap.boot_main import boot
from bootstrap.boot_steps.step_runner import Step
from bootstrap.context import Context
from bootstrap.errors import MetadataError, StepError
from bootstrap.events.schema import NodeLeaving, RunFinished
from bootstrap.imds import InterruptionNotice
from bootstrap.layout import Layout
from bootstrap.supervise import supervisor
from bootstrap.supervise.leaving import LONGEST_WAIT_SECONDS, wait_for_reclaim
from bootstrap.supervise.monitors import FREE_SECONDS, Board, MetadataWatch
from bootstrap.supervise.situation import Leave
from bootstrap.supervise.volume_snapshot import newest_save_unix_seconds
from tests.bootstrap.account import Account
from tests.bootstrap.fake_system import FakeSystem
from training.checkpoint.save import local_tier


class NoTrainer(Step):
    """A boot step that fails."""

    name = "no_trainer"

    def act(self, context: Context) -> None:
        raise StepError("no trainer", remedy="none")


IDENTITY = SimpleNamespace(instance_id="i-1", auto_scaling_group="group")


@pytest.mark.parametrize(("hook", "expected"), [(True, ["events", "hook", "off"]), (False, ["events", "off"])])
def test_events_are_delivered_before_the_instance_may_terminate(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: bool, expected: list[str]
) -> None:
    order: list[str] = []
    delivered: list[str] = []

    class Logs:
        def create_log_stream(self, **target: str) -> None:
            pass

        def put_log_events(self, logEvents: list[dict[str, Any]], **target: str) -> None:
            delivered.extend(json.loads(event["message"])["event"] for event in logEvents)
            order.append("events")

        def complete_lifecycle_action(self, **arguments: str) -> None:
            assert arguments["AutoScalingGroupName"] == "group"
            order.append("hook")

    class Finishing:
        """A supervisor whose run has finished and whose group scales in."""

        def __init__(self, context: Context, *others: object) -> None:
            self._events = context.events

        def run(self) -> Leave:
            self._events.emit(RunFinished(run="r", run_digest="d", step=9))
            self._events.emit(NodeLeaving("scale-in"))
            return Leave("scale-in", complete_hook=hook, shut_down=True)

    system = FakeSystem()
    (tmp_path / "node.json").write_text(json.dumps(account.node()))
    monkeypatch.setattr(system, "shut_down", lambda: order.append("off"))
    monkeypatch.setattr(supervisor, "Supervisor", Finishing)
    monkeypatch.setattr("bootstrap.imds.InstanceMetadata.identity", lambda self: IDENTITY)
    monkeypatch.setattr("bootstrap.aws.Aws.client", lambda self, name, **options: Logs())
    assert supervisor.supervise(system, Layout(tmp_path))
    assert order == expected
    assert delivered == ["run_finished", "node_leaving"]


def test_a_save_on_the_volume_is_found_by_the_record_of_the_trainer(tmp_path: Path) -> None:
    assert newest_save_unix_seconds(tmp_path) is None
    record = tmp_path / "runs" / "demo" / "first" / "checkpoints" / f"{local_tier._RANK_PREFIX}00000.json"
    record.parent.mkdir(parents=True)
    record.touch()
    os.utime(record, (5, 7))
    assert newest_save_unix_seconds(tmp_path) == 7


@pytest.mark.parametrize(("state", "completed"), [("Terminated", True), ("InService", False), (None, False)])
@pytest.mark.parametrize("failing", ["boot", "supervise"])
def test_a_failing_node_that_its_group_terminates_completes_the_hook(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, state: str | None, completed: bool
) -> None:
    """Otherwise, the group waits for the hook's timeout, although the instance has already shut down."""
    calls: list[str] = []

    class Client:
        def __getattr__(self, name: str) -> Any:
            return lambda **arguments: calls.append(name)

    class Failing:
        def __init__(self, *arguments: object) -> None:
            raise OSError("a fault")

    system = FakeSystem()
    (tmp_path / "node.json").write_text(json.dumps(account.node()))
    monkeypatch.setattr(system, "shut_down", lambda: calls.append("off"))
    monkeypatch.setattr(supervisor, "Supervisor", Failing)
    monkeypatch.setattr("bootstrap.imds.InstanceMetadata.identity", lambda self: IDENTITY)
    monkeypatch.setattr("bootstrap.imds.InstanceMetadata.target_lifecycle_state", lambda self: state)
    monkeypatch.setattr("bootstrap.aws.Aws.client", lambda self, name, **options: Client())
    if failing == "boot":
        assert not boot(system, Layout(tmp_path), [NoTrainer()])
    else:
        assert not supervisor.supervise(system, Layout(tmp_path))
    assert ("complete_lifecycle_action" in calls) == completed and calls[-1] == "off"


class Metadata:
    """Metadata of a Spot Instance with a notice. The target lifecycle state changes after some reads."""

    def __init__(self, launched: float | MetadataError | None = None, terminated_after_reads: int = 10**9) -> None:
        self.launched = launched
        self.left = terminated_after_reads

    def interruption_notice(self) -> InterruptionNotice:
        return InterruptionNotice("terminate", 5000.0)

    def launched_unix_seconds(self) -> float | None:
        if isinstance(self.launched, MetadataError):
            raise self.launched
        return self.launched

    def target_lifecycle_state(self) -> str | None:
        self.left -= 1
        if self.left == -1:
            raise MetadataError("no response")
        return "Terminated" if self.left < -1 else "InService"

    def rebalance_recommendation(self) -> None:
        return None


class Still(FakeSystem):
    """A machine whose wall clock follows the monotonic clock, which starts at 1000 s."""

    def unix_seconds(self) -> float:
        return self.now


def waiting(system: FakeSystem, metadata: Metadata) -> Context:
    return SimpleNamespace(system=system, metadata=metadata)  # type: ignore[return-value]


@pytest.mark.parametrize(("until", "slept"), [(1130.0, 130.0), (900.0, 0.0), (10.0**9, LONGEST_WAIT_SECONDS)])
def test_a_node_that_is_not_reclaimed_shuts_down(until: float, slept: float) -> None:
    system = Still()
    assert wait_for_reclaim(waiting(system, Metadata()), until, []) == (False, True)
    assert system.slept == slept


def test_the_group_ends_the_wait_for_the_interruption() -> None:
    system = Still()
    assert wait_for_reclaim(waiting(system, Metadata(terminated_after_reads=5)), 1100.0, []) == (True, True)
    assert system.slept == 6


def test_a_signal_ends_the_wait_for_the_interruption() -> None:
    system, signalled = Still(), list[float]()
    system.on_sleep = lambda: signalled.append(system.now)
    assert wait_for_reclaim(waiting(system, Metadata()), 1100.0, signalled) == (False, False)
    assert system.slept == 1


@pytest.mark.parametrize(
    ("market", "launched", "free_until"),
    [
        ("spot", 1700.0, 1700.0 + FREE_SECONDS),
        ("spot", None, None),
        ("spot", MetadataError("status 500"), None),
        ("on-demand", 1700.0, None),
    ],
)
def test_a_notice_is_noted_with_or_without_a_launch_time(
    market: str, launched: float | MetadataError | None, free_until: float | None
) -> None:
    board, events = Board(), SimpleNamespace(emit=lambda event: None)
    identity = SimpleNamespace(market=market)
    metadata = Metadata(launched)
    context = SimpleNamespace(system=Still(), metadata=metadata, events=events, identity=identity)
    MetadataWatch(context, board).check()  # type: ignore[arg-type]
    assert board.notice == InterruptionNotice("terminate", 5000.0)
    assert board.free_until_unix == free_until


@pytest.mark.parametrize(("result", "expected"), [((False, False), []), ((True, True), ["hook", "off"])])
def test_a_node_waits_for_its_interruption_before_its_last_actions(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: tuple[bool, bool], expected: list[str]
) -> None:
    order: list[str] = []

    class Leaving:
        def __init__(self, *arguments: object) -> None:
            pass

        def run(self) -> Leave:
            return Leave("notice", complete_hook=False, shut_down=True, reclaim_unix=77.0)

    def wait(context: Context, until: float, signalled: list[float]) -> tuple[bool, bool]:
        assert until == 77.0
        return result

    system = FakeSystem()
    (tmp_path / "node.json").write_text(json.dumps(account.node()))
    monkeypatch.setattr(system, "shut_down", lambda: order.append("off"))
    monkeypatch.setattr(supervisor, "Supervisor", Leaving)
    monkeypatch.setattr(supervisor, "wait_for_reclaim", wait)
    monkeypatch.setattr(supervisor, "complete_hook", lambda context, identity: order.append("hook"))
    monkeypatch.setattr("bootstrap.imds.InstanceMetadata.identity", lambda self: IDENTITY)
    assert supervisor.supervise(system, Layout(tmp_path))
    assert order == expected
