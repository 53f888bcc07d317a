"""The snapshot of the checkpoint volume that a leaving node takes when it helps; the schedule knows of no notice.

It helps when three things hold: nodes of other zones make copies (`storage.checkpoint_volume.other_zones: restore`),
the run goes on without this machine (`decide` says so), and a save is whole on the volume that its newest snapshot does
not have. It is asked for when the trainers are gone, so no save waits for it; EC2 copies the blocks even when machine
and volume are gone. Each file of a save was flushed when it was written, so nothing is flushed here.
Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateSnapshot.html (2026-11).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bootstrap.aws import AWS_ERRORS
from bootstrap.documents import COPY_TAG, SNAPSHOTS_TAG, TAKER, TAKER_TAG, Volume
from bootstrap.plan import Context
from bootstrap.steps.mounting import mounted_source
from bootstrap.steps.volume_copy import newest_snapshot

# The last of a notice's two minutes are for this, the last events and the life-cycle action.
ANSWER_SECONDS = 5.0
KEPT = 2
"""Snapshots of leaving nodes that are kept: the newest may not be complete yet. The schedule counts its own."""
_REMEDY = "S3 has every durable checkpoint; check the ec2 endpoint, and the node role's rights to snapshots"


class VolumeSnapshot:
    """Takes the snapshot beside what else a leaving node does, and says in one event what came of it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._volume = next((one for one in context.node.volumes if one.restored_elsewhere), None)
        self._thread: threading.Thread | None = None
        self._told: dict[str, Any] | None = None

    def begin(self) -> None:
        """Ask for it, where such a volume is mounted; in the background, whatever its disk or EC2 do."""
        volume = self._volume
        if volume is None or mounted_source(self._context, volume.mount) is None:
            return
        self._thread = threading.Thread(target=self._work, args=(volume,), name="volume snapshot", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait for EC2's answer, but not long, and record it."""
        if self._thread is None:
            return
        self._thread.join(ANSWER_SECONDS)
        silent = {"outcome": "unknown", "message": f"no answer within {ANSWER_SECONDS:g} s", "remedy": _REMEDY}
        nothing = dict.fromkeys(("volume_id", "snapshot_id", "removed", "message", "remedy"))
        self._context.events.emit("checkpoint_snapshot", **{**nothing, **(self._told or silent)})

    def _work(self, volume: Volume) -> None:
        try:
            self._told = self._take(volume)
        except (*AWS_ERRORS, OSError) as error:
            self._told = {"outcome": "refused", "message": f"no snapshot is taken ({error})", "remedy": _REMEDY}

    def _take(self, volume: Volume) -> dict[str, Any]:
        saved_unix = newest_save_unix_seconds(Path(volume.mount))
        if saved_unix is None:
            return {"outcome": "not_needed", "message": "no save is on the volume"}
        ec2, deployment = self._context.aws.client("ec2", impatient=True), self._context.node.deployment
        volume_id = self._mounted_volume_id(ec2, volume)
        if volume_id is None:
            message = f"EC2 knows of no copy of {volume.volume_id} at this machine, and {volume.mount} is mounted"
            return {"outcome": "refused", "message": message, "remedy": "unmount what a person mounted there"}
        filters = [{"Name": f"tag:{SNAPSHOTS_TAG}", "Values": [deployment]}]
        known = ec2.describe_snapshots(OwnerIds=["self"], Filters=filters)["Snapshots"]
        newest = newest_snapshot([one for one in known if one["VolumeId"] == volume_id])
        if newest is not None and newest["StartTime"].timestamp() >= saved_unix:
            return {"outcome": "not_needed", "volume_id": volume_id, "snapshot_id": newest["SnapshotId"]}
        tags = {
            SNAPSHOTS_TAG: deployment,
            TAKER_TAG: TAKER,
            "trainstack:deployment": deployment,
            "Name": f"{deployment}-checkpoints",
        }
        made = ec2.create_snapshot(
            VolumeId=volume_id,
            Description=f"Checkpoint volume of {deployment}, when a node left",
            TagSpecifications=[
                {"ResourceType": "snapshot", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
            ],
        )
        told = {"outcome": "taken", "volume_id": volume_id, "snapshot_id": made["SnapshotId"]}
        return told | _remove_old(ec2, known)

    def _mounted_volume_id(self, ec2: Any, volume: Volume) -> str | None:
        """Return the id of what is mounted: the volume itself in its own zone, else this node's copy."""
        identity = self._context.identity
        assert identity is not None and volume.volume_id is not None
        if volume.availability_zone == identity.availability_zone:
            return volume.volume_id
        mine = {"Name": "attachment.instance-id", "Values": [identity.instance_id]}
        copies = {"Name": f"tag:{COPY_TAG}", "Values": [volume.volume_id]}
        found = ec2.describe_volumes(Filters=[mine, copies])["Volumes"]
        return str(found[0]["VolumeId"]) if found else None


def newest_save_unix_seconds(mount: Path) -> float | None:
    """Return when the newest save came to be whole on the volume: it then has a record there; None without a save."""
    records = mount.glob("runs/*/checkpoints/near/rank-*.json")
    return max((record.stat().st_mtime for record in records), default=None)


def _remove_old(ec2: Any, known: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Remove all but the newest of the snapshots that nodes took before the present one."""
    taken = [one for one in known if {"Key": TAKER_TAG, "Value": TAKER} in one.get("Tags", [])]
    taken.sort(key=lambda one: one["StartTime"], reverse=True)
    removed: list[str] = []
    try:
        for one in taken[KEPT - 1 :]:
            ec2.delete_snapshot(SnapshotId=one["SnapshotId"])
            removed.append(one["SnapshotId"])
    except AWS_ERRORS as error:
        return {"removed": removed, "message": f"older ones stay, and are paid for ({error})", "remedy": _REMEDY}
    return {"removed": removed}
