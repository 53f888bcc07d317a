"""StorageStack: everything with memory. What is here stays when the stack goes, unless two keys say otherwise."""

from __future__ import annotations

from typing import Any

from aws_cdk import CfnOutput, Duration, RemovalPolicy, Stack, Tags
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from stacks.config import DeploymentConfig


class StorageStack(Stack):
    """The key, the dataset bucket, the checkpoint bucket, and the bucket of their access logs."""

    def __init__(
        self, scope: Construct, id_: str, *, config: DeploymentConfig, may_destroy: bool, **kwargs: Any
    ) -> None:
        super().__init__(scope, id_, **kwargs)
        both_keys = config.storage.deletion == "destroy" and may_destroy
        self._removal = RemovalPolicy.DESTROY if both_keys else RemovalPolicy.RETAIN
        self.key = kms.Key(
            self,
            "Key",
            description=f"Trainstack {config.name}: datasets, checkpoints, node volumes",
            enable_key_rotation=True,
            removal_policy=self._removal,
        )
        self._admit_auto_scaling()
        self._access_logs = self._bucket("AccessLogs", encrypted_with_key=False)
        self.datasets = self._bucket("Datasets")
        self.checkpoints = self._bucket("Checkpoints", events=True)
        CfnOutput(self, "DatasetBucket", value=self.datasets.bucket_name)
        CfnOutput(self, "CheckpointBucket", value=self.checkpoints.bucket_name)
        Tags.of(self).add("trainstack:deployment", config.name)

    def _bucket(self, id_: str, *, encrypted_with_key: bool = True, events: bool = False) -> s3.Bucket:
        """Make a private bucket, TLS only.

        Not versioned: datasets are named by content, checkpoint chunks by hash and the log is append-only, so nothing
        is overwritten; versions would keep what retention deletes, and each heart-beat.
        """
        bucket = s3.Bucket(
            self,
            id_,
            encryption=s3.BucketEncryption.KMS if encrypted_with_key else s3.BucketEncryption.S3_MANAGED,
            encryption_key=self.key if encrypted_with_key else None,
            bucket_key_enabled=encrypted_with_key or None,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED if encrypted_with_key else None,
            enforce_ssl=True,
            server_access_logs_bucket=self._access_logs if encrypted_with_key else None,
            server_access_logs_prefix=f"{id_.lower()}/" if encrypted_with_key else None,
            lifecycle_rules=[
                s3.LifecycleRule(id="AbandonedUploads", abort_incomplete_multipart_upload_after=Duration.days(7))
            ],
            removal_policy=self._removal,
        )
        if events:
            # The L2 option sets this same property through a custom resource with a Lambda function of its own.
            resource = bucket.node.default_child
            assert isinstance(resource, s3.CfnBucket)
            resource.notification_configuration = s3.CfnBucket.NotificationConfigurationProperty(
                event_bridge_configuration=s3.CfnBucket.EventBridgeConfigurationProperty(event_bridge_enabled=True)
            )
        return bucket

    def _admit_auto_scaling(self) -> None:
        """Let the Auto Scaling service role launch nodes whose volumes are encrypted with the key.

        Source (2026-11):
        https://docs.aws.amazon.com/autoscaling/ec2/userguide/key-policy-requirements-EBS-encryption.html
        """
        role = (
            f"arn:{self.partition}:iam::{self.account}:role/aws-service-role/autoscaling.amazonaws.com/"
            "AWSServiceRoleForAutoScaling"
        )
        # By condition, not as principal: KMS refuses a policy that names a role which the account does not have yet.
        is_role = {"ArnEquals": {"aws:PrincipalArn": role}, "StringEquals": {"kms:CallerAccount": self.account}}
        self.key.add_to_resource_policy(
            iam.PolicyStatement(
                sid="AutoScalingUsesKey",
                principals=[iam.AnyPrincipal()],
                actions=["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"],
                resources=["*"],
                conditions=is_role,
            )
        )
        self.key.add_to_resource_policy(
            iam.PolicyStatement(
                sid="AutoScalingGrantsVolumes",
                principals=[iam.AnyPrincipal()],
                actions=["kms:CreateGrant"],
                resources=["*"],
                conditions={**is_role, "Bool": {"kms:GrantIsForAWSResource": "true"}},
            )
        )
