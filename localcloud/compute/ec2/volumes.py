"""EBS features missing from moto: attachment limits, multi-attach, initialization rates, fast snapshot restore.

moto stores the volumes and handles all other volume calls.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from localcloud.api import ApiError, Call, Clients, Handler
from localcloud.compute.describe import matches, page, timestamp
from localcloud.compute.launch.instance_types import InstanceTypes
from localcloud.compute.launch.volumes import check_volume
from localcloud.compute.machines.inventory import Inventory

MAX_MODIFICATIONS, MODIFICATION_WINDOW_SECONDS = 4, 24 * 3600.0
"""Source: docs.aws.amazon.com/AWSEC2/latest/APIReference/API_ModifyVolume.html (2026-11: four times within a rolling
24 hours; older editions require six hours in between)."""
MULTI_ATTACH_INSTANCES = 16
"""Source: docs.aws.amazon.com/ebs/latest/userguide/ebs-volumes-multi.html, 2026-11."""
INITIALIZATION_RATES_MIB = (100, 300)
"""Source: docs.aws.amazon.com/ebs/latest/userguide/initalize-volume.html, 2026-11."""
RESTORE_SECONDS = 1.0
"""Time to enable fast snapshot restore in the embedded cloud; on AWS, this takes an hour per TiB."""
_RESTORE_FILTERS = {
    "availability-zone": "AvailabilityZone", "snapshot-id": "SnapshotId", "state": "State", "owner-id": "OwnerId",
}  # fmt: skip


@dataclass(frozen=True)
class _Initialization:
    """A volume's initialization from its snapshot. `rate_mib` is the provisioned rate in MiB/s."""

    rate_mib: int | None
    is_fast_restored: bool


