"""Copies the checkpoint volume from its newest snapshot for a node in another zone.

Like the volume, the copy is only a cache, because S3 has every checkpoint. A failure therefore emits one event and does
not stop the boot. EC2 deletes the copy with the instance. docs/adr/0011-copies-of-the-checkpoint-volume.md explains
when a copy helps and when S3 is faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from botocore.exceptions import ClientError

from bootstrap.aws import AWS_ERRORS, DEPLOYMENT_TAG
from bootstrap.context import Context
from bootstrap.documents import COPY_TAG, SNAPSHOTS_TAG, Volume
from bootstrap.errors import StepError
from bootstrap.events.schema import CheckpointCopy

# EC2 creates a volume from a snapshot in seconds and loads its blocks later.
CREATION_SECONDS = 60.0
POLL_SECONDS = 1.0
# Without a provisioned rate, the first read of each block takes tens of milliseconds. This is the maximum rate:
# https://docs.aws.amazon.com/ebs/latest/userguide/initalize-volume.html (2026-11).
INITIALIZATION_MIB_PER_SECOND = 300
NO_COPY_NEEDED = "no action is needed: S3 has every checkpoint"


@dataclass(frozen=True)
class Copy:
    """A copy in this node's zone and its source snapshot."""

    volume_id: str
    snapshot_id: str
    is_new: bool


def find_or_create_copy(context: Context, volume: Volume) -> Copy:
    """Return a copy that this node has attached or can attach. If its zone has no copy, create one and wait for it.

    A copy created by an earlier, interrupted boot of this node is reused.

    Raises:
        StepError: There is no snapshot, another instance has the copy, or EC2 refused a call.
    """
    assert context.identity is not None
    zone = context.identity.availability_zone
    of_volume = {"Name": f"tag:{COPY_TAG}", "Values": [volume.volume_id]}
    here = {"Name": "availability-zone", "Values": [zone]}
    found = _ask(context, "describe_volumes", "Volumes", Filters=[of_volume, here])
    found = [one for one in found if one["State"] in ("creating", "available", "in-use")]
    usable = [one for one in found if is_attached(context, one)] or [one for one in found if one["State"] != "in-use"]
    if found and not usable:
        held = ", ".join(str(one["VolumeId"]) for one in found)
        raise StepError(f"another instance in {zone} has the copy {held}", remedy=NO_COPY_NEEDED)
    copy = Copy(str(usable[0]["VolumeId"]), str(usable[0].get("SnapshotId", "")), is_new=False) if usable else None
    if copy is None:
        copy = _create(context, volume, zone)
    _wait_until_created(context, copy.volume_id)
    return copy


def delete_on_termination(context: Context, volume: Volume, copy: Copy) -> None:
    """Make EC2 delete an attached copy together with this instance. Emit an event if EC2 refuses."""
    assert context.identity is not None
    mapping = {"DeviceName": volume.device, "Ebs": {"VolumeId": copy.volume_id, "DeleteOnTermination": True}}
    try:
        context.aws.client("ec2").modify_instance_attribute(
            InstanceId=context.identity.instance_id, BlockDeviceMappings=[mapping]
        )
    except AWS_ERRORS as error:
        problem = StepError(
            f"EC2 will not delete {copy.volume_id} with this instance, so the volume will still be billed ({error})",
            remedy="check that the node role allows ec2:ModifyInstanceAttribute; delete the volume after the instance "
            "has terminated, or leave it for the next node in this zone",
        )
        emit_copy(context, volume, "retained", copy, problem)


def emit_copy(
    context: Context,
    volume: Volume,
    outcome: Literal["created", "found", "retained", "none"],
    copy: Copy | None,
    problem: StepError | None,
) -> None:
    """Emit the copy's state."""
    context.events.emit(
        CheckpointCopy(
            outcome=outcome,
            mount=volume.mount,
            volume_id=copy.volume_id if copy is not None else None,
            snapshot_id=copy.snapshot_id if copy is not None else None,
            message=problem.message if problem is not None else None,
            remedy=problem.remedy if problem is not None else None,
        )
    )


