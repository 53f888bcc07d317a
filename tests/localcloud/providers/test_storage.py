"""S3, KMS, Parameter Store and ECR resource types, created, updated and deleted in moto."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from moto.s3.models import s3_backends

from localcloud.cloudformation.provider import ResourceFailure
from localcloud.cloudformation.providers import registry

Lifecycle = Callable[..., None]
TAGGED = {"Tags": [{"Key": "Name", "Value": "mine"}]}


def s3(operation: str, **arguments: Any) -> Any:
    return getattr(boto3.client("s3"), operation)(**arguments)


def bucket_tags(bucket: str) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in s3("get_bucket_tagging", Bucket=bucket)["TagSet"]}


def setting(operation: str, *path: str) -> Callable[[str], Any]:
    """Return a function that reads a bucket's setting, or the error code if it is not set."""

    def look(bucket: str) -> Any:
        try:
            found = s3(operation, Bucket=bucket)
        except boto3.client("s3").exceptions.ClientError as error:
            return error.response["Error"]["Code"]
        for step in path:
            found = found.get(step)
        return found

    return look


RULE = {
    "Id": "keep-small",
    "Status": "Enabled",
    "Prefix": "runs/",
    "ExpirationInDays": "30",
    "NoncurrentVersionExpiration": {"NoncurrentDays": 7},
    "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
    "Transitions": [{"StorageClass": "STANDARD_IA", "TransitionInDays": 14}],
}
API_RULE = {
    "ID": "keep-small",
    "Status": "Enabled",
    "Filter": {"Prefix": "runs/"},
    "Expiration": {"Days": 30},
    "NoncurrentVersionExpiration": {"NoncurrentDays": 7},
    "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
    "Transitions": [{"Days": 14, "StorageClass": "STANDARD_IA"}],
}
BLOCKED = dict.fromkeys(("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets"), True)


def event_bridge(bucket: str) -> Any:
    """Return the bucket's EventBridge setting, which moto stores but does not return."""
    return s3_backends["123456789012"]["aws"].buckets[bucket].notification_configuration.event_bridge


