"""Determines the permissions that S3 calls require.

Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/using-with-s3-policy-actions.html and
https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazons3.html (2026-11).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localcloud.api import Call
from localcloud.iam.policy import Access

# IAM actions for object operations, where the names differ.
OBJECT_ACTIONS: Mapping[str, str] = {
    "HeadObject": "s3:GetObject",
    "SelectObjectContent": "s3:GetObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "UploadPartCopy": "s3:PutObject",
    "CopyObject": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "ListParts": "s3:ListMultipartUploadParts",
}
# Actions for calls with a version ID.
VERSION_ACTIONS: Mapping[str, str] = {
    "s3:GetObject": "s3:GetObjectVersion",
    "s3:GetObjectAcl": "s3:GetObjectVersionAcl",
    "s3:GetObjectAttributes": "s3:GetObjectVersionAttributes",
    "s3:GetObjectTagging": "s3:GetObjectVersionTagging",
    "s3:DeleteObject": "s3:DeleteObjectVersion",
    "s3:DeleteObjectTagging": "s3:DeleteObjectVersionTagging",
    "s3:PutObjectAcl": "s3:PutObjectVersionAcl",
    "s3:PutObjectTagging": "s3:PutObjectVersionTagging",
}
BUCKET_ACTIONS: Mapping[str, str] = {
    "ListObjects": "s3:ListBucket",
    "ListObjectsV2": "s3:ListBucket",
    "HeadBucket": "s3:ListBucket",
    "ListObjectVersions": "s3:ListBucketVersions",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "GetBucketEncryption": "s3:GetEncryptionConfiguration",
    "PutBucketEncryption": "s3:PutEncryptionConfiguration",
    "DeleteBucketEncryption": "s3:PutEncryptionConfiguration",
    "GetBucketLifecycleConfiguration": "s3:GetLifecycleConfiguration",
    "PutBucketLifecycleConfiguration": "s3:PutLifecycleConfiguration",
    "DeleteBucketLifecycle": "s3:PutLifecycleConfiguration",
    "GetBucketReplication": "s3:GetReplicationConfiguration",
    "PutBucketReplication": "s3:PutReplicationConfiguration",
    "DeleteBucketReplication": "s3:PutReplicationConfiguration",
    "GetBucketAccelerateConfiguration": "s3:GetAccelerateConfiguration",
    "PutBucketAccelerateConfiguration": "s3:PutAccelerateConfiguration",
    "GetBucketInventoryConfiguration": "s3:GetInventoryConfiguration",
    "PutBucketInventoryConfiguration": "s3:PutInventoryConfiguration",
    "GetPublicAccessBlock": "s3:GetBucketPublicAccessBlock",
    "PutPublicAccessBlock": "s3:PutBucketPublicAccessBlock",
    "DeletePublicAccessBlock": "s3:PutBucketPublicAccessBlock",
    "GetBucketNotificationConfiguration": "s3:GetBucketNotification",
    "PutBucketNotificationConfiguration": "s3:PutBucketNotification",
    "GetObjectLockConfiguration": "s3:GetBucketObjectLockConfiguration",
    "PutObjectLockConfiguration": "s3:PutBucketObjectLockConfiguration",
    "DeleteBucketCors": "s3:PutBucketCORS",
    "DeleteBucketTagging": "s3:PutBucketTagging",
    "DeleteBucketOwnershipControls": "s3:PutBucketOwnershipControls",
}
# Whether an operation with the permission s3:PutObject creates an object: the value of s3:ObjectCreationOperation.
# Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes-enforce.html (2026-11).
CREATES_OBJECT: Mapping[str, bool] = {
    "PutObject": True,
    "CopyObject": True,
    "CompleteMultipartUpload": True,
    "CreateMultipartUpload": False,
    "UploadPart": False,
    "UploadPartCopy": False,
}
# S3 condition keys and the parameters that provide their values.
CONDITION_KEYS: Mapping[str, str] = {
    "s3:prefix": "Prefix",
    "s3:delimiter": "Delimiter",
    "s3:max-keys": "MaxKeys",
    "s3:versionid": "VersionId",
    "s3:x-amz-acl": "ACL",
    "s3:x-amz-storage-class": "StorageClass",
    "s3:x-amz-server-side-encryption": "ServerSideEncryption",
    "s3:x-amz-server-side-encryption-aws-kms-key-id": "SSEKMSKeyId",
    "s3:x-amz-copy-source": "CopySource",
    "s3:locationconstraint": "CreateBucketConfiguration",
    "s3:if-match": "IfMatch",
    "s3:if-none-match": "IfNoneMatch",
}


def s3_accesses(call: Call) -> list[Access]:
    """Return the actions on buckets and objects that an S3 call requires, excluding actions on KMS keys."""
    p = call.parameters
    if call.operation == "ListBuckets":
        return [Access("s3:ListAllMyBuckets", "*", {})]
    bucket = f"arn:aws:s3:::{p.get('Bucket', '*')}"
    context = _context(p)
    if call.operation in CREATES_OBJECT:
        context["s3:objectcreationoperation"] = [str(CREATES_OBJECT[call.operation]).lower()]
    if call.operation == "DeleteObjects":
        return [
            Access(_action("s3:DeleteObject", one), f"{bucket}/{one['Key']}", context) for one in p["Delete"]["Objects"]
        ]
    if "Key" not in p:
        return [Access(BUCKET_ACTIONS.get(call.operation, f"s3:{call.operation}"), bucket, context)]
    target = f"{bucket}/{p['Key']}"
    action = OBJECT_ACTIONS.get(call.operation, f"s3:{call.operation}")
    found = [Access(_action(action, p), target, context)]
    if call.operation in ("CopyObject", "UploadPartCopy"):
        found.insert(0, _source(p["CopySource"]))
    if call.operation == "GetObjectAttributes":
        found.insert(0, Access(_action("s3:GetObject", p), target, context))
    if action == "s3:PutObject" and p.get("Tagging"):
        found.append(Access("s3:PutObjectTagging", target, context))
    if action == "s3:PutObject" and p.get("ACL"):
        found.append(Access("s3:PutObjectAcl", target, context))
    return found


def _action(action: str, named: Mapping[str, Any]) -> str:
    return VERSION_ACTIONS.get(action, action) if named.get("VersionId") else action


def _source(copied: str | Mapping[str, str]) -> Access:
    if not isinstance(copied, str):
        return Access(_action("s3:GetObject", copied), f"arn:aws:s3:::{copied['Bucket']}/{copied['Key']}", {})
    name, _, version = copied.lstrip("/").partition("?versionId=")
    return Access(_action("s3:GetObject", {"VersionId": version}), f"arn:aws:s3:::{name}", {})


def _context(p: Mapping[str, Any]) -> dict[str, list[str]]:
    context = {
        "s3:authtype": ["REST-HEADER"],
        "s3:signatureversion": ["AWS4-HMAC-SHA256"],
        "s3:tlsversion": ["1.3"],
    }
    for key, name in CONDITION_KEYS.items():
        value = p.get(name)
        if isinstance(value, Mapping):
            value = value.get("LocationConstraint")
        if value is not None:
            context[key] = [str(value)]
    return context