def newest_snapshot(snapshots: list[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the most recently started snapshot, or None for an empty list."""
    return max(snapshots, key=lambda one: one["StartTime"], default=None)


def _create(context: Context, volume: Volume, zone: str) -> Copy:
    """Create a volume like the original from its newest snapshot. A client token makes the call idempotent."""
    assert context.identity is not None
    deployment = context.node.deployment
    # EC2 creates volumes only from completed snapshots, and restoring archived snapshots takes days.
    filters = {f"tag:{SNAPSHOTS_TAG}": deployment, "status": "completed", "storage-tier": "standard"}
    snapshot = newest_snapshot(
        _ask(
            context,
            "describe_snapshots",
            "Snapshots",
            OwnerIds=["self"],
            Filters=[{"Name": name, "Values": [value]} for name, value in filters.items()],
        )
    )
    if snapshot is None:
        raise StepError(
            f"no completed snapshot of {volume.volume_id} exists yet",
            remedy=f"{NO_COPY_NEEDED}; storage.checkpoint_volume.snapshot_every_hours sets the schedule",
        )
    originals = _ask(context, "describe_volumes", "Volumes", VolumeIds=[volume.volume_id])
    if not originals:
        raise StepError(f"{volume.volume_id} does not exist", remedy="deploy StorageStack, which creates the volume")
    original = originals[0]
    tags = {COPY_TAG: volume.volume_id, DEPLOYMENT_TAG: deployment, "Name": f"{deployment}-checkpoints-copy"}
    request: dict[str, Any] = {
        "AvailabilityZone": zone,
        "SnapshotId": snapshot["SnapshotId"],
        "VolumeType": original["VolumeType"],
        "Size": max(int(original["Size"]), int(snapshot["VolumeSize"])),
        **{name: original[name] for name in ("Iops", "Throughput", "KmsKeyId") if original.get(name)},
        "Encrypted": True,
        "VolumeInitializationRate": INITIALIZATION_MIB_PER_SECOND,
        # Each attempt uses the same token, so an instance never creates two copies, even if it was killed between
        # attempts.
        "ClientToken": f"{context.identity.instance_id}-checkpoints",
        "TagSpecifications": [
            {"ResourceType": "volume", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
        ],
    }
    try:
        created = context.aws.client("ec2").create_volume(**request)
    except AWS_ERRORS as error:
        raise StepError(
            f"cannot create a volume from {snapshot['SnapshotId']} in {zone} ({error})",
            remedy="check the node role's permissions for ec2:CreateVolume and the key, and the quota for gp3 volumes",
        ) from error
    return Copy(str(created["VolumeId"]), str(snapshot["SnapshotId"]), is_new=True)


def _wait_until_created(context: Context, volume_id: str) -> None:
    """Wait until EC2 has created a volume. If KMS denies access to the key, the volume fails or disappears."""
    deadline = context.system.monotonic_seconds() + CREATION_SECONDS
    while True:
        found = _ask(context, "describe_volumes", "Volumes", VolumeIds=[volume_id])
        state = str(found[0]["State"]) if found else "unknown"
        if state in ("available", "in-use"):
            return
        if state in ("error", "deleting", "deleted") or context.system.monotonic_seconds() >= deadline:
            raise StepError(
                f"the copy {volume_id} is not available: {state} after up to {CREATION_SECONDS:g} seconds",
                remedy="check the node role's permissions for the deployment's key; the next node in this zone uses "
                "the volume if it becomes available",
            )
        context.system.sleep(POLL_SECONDS)


def is_attached(context: Context, found: Mapping[str, Any]) -> bool:
    """Return True if EC2's description of a volume shows it attached to this instance."""
    assert context.identity is not None
    return any(link["InstanceId"] == context.identity.instance_id for link in found.get("Attachments", []))


def _ask(context: Context, operation: str, result: str, **request: Any) -> list[Mapping[str, Any]]:
    """Return the result of a describe call, which is empty if the volume does not exist or is not visible yet."""
    try:
        found: list[Mapping[str, Any]] = getattr(context.aws.client("ec2"), operation)(**request)[result]
    except AWS_ERRORS as error:
        if isinstance(error, ClientError) and error.response["Error"]["Code"] == "InvalidVolume.NotFound":
            return []
        action = {"describe_volumes": "DescribeVolumes", "describe_snapshots": "DescribeSnapshots"}[operation]
        raise StepError(
            f"ec2:{action} failed ({error})",
            remedy=f"check the ec2 endpoint, and check that the node role allows ec2:{action}",
        ) from error
    return found
