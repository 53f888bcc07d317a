"""The events whose contents the run controller uses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

INTERRUPTION = "EC2 Spot Instance Interruption Warning"
SOURCE = "trainstack"
STATE_CHANGE = "EC2 Instance State-change Notification"
RETRY = "Run Retry Requested"
"""Detail type of the event that a user sends to end a wait, or to allow launches again after boot failures."""


def interrupted_instances(events: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the instances that interruption warnings name."""
    return frozenset(event["detail"]["instance-id"] for event in events if event.get("detail-type") == INTERRUPTION)


def is_retry_requested(events: Iterable[Mapping[str, Any]]) -> bool:
    """Return True if a user requested a retry."""
    return any(event.get("detail-type") == RETRY for event in events)


def retry_command(deployment: str) -> str:
    """Return the command that requests a retry of a deployment."""
    return f"aws events put-events --entries '{json.dumps([retry_entry(deployment)])}'"


def retry_entry(deployment: str) -> dict[str, str]:
    """Return the PutEvents entry that requests a retry of a deployment."""
    return {"Source": SOURCE, "DetailType": RETRY, "Detail": json.dumps({"deployment": deployment})}
