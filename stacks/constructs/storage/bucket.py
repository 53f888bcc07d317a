"""Private, encrypted buckets that require TLS, block public access, and have lifecycle rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from stacks.constructs.suppressions import suppress


@dataclass(frozen=True)
class BucketOptions:
    """A bucket's settings.

    Attributes:
        events: Whether the bucket sends events to EventBridge.
        accelerated: Whether transfer acceleration is enabled.
        rules: Lifecycle rules.
        noncurrent_version_days: Days to keep the versions of overwritten and deleted objects; None: no versioning.
    """

    events: bool = False
    accelerated: bool = False
    rules: Sequence[s3.LifecycleRule] = ()
    noncurrent_version_days: int | None = None


def data_bucket(
    scope: Construct,
    id_: str,
    *,
    key: kms.IKey,
    access_logs: s3.Bucket,
    removal: RemovalPolicy,
    options: BucketOptions,
) -> s3.Bucket:
    """Create a data bucket that is encrypted with `key` and logs requests to `access_logs`.

    Only the checkpoint bucket is versioned: nodes may delete checkpoints, and versions let users restore checkpoints
    that a node deleted by mistake. Only users delete datasets, and control records are rewritten every few seconds.
    """
    days = options.noncurrent_version_days
    versions = [] if days is None else noncurrent_rules(days)
    bucket = s3.Bucket(
        scope,
        id_,
        encryption=s3.BucketEncryption.KMS,
        encryption_key=key,
        bucket_key_enabled=True,
        block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
        object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
        enforce_ssl=True,
        transfer_acceleration=True if options.accelerated else None,
        server_access_logs_bucket=access_logs,
        server_access_logs_prefix=f"{id_.lower()}/",
        versioned=True if days is not None else None,
        lifecycle_rules=[_abandoned_uploads(), *options.rules, *versions],
        removal_policy=removal,
    )
    if options.events:
        # The CDK's option sets the same property with a custom resource, which needs another Lambda function.
        resource = bucket.node.default_child
        assert isinstance(resource, s3.CfnBucket)
        resource.notification_configuration = s3.CfnBucket.NotificationConfigurationProperty(
            event_bridge_configuration=s3.CfnBucket.EventBridgeConfigurationProperty(event_bridge_enabled=True)
        )
    if days is None:
        suppress(bucket, "CKV_AWS_21", "Only users delete datasets, and each heartbeat would add a version of a record")
    return bucket


def access_log_bucket(scope: Construct, id_: str, *, keep_days: int, removal: RemovalPolicy) -> s3.Bucket:
    """Create the bucket for access logs. S3 delivers access logs only to buckets with SSE-S3 encryption.

    Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/enable-server-access-logging.html (2026-11).
    """
    bucket = s3.Bucket(
        scope,
        id_,
        encryption=s3.BucketEncryption.S3_MANAGED,
        block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
        enforce_ssl=True,
        lifecycle_rules=[
            _abandoned_uploads(),
            s3.LifecycleRule(id="OldLogs", expiration=Duration.days(keep_days)),
        ],
        removal_policy=removal,
    )
    suppress(bucket, "CKV_AWS_18", "This is the access log bucket, and logging to itself would never end")
    suppress(bucket, "CKV_AWS_21", "S3 writes each log under a unique name and never overwrites it")
    return bucket


def archive_rules(prefix: str, after_days: int | None) -> list[s3.LifecycleRule]:
    """Return the rule that moves `prefix` to Intelligent-Tiering after a number of days, or an empty result for None.

    S3 does not move objects smaller than 128 KiB, which would cost more there.
    Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/lifecycle-transition-general-considerations.html
    (2026-11).
    """
    if after_days is None:
        return []
    transition = s3.Transition(
        storage_class=s3.StorageClass.INTELLIGENT_TIERING, transition_after=Duration.days(after_days)
    )
    return [s3.LifecycleRule(id="PricedByUse", prefix=prefix, transitions=[transition])]


def noncurrent_rules(days: int) -> list[s3.LifecycleRule]:
    """Return the rules that delete noncurrent versions after a number of days, and delete markers without versions.

    S3 counts from the time when a version became noncurrent, and rounds up to the next midnight UTC.
    Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/intro-lifecycle-rules.html (2026-11).
    """
    return [
        s3.LifecycleRule(id="OldVersions", noncurrent_version_expiration=Duration.days(days)),
        s3.LifecycleRule(id="OldDeleteMarkers", expired_object_delete_marker=True),
    ]


def _abandoned_uploads() -> s3.LifecycleRule:
    return s3.LifecycleRule(id="AbandonedUploads", abort_incomplete_multipart_upload_after=Duration.days(7))
