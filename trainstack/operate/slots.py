"""Finds an idle slot of a deployment, and starts a run in it.

Parameter Store has no conditional write. Each command therefore first writes a claim to the control bucket, on the
condition that no other command has written it since. A claim is valid for CLAIM_SECONDS, longer than the write of the
parameter can take.

Source (2026-11): https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from bootstrap.documents import RunDocument
from bootstrap.documents.desired_state import DesiredState
from bootstrap.documents.object_keys import control_prefix
from bootstrap.errors import BootstrapError
from bootstrap.supervise.membership.control import OUTCOME_NAME
from bootstrap.supervise.membership.records import run_outcome_from_bytes
from stacks.functions.pipeline_runs.store import TAKEN, SlotTaken
from trainstack import account
from trainstack.account import Clients, Deployment, claim_key, stored_object
from trainstack.operate import desired

CLAIM_SECONDS = 300.0
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Occupancy:
    """A slot and its run.

    Attributes:
        run: The slot's run document, or None.
        desired: The operator's desired state.
        is_idle: Whether another run can start.
        reason: Why the slot is idle or not, as text.
        etag: ETag of the slot's claim, or None if nothing has claimed it.
    """

    slot: Deployment
    run: RunDocument | None
    desired: DesiredState
    is_idle: bool
    reason: str
    etag: str | None


def occupancy(client: Clients, slot: Deployment, now_unix_seconds: float) -> Occupancy:
    """Return whether a slot can start a run: it has none, or its run has ended.

    Raises:
        botocore.exceptions.ClientError: AWS rejected a call.
    """
    claim, etag = _claim(client, slot)  # before the other records, so that a change to them is not missed
    problems: list[str] = []
    run, wanted = account.parameters(client, slot, problems)
    is_idle, reason = False, "; ".join(problems)
    if not problems and run is None:
        is_idle, reason = True, "has no run"
    elif run is not None:
        is_idle, reason = _ended(client, slot, run)
        if not is_idle and wanted.state == "stopped":
            reason = f"run {run.run} is stopped; `trainstack resume {slot.name}` continues it"
    claimed, at = claim
    is_pending = claimed not in ("", "" if run is None else run.digest()) and now_unix_seconds - at < CLAIM_SECONDS
    if is_idle and is_pending:
        is_idle, reason = False, "another command is starting a run"
    return Occupancy(slot, run, wanted, is_idle, reason, etag)


def _ended(client: Clients, slot: Deployment, run: RunDocument) -> tuple[bool, str]:
    """Return whether the slot's run has an outcome, and the state of the run as text."""
    key = control_prefix(slot.name, run.run) + OUTCOME_NAME
    found = stored_object(client, slot, key)
    if found is None:
        return False, f"run {run.run} has not ended"
    try:
        outcome = run_outcome_from_bytes(found.content, key)
    except BootstrapError as error:
        return False, str(error)
    if outcome.run_digest != run.digest():  # of an earlier document of the run
        return False, f"run {run.run} has not ended"
    return True, f"run {run.run} has ended: {outcome.outcome}"


def has_records(client: Clients, slot: Deployment, run: str) -> bool:
    """Return True if the slot has already trained a run with this name. Raises ClientError."""
    prefix = control_prefix(slot.name, run)
    answer = client("s3").list_objects_v2(Bucket=slot.control_bucket, Prefix=prefix, MaxKeys=1)
    return bool(answer.get("Contents"))


def start(client: Clients, seen: Occupancy, run: RunDocument, who: str, now_unix_seconds: float) -> None:
    """Claim an idle slot, and write its run document.

    Args:
        client: Clients of S3 and SSM.
        seen: The slot's occupancy.
        run: The run document.
        who: ARN of the caller.
        now_unix_seconds: Current time.

    Raises:
        SlotTaken: Another command has claimed the slot since it was examined. Nothing was changed.
        botocore.exceptions.ClientError: AWS rejected a call.
    """
    slot = seen.slot
    claim = {"run": run.run, "run_digest": run.digest(), "requested_by": who, "unix_seconds": now_unix_seconds}
    condition = {"IfNoneMatch": "*"} if seen.etag is None else {"IfMatch": seen.etag}
    try:
        client("s3").put_object(
            Bucket=slot.control_bucket, Key=claim_key(slot.name), Body=json.dumps(claim).encode(), **condition
        )
    except ClientError as error:
        if error.response["Error"]["Code"] in TAKEN:
            raise SlotTaken(f"{slot.name}: another command is starting a run") from error
        raise
    if seen.desired.state == "stopped":  # by the operator of the run that has ended
        desired.write(client, slot.name, desired.resumed(seen.desired, who, now_unix_seconds))
    client("ssm").put_parameter(
        Name=slot.run_parameter,
        Value=json.dumps(run.to_json(), separators=(",", ":")),
        Type="String",
        Tier="Intelligent-Tiering",
        Description="Run document: the training that the nodes run",
        Overwrite=True,
    )


def forget(client: Clients, slot: Deployment) -> None:
    """Delete the run document of a slot that was written at run time. Raises ClientError."""
    desired.delete_parameter(client, slot.run_parameter)


def _claim(client: Clients, slot: Deployment) -> tuple[tuple[str, float], str | None]:
    """Return the claimed run's digest and the time of the claim ("" and 0 without a valid claim), and its ETag."""
    found = stored_object(client, slot, claim_key(slot.name))
    if found is None:
        return ("", 0.0), None
    try:
        claim: Any = json.loads(found.content)
        digest, at = str(claim["run_digest"]), float(claim["unix_seconds"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return ("", 0.0), found.etag
    return (digest if _DIGEST.fullmatch(digest) else "", at), found.etag