class VolumeOperations:
    """Handlers for volume operations whose behavior in moto differs from EC2's."""

    def __init__(
        self, clients: Clients, inventory: Inventory, types: InstanceTypes, clock: Callable[[], float] = time.time
    ) -> None:
        self._clients = clients
        self._inventory = inventory
        self._types = types
        self._clock = clock
        self._lock = threading.RLock()
        # moto supports one attachment per volume. These are the additional attachments of multi-attach volumes.
        self._further: dict[str, list[dict[str, Any]]] = {}
        self._initializations: dict[str, _Initialization] = {}
        self._restores: dict[tuple[str, str], float] = {}
        self._modified: dict[str, list[float]] = {}
        # Maps each client token to its request parameters and the ID of the volume that it created.
        self._tokens: dict[str | None, tuple[Mapping[str, Any], str]] = {}

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation."""
        return {
            "CreateVolume": self.create,
            "AttachVolume": self.attach,
            "DetachVolume": self.detach,
            "DescribeVolumes": self.describe,
            "ModifyVolume": self.modify,
            "DeleteVolume": self.delete,
            "EnableFastSnapshotRestores": self.enable_restores,
            "DisableFastSnapshotRestores": self.disable_restores,
            "DescribeFastSnapshotRestores": self.describe_restores,
        }

    def create(self, call: Call) -> Mapping[str, Any]:
        """Handle CreateVolume: create the volume in moto and start its initialization from the snapshot."""
        asked = dict(call.parameters)
        token = asked.pop("ClientToken", None)
        with self._lock:
            known = self._tokens.get(token)
        if known is not None:
            if known[0] != asked:
                message = f"ClientToken {token} was already used with different parameters"
                raise ApiError("IdempotentParameterMismatch", message)
            return self._volume(known[1])
        made = self._create(asked)
        if token is not None:
            with self._lock:
                self._tokens[token] = asked, str(made["VolumeId"])
        return made

    def _create(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        asked = dict(parameters)
        rate = asked.pop("VolumeInitializationRate", None)
        if rate is not None:
            minimum, maximum = INITIALIZATION_RATES_MIB
            if not asked.get("SnapshotId"):
                raise ApiError("InvalidParameterCombination", "VolumeInitializationRate requires a SnapshotId")
            if not minimum <= int(rate) <= maximum:
                raise ApiError(
                    "InvalidParameterValue", f"VolumeInitializationRate {rate} must be from {minimum} to {maximum}"
                )
        check_volume(asked, asked.get("Size"))
        made: dict[str, Any] = self._moto("create_volume", **asked)
        made.pop("ResponseMetadata", None)
        if asked.get("SnapshotId"):
            is_fast = rate is None and self._state(asked["SnapshotId"], made["AvailabilityZone"]) == "enabled"
            with self._lock:
                self._initializations[made["VolumeId"]] = _Initialization(None if rate is None else int(rate), is_fast)
        return self._overlaid(made)

    def attach(self, call: Call) -> Mapping[str, Any]:
        """Handle AttachVolume. Check the zone and the instance type's limit, and support multi-attach volumes."""
        asked = call.parameters
        instance = self._inventory.get(asked["InstanceId"])
        with self._lock:
            volume = self._volume(asked["VolumeId"])
            if volume["AvailabilityZone"] != instance.zone:
                raise ApiError(
                    "InvalidVolume.ZoneMismatch",
                    f"The volume '{asked['VolumeId']}' is not in the same availability zone as instance "
                    f"'{instance.id}'",
                )
            if instance.state not in ("running", "stopped"):
                raise ApiError("IncorrectState", f"Instance '{instance.id}' is not 'running'.")
            self._check_room(volume, instance.id, instance.specification.instance_type, asked["Device"])
            if not volume["Attachments"]:
                found: dict[str, Any] = self._moto("attach_volume", **asked)
                found.pop("ResponseMetadata", None)
                return found
            link = {
                "VolumeId": volume["VolumeId"], "InstanceId": instance.id, "Device": asked["Device"],
                "State": "attached", "DeleteOnTermination": False, "AttachTime": timestamp(self._clock()),
            }  # fmt: skip
            self._further.setdefault(volume["VolumeId"], []).append(link)
            return link

    def _check_room(self, volume: Mapping[str, Any], instance_id: str, instance_type: str, device: str) -> None:
        links = volume["Attachments"]
        if any(link["InstanceId"] == instance_id for link in links):
            raise ApiError("VolumeInUse", f"{volume['VolumeId']} is already attached to an instance")
        if links and not volume.get("MultiAttachEnabled"):
            raise ApiError("VolumeInUse", f"{volume['VolumeId']} is already attached to an instance")
        if len(links) >= MULTI_ATTACH_INSTANCES:
            raise ApiError(
                "AttachmentLimitExceeded", f"{volume['VolumeId']} is attached to {MULTI_ATTACH_INSTANCES} instances"
            )
        mine = [link for one in self.describe_all() for link in one["Attachments"] if link["InstanceId"] == instance_id]
        if any(link["Device"] == device for link in mine):
            raise ApiError(
                "InvalidParameterValue",
                f"Invalid value '{device}' for unixDevice. Attachment point {device} is already in use",
            )
        limit = self._types.facts(instance_type)["EbsInfo"].get("MaximumEbsAttachments")
        if limit is not None and len(mine) >= limit:
            raise ApiError("AttachmentLimitExceeded", f"{instance_id}: {instance_type} supports {limit} volumes")

    def detach(self, call: Call) -> Mapping[str, Any]:
        """Handle DetachVolume."""
        asked = call.parameters
        with self._lock:
            links = self._volume(asked["VolumeId"])["Attachments"]
            wanted = asked.get("InstanceId") or (links[0]["InstanceId"] if len(links) == 1 else None)
            if wanted is None and links:
                raise ApiError("MissingParameter", f"{asked['VolumeId']} has several attachments; specify InstanceId")
            further = self._further.get(asked["VolumeId"], [])
            for link in further:
                if link["InstanceId"] == wanted:
                    further.remove(link)
                    return link | {"State": "detached"}
            answer: dict[str, Any] = self._moto("detach_volume", **asked)
            answer.pop("ResponseMetadata", None)
            if further:  # moto stores one attachment, so promote one of the remaining attachments
                one = further.pop(0)
                self._moto(
                    "attach_volume", VolumeId=one["VolumeId"], InstanceId=one["InstanceId"], Device=one["Device"]
                )
            return answer

    def delete(self, call: Call) -> Mapping[str, Any]:
        """Handle DeleteVolume: reject the call if the volume is in use."""
        volume = self._volume(call.parameters["VolumeId"])
        if volume["Attachments"]:
            ids = ", ".join(link["InstanceId"] for link in volume["Attachments"])
            raise ApiError("VolumeInUse", f"Volume {volume['VolumeId']} is currently attached to {ids}")
        self._moto("delete_volume", **call.parameters)
        with self._lock:
            self._initializations.pop(volume["VolumeId"], None)
            self._further.pop(volume["VolumeId"], None)
        return {}

    def describe(self, call: Call) -> Mapping[str, Any]:
        """Handle DescribeVolumes: add all attachments and initializations to moto's response."""
        passed = {name: value for name, value in call.parameters.items() if name not in ("MaxResults", "NextToken")}
        shown = [self._overlaid(one) for one in self._moto("describe_volumes", **passed)["Volumes"]]
        return page(shown, call.parameters, "Volumes", 500)

    def describe_all(self) -> list[dict[str, Any]]:
        """Return all volumes in the format of DescribeVolumes."""
        return [self._overlaid(one) for one in self._moto("describe_volumes")["Volumes"]]

    def modify(self, call: Call) -> Mapping[str, Any]:
        """Handle ModifyVolume. Volumes can only grow. moto applies the modification immediately."""
        asked, volume_id = call.parameters, call.parameters["VolumeId"]
        with self._lock:
            volume = self._moto("describe_volumes", VolumeIds=[volume_id])["Volumes"][0]
            since = self._clock() - MODIFICATION_WINDOW_SECONDS
            recent = [at for at in self._modified.get(volume_id, []) if at > since]
            _check_modification(volume, asked, len(recent))
            keeps_type = asked.get("VolumeType") in (None, volume["VolumeType"])
            check_volume({**(volume if keeps_type else {}), **asked}, int(asked.get("Size") or volume["Size"]))
            answer: dict[str, Any] = self._moto("modify_volume", **asked)
            self._modified[volume_id] = [*recent, self._clock()]
        answer.pop("ResponseMetadata", None)
        return answer

    def enable_restores(self, call: Call) -> Mapping[str, Any]:
        """Handle EnableFastSnapshotRestores."""
        done = []
        for snapshot, zone in self._pairs(call):
            self._moto("describe_snapshots", SnapshotIds=[snapshot])
            with self._lock:
                self._restores.setdefault((snapshot, zone), self._clock())
            done.append(self._restore(snapshot, zone, call.account))
        return {"Successful": done, "Unsuccessful": []}

    def disable_restores(self, call: Call) -> Mapping[str, Any]:
        """Handle DisableFastSnapshotRestores."""
        done, failed = [], []
        for snapshot, zone in self._pairs(call):
            with self._lock:
                known = self._restores.pop((snapshot, zone), None)
            if known is None:
                error = {"Code": "InvalidFastSnapshotRestore.NotFound", "Message": "not enabled in this zone"}
                errors = [{"AvailabilityZone": zone, "Error": error}]
                failed.append({"SnapshotId": snapshot, "FastSnapshotRestoreStateErrors": errors})
            else:
                done.append({"SnapshotId": snapshot, "AvailabilityZone": zone, "State": "disabling"})
        return {"Successful": done, "Unsuccessful": failed}

    def describe_restores(self, call: Call) -> Mapping[str, Any]:
        """Handle DescribeFastSnapshotRestores."""
        with self._lock:
            pairs = list(self._restores)
        shown = [self._restore(snapshot, zone, call.account) for snapshot, zone in pairs]
        kept = [one for one in shown if matches(call.parameters.get("Filters", []), one, _RESTORE_FILTERS)]
        return page(kept, call.parameters, "FastSnapshotRestores")

    @staticmethod
    def _pairs(call: Call) -> list[tuple[str, str]]:
        zones = call.parameters.get("AvailabilityZones", [])
        return [(snapshot, zone) for snapshot in call.parameters["SourceSnapshotIds"] for zone in zones]

    def _state(self, snapshot: str, zone: str) -> str | None:
        with self._lock:
            since = self._restores.get((snapshot, zone))
        if since is None:
            return None
        return "enabled" if self._clock() >= since + RESTORE_SECONDS else "optimizing"

    def _restore(self, snapshot: str, zone: str, account: str) -> dict[str, Any]:
        since = self._restores[snapshot, zone]
        shown: dict[str, Any] = {
            "SnapshotId": snapshot, "AvailabilityZone": zone, "State": self._state(snapshot, zone),
            "StateTransitionReason": "Client.UserInitiated", "OwnerId": account, "EnablingTime": timestamp(since),
        }  # fmt: skip
        return shown

    def _volume(self, volume_id: str) -> dict[str, Any]:
        return self._overlaid(self._moto("describe_volumes", VolumeIds=[volume_id])["Volumes"][0])

    def _overlaid(self, volume: Mapping[str, Any]) -> dict[str, Any]:
        shown = dict(volume)
        with self._lock:
            live = {one.id for one in self._inventory.all() if one.state != "terminated"}
            further = [link for link in self._further.get(shown["VolumeId"], []) if link["InstanceId"] in live]
            loading = self._initializations.get(shown["VolumeId"]) or self._launched(shown)
        shown["Attachments"] = [*shown.get("Attachments", []), *further]
        if further:
            shown["State"] = "in-use"
        if loading is not None:
            shown["FastRestored"] = loading.is_fast_restored
            if loading.rate_mib is not None:
                shown["VolumeInitializationRate"] = loading.rate_mib
        return shown

    def _launched(self, volume: Mapping[str, Any]) -> _Initialization | None:
        """Return the initialization of a volume that a launch created from a snapshot, or None for other volumes."""
        for link in volume.get("Attachments", []):
            instance = self._inventory.get(link["InstanceId"])
            for mapping in instance.specification.block_device_mappings:
                ebs = mapping.get("Ebs") or {}
                if mapping.get("DeviceName") == link["Device"] and ebs.get("SnapshotId"):
                    rate = ebs.get("VolumeInitializationRate")
                    is_fast = rate is None and self._state(ebs["SnapshotId"], instance.zone) == "enabled"
                    return _Initialization(None if rate is None else int(rate), is_fast)
        return None

    def _moto(self, operation: str, **parameters: Any) -> Any:
        return getattr(self._clients.direct("ec2"), operation)(**parameters)


def _check_modification(volume: Mapping[str, Any], asked: Mapping[str, Any], recent: int) -> None:
    size, kind = asked.get("Size"), asked.get("VolumeType")
    if size is not None and int(size) < volume["Size"]:
        raise ApiError("InvalidParameterValue", "New size cannot be smaller than existing size")
    if volume.get("MultiAttachEnabled") and kind not in (None, volume["VolumeType"]):
        raise ApiError("InvalidParameterCombination", "The type of a Multi-Attach volume cannot be changed")
    if recent >= MAX_MODIFICATIONS:
        raise ApiError(
            "VolumeModificationRateExceeded",
            f"You've reached the maximum modification rate per volume limit: {volume['VolumeId']} was modified "
            f"{MAX_MODIFICATIONS} times in the last 24 hours.",
        )
