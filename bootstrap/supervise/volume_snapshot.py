"""Creates a snapshot of the checkpoint volume when a node leaves, in addition to the scheduled snapshots.

The node creates it only if nodes in other zones restore copies (`storage.checkpoint_volume.other_zones: restore`), the
run continues without this node (see `decide`), and the volume has a complete save that its newest snapshot does not
contain. The request is sent after the trainers exit, so it does not delay a save. EC2 copies the blocks even after the
instance and the volume are deleted. Saves flush their own files, so this module does not flush any.
Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateSnapshot.html (2026-11).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bootstrap.aws import AWS_ERRORS, DEPLOYMENT_TAG
from bootstrap.context import Context
from bootstrap.disks.mounting import mounted_source
from bootstrap.disks.volume_copy import newest_snapshot
from bootstrap.documents import COPY_TAG, SNAPSHOTS_TAG, TAKER, TAKER_TAG, Volume
from bootstrap.events.schema import CheckpointSnapshot

# Timeout for the response. The remaining notice period is needed for the last events and the lifecycle action.
RESPONSE_SECONDS = 5.0
KEPT = 2
"""Number of snapshots from leaving nodes to keep: the newest may be incomplete. Scheduled ones are not included."""
_REMEDY = "S3 has every durable checkpoint; check the ec2 endpoint and the node role's snapshot permissions"


class VolumeSnapshot:
    """Creates the snapshot in the background and reports the result in one event."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._volume = next((one for one in context.node.volumes if one.restored_elsewhere), None)
        self._thread: threading.Thread | None = None
        self._result: CheckpointSnapshot | None = None

    def start(self) -> None:
        """Start the request if a checkpoint volume is mounted."""
        volume = self._volume
        if volume is None or mounted_source(self._context, volume.mount) is None:
            return
        self._thread = threading.Thread(target=self._work, args=(volume,), name="volume snapshot", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait briefly for EC2's response and emit the result."""
        if self._thread is None:
            return
        self._thread.join(RESPONSE_SECONDS)
        message = f"no response within {RESPONSE_SECONDS:g} s"
        unknown = CheckpointSnapshot("unknown", message=message, remedy=_REMEDY)
        self._context.events.emit(self._result or unknown)

    def _work(self, volume: Volume) -> None:
        try:
            self._result = self._take(volume)
        except (*AWS_ERRORS, OSError) as error:
            message = f"cannot create a snapshot ({error})"
            self._result = CheckpointSnapshot("failed", message=message, remedy=_REMEDY)

    def _take(self, volume: Volume) -> CheckpointSnapshot:
        saved_unix = newest_save_unix_seconds(Path(volume.mount))
        if saved_unix is None:
            return CheckpointSnapshot("not_needed", message="the volume does not contain a save")
        ec2, deployment = self._context.aws.client("ec2", patience="low"), self._context.node.deployment
        volume_id = self._mounted_volume_id(ec2, volume)
        if volume_id is None:
            cause = f"{volume.mount} is mounted, but no copy of {volume.volume_id} is attached to this instance"
            return CheckpointSnapshot("failed", message=cause, remedy="unmount the other file system")
        filters = [{"Name": f"tag:{SNAPSHOTS_TAG}", "Values": [deployment]}]
        known = ec2.describe_snapshots(OwnerIds=["self"], Filters=filters)["Snapshots"]
        newest = newest_snapshot([one for one in known if one["VolumeId"] == volume_id])
        if newest is not None and newest["StartTime"].timestamp() >= saved_unix:
            return CheckpointSnapshot("not_needed", volume_id, newest["SnapshotId"])
        tags = {
            SNAPSHOTS_TAG: deployment,
            TAKER_TAG: TAKER,
            DEPLOYMENT_TAG: deployment,
            "Name": f"{deployment}-checkpoints",
        }
        created = ec2.create_snapshot(
            VolumeId=volume_id,
            Description=f"Checkpoint volume of {deployment}, from a leaving node",
            TagSpecifications=[
                {"ResourceType": "snapshot", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
            ],
        )
        deleted, message = _delete_old(ec2, known)
        remedy = None if message is None else _REMEDY
        return CheckpointSnapshot("created", volume_id, created["SnapshotId"], deleted, message, remedy)

    def _mounted_volume_id(self, ec2: Any, volume: Volume) -> str | None:
        """Return the id of the mounted volume: the original if this node is in its zone, or this node's copy."""
        identity = self._context.identity
        assert identity is not None and volume.volume_id is not None
        if volume.availability_zone == identity.availability_zone:
            return volume.volume_id
        mine = {"Name": "attachment.instance-id", "Values": [identity.instance_id]}
        copies = {"Name": f"tag:{COPY_TAG}", "Values": [volume.volume_id]}
        found = ec2.describe_volumes(Filters=[mine, copies])["Volumes"]
        return str(found[0]["VolumeId"]) if found else None


def newest_save_unix_seconds(mount: Path) -> float | None:
    """Return the time of the newest complete save from its record on the volume, or None if there is no save."""
    records = mount.glob("runs/*/*/checkpoints/local/rank-*.json")
    return max((record.stat().st_mtime for record in records), default=None)


def _delete_old(ec2: Any, known: list[Mapping[str, Any]]) -> tuple[tuple[str, ...], str | None]:
    """Delete older snapshots that nodes created, except the newest. Return the deleted ids and any error message."""
    taken = [one for one in known if {"Key": TAKER_TAG, "Value": TAKER} in one.get("Tags", [])]
    taken.sort(key=lambda one: one["StartTime"], reverse=True)
    deleted: list[str] = []
    try:
        for one in taken[KEPT - 1 :]:
            ec2.delete_snapshot(SnapshotId=one["SnapshotId"])
            deleted.append(one["SnapshotId"])
    except AWS_ERRORS as error:
        return tuple(deleted), f"cannot delete older snapshots, which cost money ({error})"
    return tuple(deleted), None