def test_bucket(lifecycle: Lifecycle, world: Any) -> None:
    key = f"arn:aws:kms:us-east-1:123456789012:key/{world.key()}"
    encryption = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}
    cors = {"AllowedMethods": ["GET"], "AllowedOrigins": ["*"], "ExposedHeaders": ["x-a"], "MaxAge": "60", "Id": "one"}
    queue = "arn:aws:sqs:us-east-1:123456789012:" + world.queue().rsplit("/", 1)[-1]
    filtered = {"S3Key": {"Rules": [{"Name": "prefix", "Value": "runs/"}]}}
    versioning = setting("get_bucket_versioning", "Status")
    lifecycle(
        "AWS::S3::Bucket",
        {
            "AccessControl": "Private",
            "BucketEncryption": {
                "ServerSideEncryptionConfiguration": [
                    {"ServerSideEncryptionByDefault": encryption, "BucketKeyEnabled": "true"}
                ]
            },
            "PublicAccessBlockConfiguration": BLOCKED,
            "VersioningConfiguration": {"Status": "Enabled"},
            "LifecycleConfiguration": {"Rules": [RULE]},
            "NotificationConfiguration": {"EventBridgeConfiguration": {"EventBridgeEnabled": True}},
            "OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerPreferred"}]},
            **TAGGED,
        },
        ({}, setting("get_bucket_lifecycle_configuration", "Rules"), [API_RULE]),
        ({}, setting("get_public_access_block", "PublicAccessBlockConfiguration"), BLOCKED),
        ({}, versioning, "Enabled"),
        (
            {},
            setting("get_bucket_encryption", "ServerSideEncryptionConfiguration", "Rules"),
            [{"ApplyServerSideEncryptionByDefault": encryption, "BucketKeyEnabled": True}],
        ),
        ({}, event_bridge, {}),
        (
            {
                "NotificationConfiguration": {
                    "QueueConfigurations": [{"Event": "s3:ObjectCreated:*", "Queue": queue, "Filter": filtered}]
                }
            },
            lambda bucket: [
                (item["QueueArn"], item["Events"], item["Filter"]["Key"]["FilterRules"][0]["Value"])
                for item in s3("get_bucket_notification_configuration", Bucket=bucket)["QueueConfigurations"]
            ],
            [(queue, ["s3:ObjectCreated:*"], "runs/")],
        ),
        (
            {"NotificationConfiguration": None},
            setting("get_bucket_notification_configuration", "QueueConfigurations"),
            None,
        ),
        (
            {"BucketEncryption": None},
            setting("get_bucket_encryption"),
            "ServerSideEncryptionConfigurationNotFoundError",
        ),
        (
            {"PublicAccessBlockConfiguration": None},
            setting("get_public_access_block"),
            "NoSuchPublicAccessBlockConfiguration",
        ),
        ({"VersioningConfiguration": None}, versioning, "Suspended"),
        (
            {"LifecycleConfiguration": None},
            setting("get_bucket_lifecycle_configuration"),
            "NoSuchLifecycleConfiguration",
        ),
        (
            {"CorsConfiguration": {"CorsRules": [cors]}},
            setting("get_bucket_cors", "CORSRules"),
            [
                {
                    "AllowedMethods": ["GET"],
                    "AllowedOrigins": ["*"],
                    "ExposeHeaders": ["x-a"],
                    "MaxAgeSeconds": 60,
                    "ID": "one",
                }
            ],
        ),
        ({"CorsConfiguration": None}, setting("get_bucket_cors"), "NoSuchCORSConfiguration"),
        (
            {"AccelerateConfiguration": {"AccelerationStatus": "Enabled"}},
            setting("get_bucket_accelerate_configuration", "Status"),
            "Enabled",
        ),
        (
            {"AccessControl": "PublicRead"},
            lambda bucket: len(s3("get_bucket_acl", Bucket=bucket)["Grants"]),
            2,
        ),
        (
            {"OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}, "AccessControl": None},
            setting("get_bucket_ownership_controls", "OwnershipControls", "Rules"),
            [{"ObjectOwnership": "BucketOwnerEnforced"}],
        ),
        ({"Tags": None}, lambda bucket: set(bucket_tags(bucket)), {"team"}),
        ref=r"demo-thing-[0-9a-f]{12}",
        tags=bucket_tags,
        unchanged={"LoggingConfiguration": "tested separately: requires a bucket that the log service can write to"},
    )


def test_bucket_logging(context: Any, world: Any) -> None:
    boto3.client("s3").put_bucket_acl(Bucket=world.bucket(), ACL="log-delivery-write")
    provider = registry()["AWS::S3::Bucket"]
    properties = {"LoggingConfiguration": {"DestinationBucketName": world.bucket(), "LogFilePrefix": "x/"}}
    made = provider.create(context(), properties)
    status = setting("get_bucket_logging", "LoggingEnabled")
    assert status(made.physical_id) == {"TargetBucket": world.bucket(), "TargetPrefix": "x/"}
    provider.update(context(), made.physical_id, properties, {})
    assert status(made.physical_id) is None


def test_existing_bucket_fails_the_creation(context: Any, world: Any) -> None:
    with pytest.raises(ResourceFailure, match=r"'AWS::S3::Bucket' with identifier 'for-tests-0' already exists"):
        registry()["AWS::S3::Bucket"].create(context(), {"BucketName": world.bucket()})
    assert s3("head_bucket", Bucket=world.bucket())


def test_bucket_with_objects_is_not_deleted(context: Any, world: Any) -> None:
    with pytest.raises(boto3.client("s3").exceptions.ClientError, match="BucketNotEmpty"):
        registry()["AWS::S3::Bucket"].delete(context(), world.bucket(), {"BucketName": world.bucket()})


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"LifecycleConfiguration": {"Rules": [{**RULE, "Expire": 1}]}}, "Expire"),
        ({"LoggingConfiguration": {"Bucket": "x"}}, "Bucket"),
        ({"BucketEncryption": {"ServerSideEncryptionConfiguration": [{"Algorithm": "x"}]}}, "Algorithm"),
        ({"PublicAccessBlockConfiguration": {"BlockAll": True}}, "BlockAll"),
        ({"NotificationConfiguration": {"EmailConfigurations": []}}, "EmailConfigurations"),
    ],
)
def test_unknown_nested_setting_fails_and_deletes_the_bucket(properties: Any, named: str, context: Any) -> None:
    with pytest.raises(ResourceFailure, match=named):
        registry()["AWS::S3::Bucket"].create(context(), properties)
    assert s3("list_buckets")["Buckets"] == []


