"""A private bucket: TLS only, public access blocked, encrypted, and cleared of what nobody wants any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from stacks.constructs.accepted_findings import accept


@dataclass(frozen=True)
class BucketTraits:
    """What distinguishes a bucket from the next: `events` tells the event bus of what happens in it."""

    events: bool = False
    accelerated: bool = False
    rules: Sequence[s3.LifecycleRule] = ()


def data_bucket(
    scope: Construct,
    id_: str,
    *,
    key: kms.IKey,
    access_logs: s3.Bucket,
    removal: RemovalPolicy,
    traits: BucketTraits,
) -> s3.Bucket:
    """Make a bucket for data, encrypted with `key`, its requests logged to `access_logs`.

    Not versioned: datasets are named by content, checkpoint chunks by hash and the log is append-only, so nothing is
    overwritten; versions would keep what retention deletes, and each heart-beat.
    """
    bucket = s3.Bucket(
        scope,
        id_,
        encryption=s3.BucketEncryption.KMS,
        encryption_key=key,
        bucket_key_enabled=True,
        block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
        object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
        enforce_ssl=True,
        transfer_acceleration=True if traits.accelerated else None,
        server_access_logs_bucket=access_logs,
        server_access_logs_prefix=f"{id_.lower()}/",
        lifecycle_rules=[_abandoned_uploads(), *traits.rules],
        removal_policy=removal,
    )
    if traits.events:
        # The L2 option sets this same property through a custom resource with a Lambda function of its own.
        resource = bucket.node.default_child
        assert isinstance(resource, s3.CfnBucket)
        resource.notification_configuration = s3.CfnBucket.NotificationConfigurationProperty(
            event_bridge_configuration=s3.CfnBucket.EventBridgeConfigurationProperty(event_bridge_enabled=True)
        )
    accept(bucket, "CKV_AWS_21", "Nothing is overwritten: names are hashes of content, or numbers of a log")
    return bucket


def access_log_bucket(scope: Construct, id_: str, *, keep_days: int, removal: RemovalPolicy) -> s3.Bucket:
    """Make the bucket of access logs, which S3 itself writes: it takes S3's own key only.

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
    accept(bucket, "CKV_AWS_18", "The bucket of access logs: logging it to itself would never end")
    accept(bucket, "CKV_AWS_21", "S3 writes each log under a name of its own and nothing overwrites one")
    return bucket


def archive_rules(prefix: str, after_days: int | None) -> list[s3.LifecycleRule]:
    """Return the rule that moves `prefix` to Intelligent-Tiering after some days; none when they are None.

    S3 leaves objects under 128 KiB where they are, which would cost more there.
    Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/lifecycle-transition-general-considerations.html
    (2026-11).
    """
    if after_days is None:
        return []
    transition = s3.Transition(
        storage_class=s3.StorageClass.INTELLIGENT_TIERING, transition_after=Duration.days(after_days)
    )
    return [s3.LifecycleRule(id="PricedByUse", prefix=prefix, transitions=[transition])]


def _abandoned_uploads() -> s3.LifecycleRule:
    return s3.LifecycleRule(id="AbandonedUploads", abort_incomplete_multipart_upload_after=Duration.days(7))
