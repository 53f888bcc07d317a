"""Lambda handler of the custom resource: enables, waits until it is, disables; answers CloudFormation each time.

A snapshot takes about an hour for each TiB, an invocation lasts a quarter of one: the function hands a wait that is not
over on to a further invocation of itself.

Sources (2026-11): https://docs.aws.amazon.com/ebs/latest/userguide/ebs-fast-snapshot-restore.html and
https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/crpg-ref.html
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config

POLL_SECONDS = 15.0
HAND_ON_SECONDS = 60.0
"""Seconds before its own end at which an invocation hands the wait on."""
LONGEST_WAIT_SECONDS = 55 * 60.0
"""CloudFormation gives up on a custom resource after an hour."""
WAITING_SINCE = "WaitingSinceUnixSeconds"
_ON = ("enabling", "optimizing", "enabled")
_BOUNDED = Config(connect_timeout=5, read_timeout=20, retries={"mode": "standard", "total_max_attempts": 5})


class RestoreError(Exception):
    """Fast snapshot restore cannot be had; the message goes to CloudFormation."""


@dataclass(frozen=True)
class Surroundings:
    """What the handler touches, so that tests can put something else in its place."""

    ec2: Any
    send: Callable[[str, Mapping[str, Any]], None]
    hand_on: Callable[[Mapping[str, Any]], None]
    remaining_seconds: Callable[[], float]
    unix_seconds: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


def handler(event: Mapping[str, Any], context: Any) -> None:
    """Handle a request of CloudFormation's, or go on with one."""

    def hand_on(later: Mapping[str, Any]) -> None:
        boto3.client("lambda", config=_BOUNDED).invoke(
            FunctionName=context.invoked_function_arn, InvocationType="Event", Payload=json.dumps(later).encode()
        )

    respond(
        event,
        Surroundings(
            ec2=boto3.client("ec2", config=_BOUNDED),
            send=put_answer,
            hand_on=hand_on,
            remaining_seconds=lambda: context.get_remaining_time_in_millis() / 1000,
        ),
    )


def respond(event: Mapping[str, Any], here: Surroundings) -> None:
    """Do what the request asks, and answer it, whatever happens: without an answer the stack hangs for an hour."""
    snapshot = str(event["ResourceProperties"]["SnapshotId"])
    answer = {
        "Status": "SUCCESS",
        "PhysicalResourceId": snapshot,
        **{name: event[name] for name in ("StackId", "RequestId", "LogicalResourceId")},
    }
    try:
        is_over = carry_out(event, here)
    except Exception as error:  # noqa: BLE001 the top level: CloudFormation must hear of it
        answer |= {"Status": "FAILED", "Reason": f"{type(error).__name__}: {error}"}
        is_over = True
    if is_over:
        here.send(str(event["ResponseURL"]), answer)


def carry_out(event: Mapping[str, Any], here: Surroundings) -> bool:
    """Enable or disable; return False when a further invocation goes on.

    Raises:
        RestoreError: EC2 refuses, or the snapshot takes too long.
    """
    snapshot, zones = _wanted(event["ResourceProperties"])
    if event["RequestType"] == "Delete":
        _disable(here.ec2, snapshot, zones)
        return True
    if event["RequestType"] == "Update":
        before, old_zones = _wanted(event["OldResourceProperties"])
        # Another snapshot has another id here: CloudFormation deletes the old one itself.
        if before == snapshot:
            _disable(here.ec2, snapshot, [zone for zone in old_zones if zone not in zones])
    _enable(here.ec2, snapshot, zones)
    return _wait(event, here, snapshot, zones)


def put_answer(url: str, answer: Mapping[str, Any]) -> None:
    """Put an answer where CloudFormation waits for it."""
    request = urllib.request.Request(  # noqa: S310 the address is CloudFormation's
        url, data=json.dumps(answer).encode(), method="PUT", headers={"Content-Type": ""}
    )
    with urllib.request.urlopen(request, timeout=30):  # noqa: S310
        pass


def _wanted(properties: Mapping[str, Any]) -> tuple[str, list[str]]:
    return str(properties["SnapshotId"]), [str(zone) for zone in properties["AvailabilityZones"]]


def _states(ec2: Any, snapshot: str) -> dict[str, str]:
    """Return the state of each zone that knows of fast restores of the snapshot."""
    pages = ec2.get_paginator("describe_fast_snapshot_restores").paginate(
        Filters=[{"Name": "snapshot-id", "Values": [snapshot]}]
    )
    return {each["AvailabilityZone"]: each["State"] for page in pages for each in page["FastSnapshotRestores"]}


def _enable(ec2: Any, snapshot: str, zones: list[str]) -> None:
    states = _states(ec2, snapshot)
    missing = [zone for zone in zones if states.get(zone) not in _ON]
    if missing:
        answer = ec2.enable_fast_snapshot_restores(SourceSnapshotIds=[snapshot], AvailabilityZones=missing)
        _check(snapshot, answer)


def _disable(ec2: Any, snapshot: str, zones: list[str]) -> None:
    states = _states(ec2, snapshot)
    enabled = [zone for zone in zones if states.get(zone) in _ON]
    if enabled:
        answer = ec2.disable_fast_snapshot_restores(SourceSnapshotIds=[snapshot], AvailabilityZones=enabled)
        _check(snapshot, answer)


def _check(snapshot: str, answer: Mapping[str, Any]) -> None:
    problems = [
        f"{each['AvailabilityZone']}: {each['Error']['Code']}: {each['Error']['Message']}"
        for one in answer.get("Unsuccessful", [])
        for each in one["FastSnapshotRestoreStateErrors"]
    ]
    if problems:
        raise RestoreError(f"{snapshot}: {'; '.join(problems)}")


def _wait(event: Mapping[str, Any], here: Surroundings, snapshot: str, zones: list[str]) -> bool:
    since = float(event.get(WAITING_SINCE, here.unix_seconds()))
    while True:
        states = _states(here.ec2, snapshot)
        waiting = {zone: states.get(zone, "absent") for zone in zones if states.get(zone) != "enabled"}
        if not waiting:
            return True
        if here.unix_seconds() - since >= LONGEST_WAIT_SECONDS:
            shown = ", ".join(f"{zone} {state}" for zone, state in waiting.items())
            raise RestoreError(
                f"{snapshot}: still {shown} after {LONGEST_WAIT_SECONDS / 60:.0f} minutes; a deploy waits no longer: "
                "enable it by hand (aws ec2 enable-fast-snapshot-restores), and deploy again when it is enabled"
            )
        if here.remaining_seconds() < HAND_ON_SECONDS:
            here.hand_on({**event, WAITING_SINCE: since})
            return False
        here.sleep(POLL_SECONDS)