def test_bucket_policy(lifecycle: Lifecycle, world: Any) -> None:
    def policy(sid: str) -> dict[str, Any]:
        statement = {"Sid": sid, "Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": "*"}
        return {"Version": "2012-10-17", "Statement": [statement]}

    lifecycle(
        "AWS::S3::BucketPolicy",
        {"Bucket": world.bucket(), "PolicyDocument": policy("one")},
        (
            {"PolicyDocument": policy("two")},
            lambda bucket: json.loads(s3("get_bucket_policy", Bucket=bucket)["Policy"])["Statement"][0]["Sid"],
            "two",
        ),
        ref=world.bucket(),
    )


def kms(operation: str, **arguments: Any) -> Any:
    return getattr(boto3.client("kms"), operation)(**arguments)


def test_key(lifecycle: Lifecycle) -> None:
    def document(sid: str) -> dict[str, Any]:
        root = {"AWS": "arn:aws:iam::123456789012:root"}
        return {"Statement": [{"Sid": sid, "Effect": "Allow", "Principal": root, "Action": "kms:*", "Resource": "*"}]}

    def sid(key: str) -> str:
        policy = json.loads(kms("get_key_policy", KeyId=key, PolicyName="default")["Policy"])
        found: str = policy["Statement"][0]["Sid"]
        return found

    def rotation(key: str) -> Any:
        return kms("get_key_rotation_status", KeyId=key)["KeyRotationEnabled"]

    def metadata(name: str) -> Callable[[str], Any]:
        return lambda key: kms("describe_key", KeyId=key)["KeyMetadata"][name]

    def tags(key: str) -> dict[str, str]:
        return {tag["TagKey"]: tag["TagValue"] for tag in kms("list_resource_tags", KeyId=key)["Tags"]}

    lifecycle(
        "AWS::KMS::Key",
        {"KeyPolicy": document("one"), "EnableKeyRotation": True, "Description": "first", **TAGGED},
        ({}, sid, "one"),
        ({}, rotation, True),
        ({"EnableKeyRotation": None}, rotation, False),
        ({"KeyPolicy": document("two")}, sid, "two"),
        ({"KeyPolicy": None}, sid, "Enable IAM User Permissions"),
        ({"Description": "second"}, metadata("Description"), "second"),
        ({"Description": None}, metadata("Description"), ""),
        ({"Enabled": "false"}, metadata("Enabled"), False),
        ({"Enabled": None}, metadata("Enabled"), True),
        ({"Tags": None}, lambda key: set(tags(key)), {"team"}),
        ({"PendingWindowInDays": 7}, metadata("KeyState"), "Enabled"),
        ref=r"[0-9a-f-]{36}",
        tags=tags,
        unchanged={
            "BypassPolicyLockoutSafetyCheck": "a parameter of the calls, not a property of the key",
            "RotationPeriodInDays": "moto does not store a rotation period",
        },
    )


def test_alias(lifecycle: Lifecycle, world: Any) -> None:
    lifecycle(
        "AWS::KMS::Alias",
        {"AliasName": "alias/mine", "TargetKeyId": world.key()},
        (
            {"TargetKeyId": world.key(1)},
            lambda alias: kms("describe_key", KeyId=alias)["KeyMetadata"]["KeyId"],
            world.key(1),
        ),
        ref="alias/mine",
    )


def ssm(operation: str, **arguments: Any) -> Any:
    return getattr(boto3.client("ssm"), operation)(**arguments)


