"""A synthetic run: two nodes, one of which is interrupted and replaced by a third."""

from __future__ import annotations

import math
from typing import Any

import pytest

START = 1_800_000_000.0
INTERRUPTED_AT_STEP = 140
STEPS = 300
PRICES = {
    "date": "2026-11-20",
    "source": "https://aws.amazon.com/ec2/pricing/",
    "currency": "USD",
    "hourly": {
        "c7i.xlarge": {"on_demand": 0.1785, "spot": 0.0714},
        "c6i.xlarge": {"on_demand": 0.17, "spot": 0.0612},
    },
}
DEPLOYMENT = {
    "deployed_stacks": ["CDKToolkit", "NetworkStack", "StorageStack", "TrainingStack"],
    "resources_by_type": {"AWS::EC2::Subnet": 3, "AWS::S3::Bucket": 3, "AWS::IAM::Role": 9, "AWS::KMS::Key": 1},
    "unsupported_resources": [],
    "iam_denied_calls": [],
}
BOOT = (("identity", 0.4), ("instance_checks", 0.9), ("python_env", 5.2), ("code", 1.1), ("staging", 3.4))


def boot(instance: str, at: float) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [{"event": "boot_started", "unix_seconds": at, "instance_id": instance}]
    for name, seconds in BOOT:
        overlapping = name in ("code", "staging")
        began = at if not overlapping else at - 3.0
        at = began + seconds
        events.append(
            {
                "event": "boot_step",
                "unix_seconds": at,
                "instance_id": instance,
                "step": name,
                "seconds": seconds,
                "started_unix_seconds": began,
                "ended_unix_seconds": at,
                "outcome": "done",
            }
        )
    events.append({"event": "boot_finished", "unix_seconds": at, "instance_id": instance, "seconds": 9.0})
    return events


def loss_at(step: int) -> float:
    return 2.2 + 6.2 * math.exp(-step / 60) + 0.06 * math.sin(step * 1.7)


def steps(instance: str, first: int, last: int, at: float, *, resumed: int | None) -> list[dict[str, Any]]:
    def trainer(when: float, **record: Any) -> dict[str, Any]:
        nested = {**record, "unix_seconds": when}
        return {"event": "trainer", "unix_seconds": when + 0.4, "instance_id": instance, "record": nested}

    facts = {"world_size": 2, "parameters": 3_400_000, "precision": "float32", "device": "cpu", "steps_total": STEPS}
    events = [trainer(at, record="start", step=first - 1, resumed_from_step=resumed, bytes_per_token=3.1, **facts)]
    for step in range(first, last + 1):
        at += 0.22
        speed = 18_500 + 900 * math.sin(step * 0.9)
        loss = loss_at(step)
        events.append(trainer(at, record="step", step=step, loss=loss, learning_rate=1e-3, tokens_per_second=speed))
        if step % 20 == 0:
            validation = {"loss": loss + 0.15, "bits_per_byte": (loss + 0.15) / 3.1 / 0.693, "unigram_loss": 6.31}
            events.append(trainer(at, record="validation", step=step, **validation))
            events.append(
                trainer(at, record="checkpoint", step=step, seconds=0.8, blocked_seconds=0.02, bytes_written=4e7)
            )
    return events


def versioned(event: dict[str, Any]) -> dict[str, Any]:
    """Add the schema version to an event and to its trainer record."""
    record = {"record": {"schema_version": 2, **event["record"]}} if "record" in event else {}
    return {"schema_version": 2, **event, **record}


def synthetic_run(
    *, notice_seconds: float | None = 120.0, resumed_from: int = INTERRUPTED_AT_STEP
) -> dict[str, list[dict[str, Any]]]:
    """Return the run's events and records. Without notice, the run resumes from an earlier checkpoint."""
    a, b, c = "i-0aaa1111bbbb2222c", "i-0bbb3333cccc4444d", "i-0ccc5555dddd6666e"
    first = START + 14.0
    lost_at = first + INTERRUPTED_AT_STEP * 0.22 + 0.05
    second = lost_at + 21.5
    events = [*boot(a, START + 1.5), *boot(b, START + 2.0), *boot(c, lost_at + 3.0)]
    last = second + (STEPS - resumed_from) * 0.22

    def event(kind: str, instance: str, at: float, **more: Any) -> None:
        events.append({"event": kind, "unix_seconds": at, "instance_id": instance, **more})

    for rank, instance in enumerate((a, b)):
        event("generation_started", instance, first - 1, generation=1, rank=rank, world_size=2, members=[a, b])
    events.extend(steps(a, 1, INTERRUPTED_AT_STEP, first, resumed=None))
    if notice_seconds is not None:
        event("interruption_notice", b, lost_at + 0.3, action="terminate", reclaim_unix_seconds=lost_at + 120)
        event(
            "generation_ended",
            b,
            lost_at + 1.5,
            generation=1,
            outcome="stopped",
            step=INTERRUPTED_AT_STEP,
            message="",
        )
        event("node_leaving", b, lost_at + 2.0, reason="interrupted, saved")
    event("generation_ended", a, lost_at + 1.5, generation=1, outcome="lost_peer", step=None, message="")
    for rank, instance in enumerate((a, c)):
        event("generation_started", instance, second - 1, generation=2, rank=rank, world_size=2, members=[a, c])
        event("generation_ended", instance, last + 1, generation=2, outcome="finished", step=STEPS, message="")
    events.extend(steps(a, resumed_from + 1, STEPS, second, resumed=resumed_from))
    event("run_finished", a, last + 1.2, run="demo", run_digest="0" * 64, step=STEPS)

    def launched(instance: str, at: float, kind: str, zone: str) -> dict[str, Any]:
        more = {"instance_type": kind, "market": "spot", "zone": zone}
        return {"kind": "instance_launched", "unix_seconds": at, "instance_id": instance, **more}

    def ended(instance: str, at: float, reason: str) -> dict[str, Any]:
        return {"kind": "instance_ended", "unix_seconds": at, "instance_id": instance, "reason": reason}

    records = [
        launched(a, START, "c7i.xlarge", "us-east-1a"),
        launched(b, START + 0.4, "c7i.xlarge", "us-east-1a"),
        {"kind": "interruption", "unix_seconds": lost_at, "instance_id": b, "notice_seconds": notice_seconds},
        launched(c, lost_at + 1.0, "c6i.xlarge", "us-east-1a"),
        ended(
            b,
            lost_at + 4.0,
            "Client.InstanceInitiatedShutdown" if notice_seconds else "Server.SpotInstanceTermination",
        ),
        {"kind": "event_delivered", "unix_seconds": lost_at + 0.1, "rule": "r", "target": "t"},
        ended(a, last + 6, "Client.UserInitiatedShutdown"),
        ended(c, last + 6, "Client.UserInitiatedShutdown"),
    ]
    return {"events": [versioned(one) for one in events], "records": records}


@pytest.fixture
def with_notice() -> dict[str, list[dict[str, Any]]]:
    return synthetic_run()


@pytest.fixture
def without_notice() -> dict[str, list[dict[str, Any]]]:
    return synthetic_run(notice_seconds=None, resumed_from=120)


@pytest.fixture
def deployment() -> dict[str, Any]:
    return dict(DEPLOYMENT)


@pytest.fixture
def prices() -> dict[str, Any]:
    return dict(PRICES)
