"""A deployment's EBS volumes and their entries in the node document.

The launch template creates a dataset volume for each node. The other volumes are stack resources that nodes attach.
"""

from __future__ import annotations

from aws_cdk import Aws, CfnTag, Fn, RemovalPolicy
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_kms as kms
from constructs import Construct

from bootstrap.documents import SNAPSHOTS_TAG, Volume
from stacks.config.storage import CheckpointVolumeConfig, DatasetVolumeConfig, SharedVolumeConfig

# Device names that images do not use. On Nitro instances, the node finds the disk by its serial number instead.
# Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/device_naming.html (2026-11).
DATASET_DEVICE, CHECKPOINT_DEVICE, SHARED_DEVICE = "/dev/sdf", "/dev/sdg", "/dev/sdh"


def zone_name(letter: str) -> str:
    """Return the name of an availability zone in the stack's region, such as us-east-1a."""
    return Fn.join("", [Aws.REGION, letter])


def dataset_device(config: DatasetVolumeConfig, key: kms.IKey) -> ec2.CfnLaunchTemplate.BlockDeviceMappingProperty:
    """Return the launch template device for the dataset snapshot. EC2 deletes the volume with the instance."""
    rate = config.warm_mib_per_second if config.warm == "provisioned_rate" else None
    ebs = ec2.CfnLaunchTemplate.EbsProperty(
        snapshot_id=config.snapshot_id,
        volume_type="gp3",
        volume_size=config.gib,
        iops=config.iops,
        throughput=config.throughput,
        volume_initialization_rate=rate,
        encrypted=True,
        kms_key_id=key.key_arn,
        delete_on_termination=True,
    )
    return ec2.CfnLaunchTemplate.BlockDeviceMappingProperty(device_name=DATASET_DEVICE, ebs=ebs)


def dataset_volume(config: DatasetVolumeConfig) -> Volume:
    """Return the dataset volume's entry in the node document."""
    return Volume(
        kind="dataset",
        device=DATASET_DEVICE,
        mount=config.mount,
        read_only=True,
        warm=config.warm == "blocks",
        initialization=config.warm if config.warm in ("provisioned_rate", "fast_snapshot_restore") else None,
        warm_limit_mib_per_second=config.warm_limit_mib_per_second,
    )


class CheckpointVolume(Construct):
    """A gp3 volume in one zone that outlives nodes."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: CheckpointVolumeConfig,
        deployment: str,
        key: kms.IKey,
        removal: RemovalPolicy,
    ) -> None:
        super().__init__(scope, id_)
        self._config = config
        self._zone = zone_name(config.zone)
        self.resource = ec2.CfnVolume(
            self,
            "Default",
            availability_zone=self._zone,
            volume_type="gp3",
            size=config.gib,
            iops=config.iops,
            throughput=config.throughput,
            encrypted=True,
            kms_key_id=key.key_arn,
            tags=[CfnTag(key="Name", value=f"{deployment}-checkpoints"), CfnTag(key=SNAPSHOTS_TAG, value=deployment)],
        )
        self.resource.apply_removal_policy(removal)

    @property
    def document(self) -> Volume:
        """The entry in the node document."""
        return Volume(
            kind="checkpoint",
            device=CHECKPOINT_DEVICE,
            mount=self._config.mount,
            read_only=False,
            warm=False,
            volume_id=self.resource.ref,
            availability_zone=self._zone,
            restored_elsewhere=self._config.other_zones == "restore",
        )


class SharedVolume(Construct):
    """An io2 volume in one zone that several nodes attach at the same time.

    The nodes mount the volume read-only because concurrent writes would corrupt an ordinary file system.
    Source: https://docs.aws.amazon.com/ebs/latest/userguide/ebs-volumes-multi.html (2026-11).
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: SharedVolumeConfig,
        deployment: str,
        key: kms.IKey,
        removal: RemovalPolicy,
    ) -> None:
        super().__init__(scope, id_)
        self._mount = config.mount
        self._zone = zone_name(config.zone)
        self.resource = ec2.CfnVolume(
            self,
            "Default",
            availability_zone=self._zone,
            volume_type="io2",
            size=config.gib,
            iops=config.iops,
            multi_attach_enabled=True,
            snapshot_id=config.snapshot_id,
            encrypted=True,
            kms_key_id=key.key_arn,
            tags=[CfnTag(key="Name", value=f"{deployment}-shared")],
        )
        self.resource.apply_removal_policy(removal)

    @property
    def document(self) -> Volume:
        """The entry in the node document."""
        return Volume(
            kind="shared",
            device=SHARED_DEVICE,
            mount=self._mount,
            read_only=True,
            warm=False,
            volume_id=self.resource.ref,
            availability_zone=self._zone,
        )