def test_parameter(lifecycle: Lifecycle) -> None:
    def described(*names: str) -> Callable[[str], Any]:
        def look(name: str) -> Any:
            found = ssm("describe_parameters", Filters=[{"Key": "Name", "Values": [name]}])["Parameters"][0]
            return tuple(found.get(key, "") for key in names)

        return look

    def tags(name: str) -> dict[str, str]:
        found = ssm("list_tags_for_resource", ResourceType="Parameter", ResourceId=name)["TagList"]
        return {tag["Key"]: tag["Value"] for tag in found}

    lifecycle(
        "AWS::SSM::Parameter",
        {"Name": "/demo/run", "Type": "String", "Value": "1", "Description": "d", "Tags": {"Name": "mine"}},
        ({"Value": "2"}, lambda name: ssm("get_parameter", Name=name)["Parameter"]["Value"], "2"),
        ({"Description": None}, described("Description"), ("",)),
        ({"Type": "StringList", "Value": "a,b"}, described("Type"), ("StringList",)),
        (
            {"Tier": "Advanced", "DataType": "text", "AllowedPattern": "[a-z,]+"},
            described("DataType", "AllowedPattern"),
            ("text", "[a-z,]+"),
        ),
        ({"Tags": None}, lambda name: set(tags(name)), {"team", "aws:cloudformation:stack-name"}),
        ref="/demo/run",
        tags=tags,
        unchanged={"Policies": "moto does not store parameter policies"},
    )


def test_secure_string_fails(context: Any) -> None:
    with pytest.raises(ResourceFailure, match="SecureString"):
        registry()["AWS::SSM::Parameter"].create(context(), {"Type": "SecureString", "Value": "x"})


def test_advanced_parameter_cannot_be_downgraded(context: Any) -> None:
    provider, plain = registry()["AWS::SSM::Parameter"], {"Type": "String", "Value": "x"}
    made = provider.create(context(), {**plain, "Tier": "Advanced"})
    with pytest.raises(ResourceFailure, match="can't downgrade"):
        provider.update(context(), made.physical_id, {**plain, "Tier": "Advanced"}, plain)


def test_repository(lifecycle: Lifecycle) -> None:
    ecr = boto3.client("ecr")
    old = {
        "rules": [
            {
                "rulePriority": 1,
                "selection": {
                    "tagStatus": "untagged",
                    "countType": "sinceImagePushed",
                    "countUnit": "days",
                    "countNumber": 365,
                },
                "action": {"type": "expire"},
            }
        ]
    }  # noqa: E501
    statement = {"Sid": "pull", "Effect": "Allow", "Principal": "*", "Action": "ecr:BatchGetImage"}

    def described(name: str) -> Any:
        found = ecr.describe_repositories(repositoryNames=[name])["repositories"][0]
        return found["imageTagMutability"], found["imageScanningConfiguration"]["scanOnPush"]

    def tags(name: str) -> dict[str, str]:
        found = ecr.list_tags_for_resource(resourceArn=f"arn:aws:ecr:us-east-1:123456789012:repository/{name}")
        return {tag["Key"]: tag["Value"] for tag in found["tags"]}

    def policy(operation: str, key: str) -> Callable[[str], Any]:
        def look(name: str) -> Any:
            try:
                return json.loads(getattr(ecr, operation)(repositoryName=name)[key])
            except ecr.exceptions.ClientError as error:
                return error.response["Error"]["Code"]

        return look

    lifecycle(
        "AWS::ECR::Repository",
        {
            "RepositoryName": "demo/images",
            "ImageTagMutability": "IMMUTABLE",
            **TAGGED,
            "LifecyclePolicy": {"LifecyclePolicyText": json.dumps(old)},
            "RepositoryPolicyText": {"Version": "2012-10-17", "Statement": [statement]},
        },
        ({}, policy("get_lifecycle_policy", "lifecyclePolicyText"), old),
        ({}, lambda name: policy("get_repository_policy", "policyText")(name)["Statement"], [statement]),
        ({"LifecyclePolicy": None}, policy("get_lifecycle_policy", "x"), "LifecyclePolicyNotFoundException"),
        ({"RepositoryPolicyText": None}, policy("get_repository_policy", "x"), "RepositoryPolicyNotFoundException"),
        (
            {"ImageTagMutability": None, "ImageScanningConfiguration": {"ScanOnPush": "true"}},
            described,
            ("MUTABLE", True),
        ),
        ({"ImageScanningConfiguration": None}, described, ("MUTABLE", False)),
        ({"Tags": None}, lambda name: set(tags(name)), {"team", "aws:cloudformation:stack-name"}),
        ({"EmptyOnDelete": True}, described, ("MUTABLE", False)),
        ref="demo/images",
        tags=tags,
    )
