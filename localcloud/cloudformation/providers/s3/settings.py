"""Converts a template's bucket settings to S3 API parameters, whose names and nesting differ.

Source: https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-s3-bucket.html and
https://docs.aws.amazon.com/AmazonS3/latest/API/API_Operations.html, read 2026-11.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from localcloud.cloudformation.provider import ResourceFailure
from localcloud.cloudformation.providers.base.shapes import parse_bool

Setting = Mapping[str, Any]


def renamed(value: Setting, names: Mapping[str, str], path: str) -> dict[str, Any]:
    """Return `value` with its keys renamed.

    Raises:
        ResourceFailure: A key is not in `names`.
    """
    unknown = sorted(set(value) - set(names))
    if unknown:
        raise ResourceFailure(f"{path}: not emulated: {', '.join(unknown)}; emulated: {', '.join(names)}")
    return {names[key]: item for key, item in value.items()}


def same(value: Setting) -> dict[str, Any]:
    """Return a setting unchanged, since the API uses the same form."""
    return dict(value)


def encryption(value: Setting) -> dict[str, Any]:
    """Return a ServerSideEncryptionConfiguration."""
    names = {
        "ServerSideEncryptionByDefault": "ApplyServerSideEncryptionByDefault",
        "BucketKeyEnabled": "BucketKeyEnabled",
    }
    rules = renamed(value, {"ServerSideEncryptionConfiguration": "rules"}, "BucketEncryption")["rules"]
    return {"Rules": [renamed(rule, names, "BucketEncryption.ServerSideEncryptionConfiguration") for rule in rules]}


def template_encryption(value: Setting) -> dict[str, Any]:
    """Return a ServerSideEncryptionConfiguration in template form."""
    names = {"ApplyServerSideEncryptionByDefault": "ServerSideEncryptionByDefault"}
    rules = [{names.get(key, key): item for key, item in rule.items()} for rule in value["Rules"]]
    return {"ServerSideEncryptionConfiguration": rules}


def logging(value: Setting) -> dict[str, Any]:
    """Return a BucketLoggingStatus."""
    names = {"DestinationBucketName": "TargetBucket", "LogFilePrefix": "TargetPrefix"}
    names["TargetObjectKeyFormat"] = "TargetObjectKeyFormat"
    return {"LoggingEnabled": {"TargetPrefix": "", **renamed(value, names, "LoggingConfiguration")}}


def ownership(value: Setting) -> dict[str, Any]:
    """Return OwnershipControls."""
    return renamed(value, {"Rules": "Rules"}, "OwnershipControls")


def acceleration(value: Setting) -> dict[str, Any]:
    """Return an AccelerateConfiguration."""
    return renamed(value, {"AccelerationStatus": "Status"}, "AccelerateConfiguration")


def cors(value: Setting) -> dict[str, Any]:
    """Return a CORSConfiguration."""
    names = {"AllowedHeaders": "AllowedHeaders", "AllowedMethods": "AllowedMethods", "AllowedOrigins": "AllowedOrigins"}
    names |= {"ExposedHeaders": "ExposeHeaders", "Id": "ID", "MaxAge": "MaxAgeSeconds"}
    return {"CORSRules": [renamed(rule, names, "CorsConfiguration.CorsRules") for rule in value["CorsRules"]]}


def notification(value: Setting) -> dict[str, Any]:
    """Return a NotificationConfiguration."""
    known = {name: name for name in ("EventBridgeConfiguration", *_NOTIFIED)}
    renamed(value, known, "NotificationConfiguration")
    result: dict[str, Any] = {}
    bridge = value.get("EventBridgeConfiguration")
    if bridge is not None and parse_bool(bridge.get("EventBridgeEnabled", True)):
        result["EventBridgeConfiguration"] = {}
    for name, (target, api_name, api_target) in _NOTIFIED.items():
        names = {target: api_target, "Event": "Events", "Filter": "Filter"}
        listeners = []
        for item in value.get(name, []):
            listener = renamed(item, names, f"NotificationConfiguration.{name}")
            listener["Events"] = [listener["Events"]]
            if "Filter" in listener:
                listener["Filter"] = {"Key": {"FilterRules": listener["Filter"]["S3Key"]["Rules"]}}
            listeners.append(listener)
        if listeners:
            result[api_name] = listeners
    return result


_NOTIFIED = {
    "LambdaConfigurations": ("Function", "LambdaFunctionConfigurations", "LambdaFunctionArn"),
    "QueueConfigurations": ("Queue", "QueueConfigurations", "QueueArn"),
    "TopicConfigurations": ("Topic", "TopicConfigurations", "TopicArn"),
}


def lifecycle(value: Setting) -> dict[str, Any]:
    """Return a LifecycleConfiguration."""
    return {"Rules": [_lifecycle_rule(rule) for rule in value["Rules"]]}


def _lifecycle_rule(rule: Setting) -> dict[str, Any]:
    renamed(rule, {name: name for name in _LIFECYCLE_RULE}, "LifecycleConfiguration.Rules")
    result = {"Status": rule["Status"], "Filter": _lifecycle_filter(rule)}
    if "Id" in rule:
        result["ID"] = rule["Id"]
    expiry = {api: rule[name] for name, api in _EXPIRY.items() if name in rule}
    if expiry:
        result["Expiration"] = expiry
    for name in ("AbortIncompleteMultipartUpload", "NoncurrentVersionExpiration"):
        if name in rule:
            result[name] = dict(rule[name])
    if "NoncurrentVersionExpirationInDays" in rule:
        result["NoncurrentVersionExpiration"] = {"NoncurrentDays": rule["NoncurrentVersionExpirationInDays"]}
    for name, days in (("Transitions", "Days"), ("NoncurrentVersionTransitions", "NoncurrentDays")):
        names = {"StorageClass": "StorageClass", "TransitionInDays": days, "TransitionDate": "Date"}
        names["NewerNoncurrentVersions"] = "NewerNoncurrentVersions"
        if name in rule:
            result[name] = [renamed(item, names, f"LifecycleConfiguration.Rules.{name}") for item in rule[name]]
    return result


def _lifecycle_filter(rule: Setting) -> dict[str, Any]:
    parts = {name: rule[name] for name in ("Prefix", "ObjectSizeGreaterThan", "ObjectSizeLessThan") if name in rule}
    tags = list(rule.get("TagFilters", []))
    if len(parts) + len(tags) > 1:
        return {"And": {**parts, **({"Tags": tags} if tags else {})}}
    return {"Tag": tags[0]} if tags else parts or {"Prefix": ""}


_EXPIRY = {
    "ExpirationInDays": "Days",
    "ExpirationDate": "Date",
    "ExpiredObjectDeleteMarker": "ExpiredObjectDeleteMarker",
}
_LIFECYCLE_RULE = (
    *("Id", "Status", "Prefix", "TagFilters", "ObjectSizeGreaterThan", "ObjectSizeLessThan", *_EXPIRY),
    *("NoncurrentVersionExpiration", "NoncurrentVersionExpirationInDays", "NoncurrentVersionTransitions"),
    *("Transitions", "AbortIncompleteMultipartUpload"),
)

# For each property: the operation that sets it, its parameter, the conversion, and how to clear it (another operation
# or the value that means "not set").
SETTINGS: Mapping[str, tuple[str, str, Callable[[Setting], dict[str, Any]], str | Setting]] = {
    "OwnershipControls": (
        *("put_bucket_ownership_controls", "OwnershipControls", ownership),
        "delete_bucket_ownership_controls",
    ),
    "PublicAccessBlockConfiguration": (
        *("put_public_access_block", "PublicAccessBlockConfiguration", same),
        "delete_public_access_block",
    ),
    "BucketEncryption": (
        *("put_bucket_encryption", "ServerSideEncryptionConfiguration", encryption),
        "delete_bucket_encryption",
    ),
    "VersioningConfiguration": (
        *("put_bucket_versioning", "VersioningConfiguration", same),
        {"Status": "Suspended"},
    ),
    "LifecycleConfiguration": (
        *("put_bucket_lifecycle_configuration", "LifecycleConfiguration", lifecycle),
        "delete_bucket_lifecycle",
    ),
    "LoggingConfiguration": ("put_bucket_logging", "BucketLoggingStatus", logging, {}),
    "NotificationConfiguration": (
        *("put_bucket_notification_configuration", "NotificationConfiguration", notification),
        {},
    ),
    "CorsConfiguration": ("put_bucket_cors", "CORSConfiguration", cors, "delete_bucket_cors"),
    "AccelerateConfiguration": (
        *("put_bucket_accelerate_configuration", "AccelerateConfiguration", acceleration),
        {"Status": "Suspended"},
    ),
}

# For each property that drift detection compares: the operation that reads it, the response path and the conversion.
READABLE: Mapping[str, tuple[str, str, Callable[[Any], dict[str, Any]]]] = {
    "PublicAccessBlockConfiguration": ("get_public_access_block", "PublicAccessBlockConfiguration", same),
    "BucketEncryption": ("get_bucket_encryption", "ServerSideEncryptionConfiguration", template_encryption),
    "VersioningConfiguration": ("get_bucket_versioning", "Status", lambda found: {"Status": found}),
    "OwnershipControls": ("get_bucket_ownership_controls", "OwnershipControls", same),
}
UNSET = frozenset(
    {
        "NoSuchPublicAccessBlockConfiguration",
        "ServerSideEncryptionConfigurationNotFoundError",
        "OwnershipControlsNotFoundError",
    }
)
"""Error codes that those operations return for settings that are not set."""
