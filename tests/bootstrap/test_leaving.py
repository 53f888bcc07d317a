"""The order in which a supervisor ends: what it has to say is out before anybody may end the machine."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bootstrap.layout import Layout
from bootstrap.plan import Context
from bootstrap.supervise import supervisor
from bootstrap.supervise.situation import Leave
from tests.bootstrap.account import Account
from tests.bootstrap.fake_system import FakeSystem

IDENTITY = SimpleNamespace(instance_id="i-1", auto_scaling_group="group")


@pytest.mark.parametrize(("hook", "expected"), [(True, ["said", "hook", "off"]), (False, ["said", "off"])])
def test_events_are_delivered_before_the_group_may_end_the_machine(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: bool, expected: list[str]
) -> None:
    order: list[str] = []
    delivered: list[str] = []

    class Logs:
        def create_log_stream(self, **target: str) -> None:
            pass

        def put_log_events(self, logEvents: list[dict[str, Any]], **target: str) -> None:
            delivered.extend(json.loads(event["message"])["event"] for event in logEvents)
            order.append("said")

        def complete_lifecycle_action(self, **arguments: str) -> None:
            assert arguments["AutoScalingGroupName"] == "group"
            order.append("hook")

    class Finishing:
        """What a supervisor says last when its run has just finished and the group scales in."""

        def __init__(self, context: Context, *others: object) -> None:
            self._events = context.events

        def run(self) -> Leave:
            self._events.emit("run_finished", run="r", step=9)
            self._events.emit("node_leaving", reason="scale-in")
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
