"""StorageStack: all persistent data. The data outlives the stack unless both destroy settings are set."""

from __future__ import annotations

from typing import Any

from aws_cdk import CfnOutput, Duration, RemovalPolicy, Stack, Tags
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from bootstrap.documents import Lustre, Volume
from stacks.config import DeploymentConfig
from stacks.config.deployment_tag import DEPLOYMENT_TAG
from stacks.constructs.nodes.service_linked_roles import create_linked_roles, grant_key_to_linked_roles
from stacks.constructs.storage.bucket import BucketOptions, access_log_bucket, archive_rules, data_bucket
from stacks.constructs.storage.images import image_repository
from stacks.constructs.storage.lustre import LustreFileSystem
from stacks.constructs.storage.snapshot_schedule import SnapshotSchedule
from stacks.constructs.storage.volumes import CheckpointVolume, SharedVolume, dataset_device, dataset_volume
from stacks.constructs.suppressions import suppress
from stacks.network_stack import NetworkStack

# The rollback of a failed create deletes the new, empty resources, so the stack can be created again.
KEEP = RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE


class StorageStack(Stack):
    """The key, the buckets, and the volumes and file systems that the deployment file configures."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: DeploymentConfig,
        network: NetworkStack,
        may_destroy: bool,
        **kwargs: Any,
    ) -> None:
        super().__init__(scope, id_, **kwargs)
        self._config = config
        self.deployment = config.name
        """Name of the deployment, which the fleets of its slots extend."""
        both_keys = config.storage.deletion == "destroy" and may_destroy
        self._removal = RemovalPolicy.DESTROY if both_keys else KEEP
        self.key = kms.Key(
            self,
            "Key",
            description=f"Trainstack {config.name}: datasets, checkpoints, node volumes",
            enable_key_rotation=True,
            removal_policy=self._removal,
        )
        grant_key_to_linked_roles(self.key, config)
        suppress(
            self.key,
            "CKV_AWS_33",
            "A condition limits the principal's ARN because KMS rejects policies that name roles that do not exist",
        )
        create_linked_roles(self, config)
        self._buckets()
        self._image_repository()
        self.block_devices: list[ec2.CfnLaunchTemplate.BlockDeviceMappingProperty] = []
        """The launch template's devices, except the root volume."""
        self.volumes: list[Volume] = []
        """The volumes in the node document."""
        self._dataset_volume()
        self._checkpoint_volume()
        self._shared_volume()
        self.lustre = self._lustre(network)
        """The shared file system in the node document."""
        Tags.of(self).add(DEPLOYMENT_TAG, config.name)

    @property
    def volume_ids(self) -> list[str]:
        """The ids of the volumes that the nodes attach."""
        return [volume.volume_id for volume in self.volumes if volume.volume_id is not None]

    @property
    def copied_volume_id(self) -> str | None:
        """The id of the volume whose copies nodes in other zones restore."""
        return next((volume.volume_id for volume in self.volumes if volume.restored_elsewhere), None)

    def _buckets(self) -> None:
        storage = self._config.storage
        access_logs = access_log_bucket(self, "AccessLogs", keep_days=storage.access_log_days, removal=self._removal)
        self.datasets = data_bucket(
            self,
            "Datasets",
            key=self.key,
            access_logs=access_logs,
            removal=self._removal,
            options=BucketOptions(
                events=True,
                accelerated=storage.transfer_acceleration,
                rules=archive_rules("datasets/", storage.archive_after_days),
            ),
        )
        self.checkpoints = data_bucket(
            self,
            "Checkpoints",
            key=self.key,
            access_logs=access_logs,
            removal=self._removal,
            options=BucketOptions(
                rules=archive_rules("runs/", storage.archive_after_days),
                noncurrent_version_days=storage.noncurrent_version_days,
            ),
        )
        reports = s3.LifecycleRule(
            id="OldNodeReports", prefix="nodes/", expiration=Duration.days(storage.node_report_days)
        )
        # Versioning applies to all objects in a bucket. Each node rewrites its heartbeat every few seconds, and each
        # rewrite would add a version.
        self.control = data_bucket(
            self,
            "Control",
            key=self.key,
            access_logs=access_logs,
            removal=self._removal,
            options=BucketOptions(events=True, rules=[reports]),
        )
        CfnOutput(self, "DatasetBucket", value=self.datasets.bucket_name)
        CfnOutput(self, "CheckpointBucket", value=self.checkpoints.bucket_name)
        CfnOutput(self, "ControlBucket", value=self.control.bucket_name)
        if storage.transfer_acceleration:
            CfnOutput(
                self, "DatasetUploadEndpoint", value=f"https://{self.datasets.bucket_name}.s3-accelerate.amazonaws.com"
            )

    def _image_repository(self) -> None:
        image = self._config.image
        if image is None or image.repository is not None:
            return
        repository = image_repository(self, "Images", config=image, key=self.key, removal=self._removal)
        CfnOutput(self, "ImageRepository", value=repository.repository_uri)

    def _dataset_volume(self) -> None:
        volume = self._config.storage.dataset_volume
        if volume is None:
            return
        self.block_devices.append(dataset_device(volume, self.key))
        self.volumes.append(dataset_volume(volume))

    def _checkpoint_volume(self) -> None:
        config, name = self._config.storage.checkpoint_volume, self._config.name
        if config is None:
            return
        volume = CheckpointVolume(
            self, "CheckpointVolume", config=config, deployment=name, key=self.key, removal=self._removal
        )
        SnapshotSchedule(self, "Snapshots", config=config, deployment=name, volume_id=volume.resource.ref, key=self.key)
        self.volumes.append(volume.document)

    def _shared_volume(self) -> None:
        config = self._config.storage.shared_volume
        if config is None:
            return
        volume = SharedVolume(
            self, "SharedVolume", config=config, deployment=self._config.name, key=self.key, removal=self._removal
        )
        self.volumes.append(volume.document)

    def _lustre(self, network: NetworkStack) -> Lustre | None:
        config = self._config.storage.lustre
        if config is None:
            return None
        return LustreFileSystem(
            self,
            "Lustre",
            config=config,
            vpc_id=network.vpc_id,
            subnet_id=network.subnet_of(config.zone),
            nodes_group_id=network.nodes.ref,
            key=self.key,
            datasets=self.datasets,
            removal=self._removal,
        ).document
