"""The custom resource for fast snapshot restore: enable, wait across invocations, disable, and always respond."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from stacks.functions.fast_snapshot_restore.handler import (
    CONTINUE_BEFORE_END_SECONDS,
    LONGEST_WAIT_SECONDS,
    POLL_SECONDS,
    WAITING_SINCE,
    Context,
    respond,
)

SNAPSHOT, OTHER = "snap-0123456789abcdef0", "snap-0aaaaaaaaaaaaaaaa"


class Ec2:
    """A fake EC2 in which a zone is enabled some seconds after the request."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.asked: dict[tuple[str, str], float] = {}
        self.refusal: str | None = None
        self.calls: list[tuple[str, str, tuple[str, ...]]] = []

    def get_paginator(self, name: str) -> Ec2:
        assert name == "describe_fast_snapshot_restores"
        return self

    def paginate(self, *, Filters: list[dict[str, Any]]) -> list[dict[str, Any]]:  # noqa: N803 boto3's name
        (snapshot,) = Filters[0]["Values"]
        now = self.world.now
        shown = [
            {"AvailabilityZone": zone, "State": "enabled" if now >= since + self.world.seconds else "optimizing"}
            for (of, zone), since in self.asked.items()
            if of == snapshot
        ]
        return [{"FastSnapshotRestores": [one]} for one in shown] or [{"FastSnapshotRestores": []}]

    def enable_fast_snapshot_restores(self, **request: Any) -> dict[str, Any]:
        (snapshot,), zones = request["SourceSnapshotIds"], request["AvailabilityZones"]
        self.calls.append(("enable", snapshot, tuple(zones)))
        if self.refusal is not None:
            error = {"AvailabilityZone": zones[0], "Error": {"Code": self.refusal, "Message": "too many"}}
            return {"Unsuccessful": [{"SnapshotId": snapshot, "FastSnapshotRestoreStateErrors": [error]}]}
        self.asked |= {(snapshot, zone): self.world.now for zone in zones}
        return {"Unsuccessful": []}

    def disable_fast_snapshot_restores(self, **request: Any) -> dict[str, Any]:
        (snapshot,), zones = request["SourceSnapshotIds"], request["AvailabilityZones"]
        self.calls.append(("disable", snapshot, tuple(zones)))
        for zone in zones:
            del self.asked[snapshot, zone]
        return {"Unsuccessful": []}


class World:
    """Fake clock, CloudFormation and Lambda. A self-invocation gets another 15 minutes."""

    def __init__(self, *, seconds: float = 60.0) -> None:
        self.seconds = seconds
        self.now = 1000.0
        self.ec2 = Ec2(self)
        self.answers: list[Mapping[str, Any]] = []
        self.invocations = 0

    def ask(self, kind: str, zones: list[str], *, snapshot: str = SNAPSHOT, **more: Any) -> Mapping[str, Any]:
        event: Mapping[str, Any] | None = {
            "RequestType": kind,
            "ResponseURL": "https://answer.example",
            "StackId": "stack",
            "RequestId": "request",
            "LogicalResourceId": "FastRestore",
            "ResourceProperties": {"SnapshotId": snapshot, "AvailabilityZones": zones},
            **more,
        }
        while event is not None:
            event = self._invoke(event)
        return self.answers.pop()

    def _invoke(self, event: Mapping[str, Any]) -> Mapping[str, Any] | None:
        ends, later = self.now + 900, []
        self.invocations += 1

        def sleep(seconds: float) -> None:
            self.now += seconds

        context = Context(
            ec2=self.ec2,
            send=lambda url, answer: self.answers.append(answer),
            invoke_self=later.append,
            remaining_seconds=lambda: ends - self.now,
            unix_seconds=lambda: self.now,
            sleep=sleep,
        )
        respond(event, context)
        assert ends - self.now >= CONTINUE_BEFORE_END_SECONDS - POLL_SECONDS, "the invocation would have timed out"
        return later[0] if later else None


def test_create_waits_until_enabled() -> None:
    world = World(seconds=60)
    answer = world.ask("Create", ["us-east-1a", "us-east-1b"])
    assert (answer["Status"], answer["PhysicalResourceId"]) == ("SUCCESS", SNAPSHOT)
    assert world.now >= 1060 and world.invocations == 1
    again = world.ask("Create", ["us-east-1a", "us-east-1b"])
    assert again["Status"] == "SUCCESS"
    assert [call[0] for call in world.ec2.calls] == ["enable"], "an enabled zone needs no further request"


def test_long_wait_continues_in_another_invocation() -> None:
    world = World(seconds=40 * 60)
    assert world.ask("Create", ["us-east-1a"])["Status"] == "SUCCESS"
    assert world.invocations == 3


def test_wait_beyond_cloudformations_timeout_fails_with_a_remedy() -> None:
    world = World(seconds=10 * 3600)
    answer = world.ask("Create", ["us-east-1a"])
    assert answer["Status"] == "FAILED"
    assert "us-east-1a optimizing after 55 minutes" in answer["Reason"]
    assert "enable-fast-snapshot-restores" in answer["Reason"]
    assert world.now - 1000 <= LONGEST_WAIT_SECONDS + POLL_SECONDS


def test_update_disables_removed_zones() -> None:
    world = World()
    world.ask("Create", ["us-east-1a", "us-east-1b"])
    old = {"SnapshotId": SNAPSHOT, "AvailabilityZones": ["us-east-1a", "us-east-1b"]}
    answer = world.ask("Update", ["us-east-1b", "us-east-1c"], OldResourceProperties=old)
    assert answer["PhysicalResourceId"] == SNAPSHOT
    assert {zone for _, zone in world.ec2.asked} == {"us-east-1b", "us-east-1c"}


def test_another_snapshot_is_another_resource() -> None:
    """CloudFormation deletes the old resource itself, after the rest of the update."""
    world = World()
    world.ask("Create", ["us-east-1a"])
    old = {"SnapshotId": SNAPSHOT, "AvailabilityZones": ["us-east-1a"]}
    answer = world.ask("Update", ["us-east-1a"], snapshot=OTHER, OldResourceProperties=old)
    assert answer["PhysicalResourceId"] == OTHER
    assert set(world.ec2.asked) == {(SNAPSHOT, "us-east-1a"), (OTHER, "us-east-1a")}
    world.ask("Delete", ["us-east-1a"])
    assert set(world.ec2.asked) == {(OTHER, "us-east-1a")}


def test_delete_of_a_disabled_zone_succeeds() -> None:
    world = World()
    assert world.ask("Delete", ["us-east-1a"])["Status"] == "SUCCESS"
    assert world.ec2.calls == []


def test_rejected_call_sends_a_response() -> None:
    world = World()
    world.ec2.refusal = "SnapshotLimitExceeded"
    answer = world.ask("Create", ["us-east-1a"])
    assert answer["Status"] == "FAILED"
    assert "us-east-1a: SnapshotLimitExceeded: too many" in answer["Reason"]


def test_unexpected_error_sends_a_response(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr(world.ec2, "get_paginator", lambda name: 1 / 0)
    answer = world.ask("Delete", ["us-east-1a"], **{WAITING_SINCE: 1})
    assert (answer["Status"], answer["Reason"]) == ("FAILED", "ZeroDivisionError: division by zero")
