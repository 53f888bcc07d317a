"""StorageStack: everything with memory. What is here stays when the stack goes, unless two keys say otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aws_cdk import CfnOutput, Duration, RemovalPolicy, Stack, Tags
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from bootstrap.documents import Lustre, Volume
from stacks.bundles import function_bundle
from stacks.config import DeploymentConfig
from stacks.constructs.accepted_findings import accept
from stacks.constructs.bucket import BucketTraits, access_log_bucket, archive_rules, data_bucket
from stacks.constructs.fast_snapshot_restore import FastSnapshotRestore
from stacks.constructs.launching_roles import admit_to_key, create_linked_roles
from stacks.constructs.lustre import LustreFileSystem
from stacks.constructs.snapshot_schedule import SnapshotSchedule
from stacks.constructs.volumes import CheckpointVolume, SharedVolume, dataset_device, dataset_volume
from stacks.network_stack import NetworkStack


class StorageStack(Stack):
    """The key, the buckets, and the volumes and file systems that the deployment file asks for."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: DeploymentConfig,
        network: NetworkStack,
        may_destroy: bool,
        bundle_directory: Path,
        **kwargs: Any,
    ) -> None:
        super().__init__(scope, id_, **kwargs)
        self._config = config
        both_keys = config.storage.deletion == "destroy" and may_destroy
        self._removal = RemovalPolicy.DESTROY if both_keys else RemovalPolicy.RETAIN
        self.key = kms.Key(
            self,
            "Key",
            description=f"Trainstack {config.name}: datasets, checkpoints, node volumes",
            enable_key_rotation=True,
            removal_policy=self._removal,
        )
        admit_to_key(self.key, config)
        accept(
            self.key,
            "CKV_AWS_33",
            "By condition on the principal's ARN: KMS refuses a policy that names a role which the account has not yet",
        )
        create_linked_roles(self, config)
        self._buckets()
        self.block_devices: list[ec2.CfnLaunchTemplate.BlockDeviceMappingProperty] = []
        """Devices of the launch template beside the root volume."""
        self.volumes: list[Volume] = []
        """What nodes are told of their volumes."""
        self._dataset_volume(bundle_directory)
        self._checkpoint_volume()
        self._shared_volume()
        self.lustre = self._lustre(network)
        """What nodes are told of the shared file system."""
        Tags.of(self).add("trainstack:deployment", config.name)

    @property
    def volume_ids(self) -> list[str]:
        """The volumes that nodes attach."""
        return [volume.volume_id for volume in self.volumes if volume.volume_id is not None]

    @property
    def copied_volume_id(self) -> str | None:
        """The volume that nodes of other zones make copies of."""
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
            traits=BucketTraits(
                accelerated=storage.transfer_acceleration,
                rules=archive_rules("datasets/", storage.archive_after_days),
            ),
        )
        reports = s3.LifecycleRule(
            id="OldNodeReports", prefix="nodes/", expiration=Duration.days(storage.node_report_days)
        )
        self.checkpoints = data_bucket(
            self,
            "Checkpoints",
            key=self.key,
            access_logs=access_logs,
            removal=self._removal,
            traits=BucketTraits(events=True, rules=[*archive_rules("runs/", storage.archive_after_days), reports]),
        )
        CfnOutput(self, "DatasetBucket", value=self.datasets.bucket_name)
        CfnOutput(self, "CheckpointBucket", value=self.checkpoints.bucket_name)
        if storage.transfer_acceleration:
            CfnOutput(
                self, "DatasetUploadEndpoint", value=f"https://{self.datasets.bucket_name}.s3-accelerate.amazonaws.com"
            )

    def _dataset_volume(self, bundle_directory: Path) -> None:
        volume = self._config.storage.dataset_volume
        if volume is None:
            return
        self.block_devices.append(dataset_device(volume, self.key))
        self.volumes.append(dataset_volume(volume))
        if volume.warm == "fast_snapshot_restore":
            FastSnapshotRestore(
                self,
                "FastRestore",
                deployment=self._config.name,
                snapshot_id=volume.snapshot_id,
                zones=self._config.network.subnet_zones,
                code=function_bundle("fast_snapshot_restore", bundle_directory),
                log_retention_days=self._config.observability.log_retention_days,
            )

    def _checkpoint_volume(self) -> None:
        config, name = self._config.storage.checkpoint_volume, self._config.name
        if config is None:
            return
        volume = CheckpointVolume(
            self, "CheckpointVolume", config=config, deployment=name, key=self.key, removal=self._removal
        )
        SnapshotSchedule(self, "Snapshots", config=config, deployment=name, volume_id=volume.resource.ref, key=self.key)
        self.volumes.append(volume.told)

    def _shared_volume(self) -> None:
        config = self._config.storage.shared_volume
        if config is None:
            return
        volume = SharedVolume(
            self, "SharedVolume", config=config, deployment=self._config.name, key=self.key, removal=self._removal
        )
        self.volumes.append(volume.told)

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
        ).told
