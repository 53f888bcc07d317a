"""A copy of the checkpoint volume for a node of another zone, made from the volume's newest snapshot.

It is a cache, as the volume itself: S3 has every checkpoint. So nothing here ends a boot, and what goes wrong is told
in one event. The copy goes with the machine. When it helps, and when S3 is better:
docs/adr/0011-copies-of-the-checkpoint-volume.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from botocore.exceptions import ClientError

from bootstrap.aws import AWS_ERRORS
from bootstrap.documents import COPY_TAG, SNAPSHOTS_TAG, Volume
from bootstrap.errors import StepError
from bootstrap.plan import Context

# EC2 makes a volume from a snapshot in seconds; its blocks come later.
MADE_SECONDS = 60.0
POLL_SECONDS = 1.0
# Without a rate, the first touch of each block takes tens of milliseconds. The highest rate there is:
# https://docs.aws.amazon.com/ebs/latest/userguide/initalize-volume.html (2026-11).
LOADING_MIB_PER_SECOND = 300
NO_COPY_NEEDED = "nothing needs to be done: S3 has every checkpoint"


@dataclass(frozen=True)
class Copy:
    """A copy in this node's zone, and the snapshot that it was made from."""

    volume_id: str
    snapshot_id: str
    is_new: bool


def have_copy(context: Context, volume: Volume) -> Copy:
    """Return the copy that this node has or can attach, made when its zone has none, once it is there.

    What an earlier boot of this node made is found again, whenever that ended.

    Raises:
        StepError: There is no snapshot, another machine has the copy, or EC2 refuses.
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
        raise StepError(f"another machine in {zone} has the copy {held}", remedy=NO_COPY_NEEDED)
    copy = Copy(str(usable[0]["VolumeId"]), str(usable[0].get("SnapshotId", "")), is_new=False) if usable else None
    if copy is None:
        copy = _make(context, volume, zone)
    _wait_until_made(context, copy.volume_id)
    return copy


def let_go_with_machine(context: Context, volume: Volume, copy: Copy) -> None:
    """Have EC2 delete an attached copy when it terminates this machine; say it when EC2 will not."""
    assert context.identity is not None
    mapping = {"DeviceName": volume.device, "Ebs": {"VolumeId": copy.volume_id, "DeleteOnTermination": True}}
    try:
        context.aws.client("ec2").modify_instance_attribute(
            InstanceId=context.identity.instance_id, BlockDeviceMappings=[mapping]
        )
    except AWS_ERRORS as error:
        tell(
            context,
            volume,
            "stays",
            copy,
            StepError(
                f"{copy.volume_id} stays, and is paid for, when this machine goes ({error})",
                remedy="check ec2:ModifyInstanceAttribute of the node role; delete the volume when the machine is "
                "gone, or leave it to the next node of this zone",
            ),
        )


def tell(
    context: Context,
    volume: Volume,
    outcome: Literal["made", "found", "stays", "without"],
    copy: Copy | None,
    problem: StepError | None,
) -> None:
    """Record what became of the copy, in one event."""
    context.events.emit(
        "checkpoint_copy",
        outcome=outcome,
        mount=volume.mount,
        volume_id=copy.volume_id if copy is not None else None,
        snapshot_id=copy.snapshot_id if copy is not None else None,
        message=problem.message if problem is not None else None,
        remedy=problem.remedy if problem is not None else None,
    )


def newest_snapshot(snapshots: list[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the snapshot that was begun last, None of none."""
    return max(snapshots, key=lambda one: one["StartTime"], default=None)


def _make(context: Context, volume: Volume, zone: str) -> Copy:
    """Ask EC2 for a volume like the original, of its newest snapshot; the same again when it was asked for before."""
    assert context.identity is not None
    deployment = context.node.deployment
    # EC2 makes volumes of completed snapshots only; archived ones take days.
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
            f"there is no completed snapshot of {volume.volume_id} yet",
            remedy=f"{NO_COPY_NEEDED}; the schedule takes one every storage.checkpoint_volume.snapshot_every_hours",
        )
    originals = _ask(context, "describe_volumes", "Volumes", VolumeIds=[volume.volume_id])
    if not originals:
        raise StepError(f"{volume.volume_id} is gone", remedy="deploy StorageStack, which makes the volume")
    original = originals[0]
    tags = {COPY_TAG: volume.volume_id, "trainstack:deployment": deployment, "Name": f"{deployment}-checkpoints-copy"}
    request: dict[str, Any] = {
        "AvailabilityZone": zone,
        "SnapshotId": snapshot["SnapshotId"],
        "VolumeType": original["VolumeType"],
        "Size": max(int(original["Size"]), int(snapshot["VolumeSize"])),
        **{name: original[name] for name in ("Iops", "Throughput", "KmsKeyId") if original.get(name)},
        "Encrypted": True,
        "VolumeInitializationRate": LOADING_MIB_PER_SECOND,
        # Of the machine, not of this try: a node never gets two, whatever it was killed between.
        "ClientToken": f"{context.identity.instance_id}-checkpoints",
        "TagSpecifications": [
            {"ResourceType": "volume", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
        ],
    }
    try:
        made = context.aws.client("ec2").create_volume(**request)
    except AWS_ERRORS as error:
        raise StepError(
            f"EC2 makes no volume of {snapshot['SnapshotId']} in {zone} ({error})",
            remedy="check ec2:CreateVolume and the key's rights of the node role, and the quota of gp3 volumes",
        ) from error
    return Copy(str(made["VolumeId"]), str(snapshot["SnapshotId"]), is_new=True)


def _wait_until_made(context: Context, volume_id: str) -> None:
    """Wait until EC2 has made a volume; one that it asked KMS for in vain ends as an error, or is just gone."""
    deadline = context.system.monotonic_seconds() + MADE_SECONDS
    while True:
        found = _ask(context, "describe_volumes", "Volumes", VolumeIds=[volume_id])
        state = str(found[0]["State"]) if found else "unknown"
        if state in ("available", "in-use"):
            return
        if state in ("error", "deleting", "deleted") or context.system.monotonic_seconds() >= deadline:
            raise StepError(
                f"the copy {volume_id} is not made: {state} after at most {MADE_SECONDS:g} seconds",
                remedy="check the node role's rights to the deployment's key; the next node here takes the volume if it"
                " comes to be",
            )
        context.system.sleep(POLL_SECONDS)


def is_attached(context: Context, found: Mapping[str, Any]) -> bool:
    """Return whether a volume, as EC2 describes it, is attached to this machine."""
    assert context.identity is not None
    return any(link["InstanceId"] == context.identity.instance_id for link in found.get("Attachments", []))


def _ask(context: Context, operation: str, result: str, **request: Any) -> list[Mapping[str, Any]]:
    """Return what EC2 lists; nothing when it does not know what was named, or does not know it yet."""
    try:
        found: list[Mapping[str, Any]] = getattr(context.aws.client("ec2"), operation)(**request)[result]
    except AWS_ERRORS as error:
        if isinstance(error, ClientError) and error.response["Error"]["Code"] == "InvalidVolume.NotFound":
            return []
        action = {"describe_volumes": "DescribeVolumes", "describe_snapshots": "DescribeSnapshots"}[operation]
        raise StepError(
            f"EC2 does not answer {action} ({error})",
            remedy=f"check the ec2 endpoint, and ec2:{action} of the node role",
        ) from error
    return found
