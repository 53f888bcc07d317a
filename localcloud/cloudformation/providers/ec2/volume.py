"""EBS volumes."""

from __future__ import annotations

from typing import Any

from localcloud.cloudformation.providers.base.resource import (
    Create,
    Delete,
    Describe,
    Properties,
    ResourceApi,
    changed,
    error_codes,
)
from localcloud.cloudformation.providers.base.waiting import wait_for
from localcloud.cloudformation.providers.ec2.resource import Ec2Resource


class Volume(Ec2Resource):
    """AWS::EC2::Volume. Only its size, type and performance can change in place."""

    type_name = "AWS::EC2::Volume"
    create_only = frozenset(
        {"AvailabilityZone", "AvailabilityZoneId", "Encrypted", "KmsKeyId", "SnapshotId", "VolumeInitializationRate"}
        | {"OutpostArn"}
    )
    updatable = frozenset({"Size", "Iops", "Throughput", "VolumeType", "MultiAttachEnabled", "Tags"})
    unremovable = frozenset({"Size", "Iops", "Throughput"})
    defaults = {"MultiAttachEnabled": False, "VolumeType": "gp2"}
    create_call = Create("create_volume", "VolumeId")
    describe_call = Describe("describe_volumes", "VolumeIds", "Volumes.0", listed=True)
    delete_call = Delete("delete_volume", "VolumeId")
    not_found_codes = error_codes("InvalidVolume.NotFound")
    tag_kind = "volume"
    ready_states = ("State", frozenset({"available", "in-use"}))
    deleted_states = ("State", frozenset({"deleted"}))

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Modify the volume and wait until its new size and performance take effect."""
        settings = changed(old, new, "Size", "Iops", "Throughput", "VolumeType", "MultiAttachEnabled")
        if settings:
            api.call("modify_volume", VolumeId=physical_id, **settings)
            wait_for(lambda: self._modified(api, physical_id), f"modification of {physical_id}")

    @staticmethod
    def _modified(api: ResourceApi, physical_id: str) -> bool:
        states = api.call("describe_volumes_modifications", VolumeIds=[physical_id])["VolumesModifications"]
        return all(item["ModificationState"] in {"optimizing", "completed"} for item in states)

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ID."""
        return {"VolumeId": found["VolumeId"]}


PROVIDERS = (Volume(),)
