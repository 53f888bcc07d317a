"""Recognized changes to data resources."""

from __future__ import annotations

from collections.abc import Mapping

from stacks.changes.approvals.known import KEY, TAGS, Known
from stacks.changes.approvals.rules import (
    administered_key,
    any_of,
    found_elsewhere,
    in_new_resources,
    no_increase,
    numbers,
    own,
    passes,
)

_BUCKET_ENCRYPTION = "BucketEncryption/ServerSideEncryptionConfiguration"

STORAGE: Mapping[str, Known] = {
    "AWS::S3::Bucket": Known(
        {
            **TAGS,
            "PublicAccessBlockConfiguration": found_elsewhere,
            "LifecycleConfiguration/Rules": found_elsewhere,
            "VersioningConfiguration/Status": any_of("Enabled"),
            "AccelerateConfiguration/AccelerationStatus": any_of("Enabled", "Suspended"),
            "OwnershipControls/Rules/ObjectOwnership": any_of("BucketOwnerEnforced"),
            f"{_BUCKET_ENCRYPTION}/BucketKeyEnabled": passes,
            f"{_BUCKET_ENCRYPTION}/ServerSideEncryptionByDefault/SSEAlgorithm": in_new_resources(any_of("aws:kms")),
            f"{_BUCKET_ENCRYPTION}/ServerSideEncryptionByDefault/KMSMasterKeyID": in_new_resources(
                own("AWS::KMS::Key")
            ),
            "LoggingConfiguration/DestinationBucketName": in_new_resources(own("AWS::S3::Bucket")),
            "LoggingConfiguration/LogFilePrefix": in_new_resources(passes),
            "NotificationConfiguration/EventBridgeConfiguration/EventBridgeEnabled": any_of(True),
        },
        added="passes",
        removed="passes",
    ),
    # A changed life cycle can delete images, and a changed policy can publish them: both need approval.
    "AWS::ECR::Repository": Known(
        {
            **TAGS,
            "ImageTagMutability": any_of("IMMUTABLE"),
            "ImageScanningConfiguration/ScanOnPush": any_of(True),
            "EmptyOnDelete": any_of(False),
            "EncryptionConfiguration/EncryptionType": in_new_resources(any_of("KMS")),
            "EncryptionConfiguration/KmsKey": in_new_resources(own(KEY)),
            "LifecyclePolicy/LifecyclePolicyText": in_new_resources(passes),
        },
        added="passes",
    ),
    "AWS::KMS::Key": Known(
        {
            **TAGS,
            "Description": passes,
            "KeyPolicy": administered_key,
            "EnableKeyRotation": any_of(True),
            "Enabled": any_of(True, default=True),
            "PendingWindowInDays": found_elsewhere,
        },
        added="passes",
        removed="passes",
    ),
    "AWS::EC2::Volume": Known(
        {
            **TAGS,
            "Size": numbers,
            "Iops": numbers,
            "Throughput": numbers,
            "VolumeType": any_of("gp3", "io2"),
            "AvailabilityZone": in_new_resources(passes),
            "Encrypted": any_of(True),
            "KmsKeyId": in_new_resources(own(KEY)),
            "MultiAttachEnabled": any_of(False),
        },
        added="passes",
        removed="passes",
    ),
    "AWS::FSx::FileSystem": Known(
        {
            **TAGS,
            "StorageCapacity": numbers,
            "LustreConfiguration/PerUnitStorageThroughput": numbers,
            "LustreConfiguration/DataCompressionType": any_of("LZ4", "NONE"),
        },
        removed="passes",
    ),
    "AWS::FSx::DataRepositoryAssociation": Known(TAGS),
    "AWS::DLM::LifecyclePolicy": Known(
        {
            **TAGS,
            "Description": passes,
            "State": any_of("ENABLED"),
            "PolicyDetails/Schedules/Name": passes,
            "PolicyDetails/Schedules/CreateRule/Interval": no_increase,
            "PolicyDetails/Schedules/RetainRule/Count": found_elsewhere,
        }
    ),
    "AWS::Logs::LogGroup": Known(
        {
            **TAGS,
            "RetentionInDays": found_elsewhere,
            "LogGroupName": in_new_resources(passes),
            "KmsKeyId": in_new_resources(own(KEY)),
        },
        added="passes",
        removed="passes",
    ),
}
