"""Stops, resumes, restarts and retries the run of a deployment.

Stops and restarts are written to the SSM parameter that the run controller and the nodes read. A retry is an event.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import replace

from bootstrap.documents.desired_state import DesiredState, Restart, desired_parameter
from bootstrap.documents.object_keys import control_prefix
from bootstrap.supervise.membership.control import MAX_PAGES, last_without_gap
from stacks.functions.run_controller.events import retry_entry
from trainstack.account import Clients, Deployment

_GENERATION = re.compile(r"(\d{8})\.json")


class EventRejected(Exception):
    """EventBridge did not accept an event."""


class TooManyRecords(Exception):
    """There are more objects under a prefix than the records of a run."""


def stopped(desired: DesiredState, who: str, now_unix_seconds: float) -> DesiredState:
    """Return the state with the run stopped."""
    return replace(desired, state="stopped", requested_by=who, unix_seconds=now_unix_seconds)


def resumed(desired: DesiredState, who: str, now_unix_seconds: float) -> DesiredState:
    """Return the state with the run resumed."""
    return replace(desired, state="running", requested_by=who, unix_seconds=now_unix_seconds)


def restarted(desired: DesiredState, run: str, generation: int, who: str, now_unix_seconds: float) -> DesiredState:
    """Return the state with a request to end all generations up to this one."""
    return replace(desired, restart=Restart(run, generation), requested_by=who, unix_seconds=now_unix_seconds)


def write(client: Clients, deployment: str, desired: DesiredState) -> None:
    """Store the desired state of a deployment.

    Raises:
        botocore.exceptions.ClientError: AWS rejected the call.
    """
    text = json.dumps(desired.to_json())
    client("ssm").put_parameter(Name=desired_parameter(deployment), Value=text, Type="String", Overwrite=True)


def forget(client: Clients, deployment: str) -> None:
    """Delete the desired state of a deployment, if there is one.

    Raises:
        botocore.exceptions.ClientError: AWS rejected the call.
    """
    delete_parameter(client, desired_parameter(deployment))


def delete_parameter(client: Clients, name: str) -> None:
    """Delete a parameter, if it exists. Raises ClientError."""
    ssm = client("ssm")
    with contextlib.suppress(ssm.exceptions.ParameterNotFound):
        ssm.delete_parameter(Name=name)


def newest_generation(client: Clients, deployment: Deployment, run: str) -> int:
    """Return the number of the run's newest generation, or 0 before the first.

    Like the nodes, this function ignores numbers after a gap. A restart with such a number would end every generation.

    Raises:
        TooManyRecords: The listing has more than `MAX_PAGES` pages.
        botocore.exceptions.ClientError: AWS rejected a call.
    """
    prefix = f"{control_prefix(deployment.name, run)}generations/"
    pages = client("s3").get_paginator("list_objects_v2").paginate(Bucket=deployment.control_bucket, Prefix=prefix)
    numbers: list[int] = []
    for count, page in enumerate(pages, 1):
        names = (item["Key"].removeprefix(prefix) for item in page.get("Contents", []))
        numbers += [int(found[1]) for name in names if (found := _GENERATION.fullmatch(name))]
        if count == MAX_PAGES and page.get("IsTruncated"):
            raise TooManyRecords(
                f"s3://{deployment.control_bucket}/{prefix}: more than {MAX_PAGES} pages of objects; remove the "
                "objects that are not records of generations"
            )
    return last_without_gap(sorted(numbers), 0)[0]


def request_retry(client: Clients, deployment: str) -> None:
    """Request that the run controller try again at once.

    Raises:
        EventRejected: EventBridge did not accept the event.
        botocore.exceptions.ClientError: AWS rejected the call.
    """
    answer = client("events").put_events(Entries=[retry_entry(deployment)])
    if answer["FailedEntryCount"]:
        (entry,) = answer["Entries"]
        raise EventRejected(f"{entry.get('ErrorCode')}: {entry.get('ErrorMessage')}")
