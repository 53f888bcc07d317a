"""The custom resource's Lambda handler. It enables fast snapshot restore and waits for completion, or disables it.

Optimizing a snapshot takes about an hour per TiB, but an invocation can last at most 15 minutes. The function therefore
invokes itself to continue waiting.

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
CONTINUE_BEFORE_END_SECONDS = 60.0
"""The number of seconds before its timeout at which an invocation starts the next one."""
LONGEST_WAIT_SECONDS = 55 * 60.0
"""CloudFormation's timeout for a custom resource is one hour."""
WAITING_SINCE = "WaitingSinceUnixSeconds"
_ON = ("enabling", "optimizing", "enabled")
_BOUNDED = Config(connect_timeout=5, read_timeout=20, retries={"mode": "standard", "total_max_attempts": 5})


class RestoreError(Exception):
    """EC2 cannot enable fast snapshot restore. CloudFormation shows the message."""


@dataclass(frozen=True)
class Context:
    """The handler's clients and clocks. Tests replace them."""

    ec2: Any
    send: Callable[[str, Mapping[str, Any]], None]
    invoke_self: Callable[[Mapping[str, Any]], None]
    remaining_seconds: Callable[[], float]
    unix_seconds: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


def handler(event: Mapping[str, Any], context: Any) -> None:
    """Handle a request from CloudFormation, or continue an earlier request."""

    def invoke_self(payload: Mapping[str, Any]) -> None:
        boto3.client("lambda", config=_BOUNDED).invoke(
            FunctionName=context.invoked_function_arn, InvocationType="Event", Payload=json.dumps(payload).encode()
        )

    respond(
        event,
        Context(
            ec2=boto3.client("ec2", config=_BOUNDED),
            send=put_response,
            invoke_self=invoke_self,
            remaining_seconds=lambda: context.get_remaining_time_in_millis() / 1000,
        ),
    )


def respond(event: Mapping[str, Any], context: Context) -> None:
    """Process a request and always send a response. Without a response, the stack would hang for an hour."""
    snapshot = str(event["ResourceProperties"]["SnapshotId"])
    response = {
        "Status": "SUCCESS",
        "PhysicalResourceId": snapshot,
        **{name: event[name] for name in ("StackId", "RequestId", "LogicalResourceId")},
    }
    try:
        is_done = apply(event, context)
    except Exception as error:  # noqa: BLE001 CloudFormation must receive every failure
        response |= {"Status": "FAILED", "Reason": f"{type(error).__name__}: {error}"}
        is_done = True
    if is_done:
        context.send(str(event["ResponseURL"]), response)


def apply(event: Mapping[str, Any], context: Context) -> bool:
    """Enable or disable fast snapshot restore. Return False if another invocation will continue the request.

    Raises:
        RestoreError: EC2 rejected the call, or optimizing the snapshot took too long.
    """
    snapshot, zones = _target(event["ResourceProperties"])
    if event["RequestType"] == "Delete":
        _disable(context.ec2, snapshot, zones)
        return True
    if event["RequestType"] == "Update":
        before, old_zones = _target(event["OldResourceProperties"])
        # A different snapshot has a different physical id, so CloudFormation deletes the old resource itself.
        if before == snapshot:
            _disable(context.ec2, snapshot, [zone for zone in old_zones if zone not in zones])
    _enable(context.ec2, snapshot, zones)
    return _wait(event, context, snapshot, zones)


def put_response(url: str, response: Mapping[str, Any]) -> None:
    """Send a response to CloudFormation's pre-signed URL."""
    request = urllib.request.Request(  # noqa: S310 the URL comes from CloudFormation
        url, data=json.dumps(response).encode(), method="PUT", headers={"Content-Type": ""}
    )
    with urllib.request.urlopen(request, timeout=30):  # noqa: S310
        pass


def _target(properties: Mapping[str, Any]) -> tuple[str, list[str]]:
    return str(properties["SnapshotId"]), [str(zone) for zone in properties["AvailabilityZones"]]


def _states(ec2: Any, snapshot: str) -> dict[str, str]:
    """Return the snapshot's fast snapshot restore state in each zone that has one."""
    pages = ec2.get_paginator("describe_fast_snapshot_restores").paginate(
        Filters=[{"Name": "snapshot-id", "Values": [snapshot]}]
    )
    return {each["AvailabilityZone"]: each["State"] for page in pages for each in page["FastSnapshotRestores"]}


def _enable(ec2: Any, snapshot: str, zones: list[str]) -> None:
    states = _states(ec2, snapshot)
    missing = [zone for zone in zones if states.get(zone) not in _ON]
    if missing:
        response = ec2.enable_fast_snapshot_restores(SourceSnapshotIds=[snapshot], AvailabilityZones=missing)
        _check(snapshot, response)


def _disable(ec2: Any, snapshot: str, zones: list[str]) -> None:
    states = _states(ec2, snapshot)
    enabled = [zone for zone in zones if states.get(zone) in _ON]
    if enabled:
        response = ec2.disable_fast_snapshot_restores(SourceSnapshotIds=[snapshot], AvailabilityZones=enabled)
        _check(snapshot, response)


def _check(snapshot: str, response: Mapping[str, Any]) -> None:
    problems = [
        f"{each['AvailabilityZone']}: {each['Error']['Code']}: {each['Error']['Message']}"
        for one in response.get("Unsuccessful", [])
        for each in one["FastSnapshotRestoreStateErrors"]
    ]
    if problems:
        raise RestoreError(f"{snapshot}: {'; '.join(problems)}")


def _wait(event: Mapping[str, Any], context: Context, snapshot: str, zones: list[str]) -> bool:
    since = float(event.get(WAITING_SINCE, context.unix_seconds()))
    while True:
        states = _states(context.ec2, snapshot)
        waiting = {zone: states.get(zone, "absent") for zone in zones if states.get(zone) != "enabled"}
        if not waiting:
            return True
        if context.unix_seconds() - since >= LONGEST_WAIT_SECONDS:
            shown = ", ".join(f"{zone} {state}" for zone, state in waiting.items())
            raise RestoreError(
                f"{snapshot}: still {shown} after {LONGEST_WAIT_SECONDS / 60:.0f} minutes, the limit for a deploy; run "
                "`aws ec2 enable-fast-snapshot-restores`, wait until the state is enabled, then deploy again"
            )
        if context.remaining_seconds() < CONTINUE_BEFORE_END_SECONDS:
            context.invoke_self({**event, WAITING_SINCE: since})
            return False
        context.sleep(POLL_SECONDS)
