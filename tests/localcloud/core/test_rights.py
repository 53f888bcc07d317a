"""Permissions of roles on stored resources: launches, tags, passed roles and resource policies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from localcloud.cloud import LocalCloud
from tests.localcloud.core.conftest import as_role, make_role

ACCOUNT = "123456789012"
EC2 = f"arn:aws:ec2:us-east-1:{ACCOUNT}"


def refused(code: str, words: str = "") -> pytest.RaisesExc:
    def fits(error: ClientError) -> bool:
        return error.response["Error"]["Code"] == code and words in error.response["Error"]["Message"]

    return pytest.RaisesExc(ClientError, check=fits)


LAUNCH_PERMISSIONS = {
    "Action": "ec2:RunInstances",
    "Resource": [*(f"{EC2}:{kind}/*" for kind in ("instance", "volume", "network-interface", "subnet"))]
    + ["arn:aws:ec2:us-east-1::image/*"],
}


def missing_access(cloud: LocalCloud, role_arn: str, service: str, call: str, **arguments: Any) -> str:
    """Return the missing action and resource of a denied call."""
    with pytest.raises(ClientError) as caught:
        getattr(as_role(cloud, role_arn, service), call)(**arguments)
    message: str = caught.value.response["Error"]["Message"]
    assert "not authorized to perform" in message, message
    return message.split("perform: ", 1)[1].split(" because ", 1)[0].replace(" on resource:", "")


def test_launch_requires_access_to_every_resource_and_pass_role(cloud: LocalCloud) -> None:
    iam = cloud.clients.client("iam")
    node = make_role(cloud, "launched-node")
    iam.create_instance_profile(InstanceProfileName="launched")
    iam.add_role_to_instance_profile(InstanceProfileName="launched", RoleName="launched-node")
    launch = {
        "ImageId": "ami-12345678",
        "MinCount": 1,
        "MaxCount": 1,
        "IamInstanceProfile": {"Name": "launched"},
        "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "b"}]}],
    }
    none = make_role(cloud, "launch-none", {"Action": "ec2:RunInstances", "Resource": f"{EC2}:instance/*"})
    assert missing_access(cloud, none, "ec2", "run_instances", **launch) == f"ec2:RunInstances {EC2}:volume/*"
    untagged = make_role(cloud, "launch-untagged", LAUNCH_PERMISSIONS)
    assert missing_access(cloud, untagged, "ec2", "run_instances", **launch) == f"ec2:CreateTags {EC2}:instance/*"
    at_launch = {"StringEquals": {"ec2:CreateAction": "RunInstances"}}
    tag = {"Action": "ec2:CreateTags", "Resource": f"{EC2}:instance/*", "Condition": at_launch}
    passing_none = make_role(cloud, "launch-passing-none", LAUNCH_PERMISSIONS, tag)
    assert missing_access(cloud, passing_none, "ec2", "run_instances", **launch) == f"iam:PassRole {node}"
    assert missing_access(cloud, passing_none, "ec2", "create_tags", Resources=["i-12345678"], Tags=[{"Key": "a"}]) == (
        f"ec2:CreateTags {EC2}:instance/i-12345678"
    )


def test_group_with_a_template_requires_run_instances_and_pass_role(cloud: LocalCloud) -> None:
    iam, ec2 = cloud.clients.client("iam"), cloud.clients.client("ec2")
    node = make_role(cloud, "grouped-node")
    iam.create_instance_profile(InstanceProfileName="grouped")
    iam.add_role_to_instance_profile(InstanceProfileName="grouped", RoleName="grouped-node")
    data = {"ImageId": "ami-12345678", "InstanceType": "c7i.large", "IamInstanceProfile": {"Name": "grouped"}}
    template = ec2.create_launch_template(LaunchTemplateName="grouped", LaunchTemplateData=data)["LaunchTemplate"]
    group = {
        "AutoScalingGroupName": "grouped",
        "MinSize": 0,
        "MaxSize": 1,
        "LaunchTemplate": {"LaunchTemplateId": template["LaunchTemplateId"], "Version": "$Latest"},
        "AvailabilityZones": ["us-east-1a"],
    }
    create = {"Action": "autoscaling:*", "Resource": "*"}
    only_create = make_role(cloud, "group-create", create)
    lacking = missing_access(cloud, only_create, "autoscaling", "create_auto_scaling_group", **group)
    assert lacking == f"ec2:RunInstances {EC2}:instance/*"
    no_role = make_role(cloud, "group-launch", create, {"Action": "ec2:RunInstances", "Resource": "*"})
    lacking = missing_access(cloud, no_role, "autoscaling", "create_auto_scaling_group", **group)
    assert lacking == f"iam:PassRole {node}"


def test_resource_tags_are_condition_keys(cloud: LocalCloud) -> None:
    ec2 = cloud.clients.client("ec2")
    mine, other = (ec2.create_vpc(CidrBlock="10.8.0.0/16")["Vpc"]["VpcId"] for _ in range(2))
    ec2.create_tags(Resources=[mine], Tags=[{"Key": "team", "Value": "red"}])
    condition = {"StringEquals": {"aws:ResourceTag/team": "red", "ec2:ResourceTag/team": "red"}}
    arn = make_role(cloud, "tag-scoped", {"Action": "ec2:DeleteVpc", "Resource": "*", "Condition": condition})
    role = as_role(cloud, arn, "ec2")
    with refused("UnauthorizedOperation", f"vpc/{other}"):
        role.delete_vpc(VpcId=other)
    role.delete_vpc(VpcId=mine)


def test_bucket_policy_grants_to_a_role_and_its_deny_wins(cloud: LocalCloud) -> None:
    root = cloud.clients.client("s3")
    root.create_bucket(Bucket="policed")
    root.put_object(Bucket="policed", Key="open/k", Body=b"x")
    root.put_object(Bucket="policed", Key="shut/k", Body=b"x")
    arn = make_role(cloud, "policed", {"Action": "s3:GetObject", "Resource": "arn:aws:s3:::policed/shut/*"})
    grant = {"Effect": "Allow", "Principal": {"AWS": arn}, "Action": "s3:GetObject"}
    deny = {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": "arn:aws:s3:::policed/shut/*"}
    statements = [{**grant, "Resource": "arn:aws:s3:::policed/open/*"}, deny]
    root.put_bucket_policy(Bucket="policed", Policy=json.dumps({"Version": "2012-10-17", "Statement": statements}))
    s3 = as_role(cloud, arn, "s3")
    assert s3.get_object(Bucket="policed", Key="open/k")["Body"].read() == b"x"
    with refused("AccessDenied", "explicit deny in a resource-based policy"):
        s3.get_object(Bucket="policed", Key="shut/k")


def test_key_policy_must_also_allow(cloud: LocalCloud) -> None:
    kms = cloud.clients.client("kms")
    make_role(cloud, "other", {"Action": "kms:Encrypt", "Resource": "*"})
    only_other = {"Effect": "Allow", "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:role/other"}}
    closed_policy = {"Version": "2012-10-17", "Statement": [{**only_other, "Action": "kms:*", "Resource": "*"}]}
    closed = kms.create_key(Policy=json.dumps(closed_policy), BypassPolicyLockoutSafetyCheck=True)
    closed = closed["KeyMetadata"]["Arn"]
    opened = kms.create_key()["KeyMetadata"]["Arn"]
    kms.create_alias(AliasName="alias/opened", TargetKeyId=opened)
    role = as_role(cloud, make_role(cloud, "encrypts", {"Action": "kms:Encrypt", "Resource": "*"}), "kms")
    assert role.encrypt(KeyId="alias/opened", Plaintext=b"x")["KeyId"] == opened
    with refused("AccessDeniedException", "no resource-based policy"):
        role.encrypt(KeyId=closed, Plaintext=b"x")


def test_key_of_an_upload_is_authorised(cloud: LocalCloud) -> None:
    kms, root = cloud.clients.client("kms"), cloud.clients.client("s3")
    first, second = (kms.create_key()["KeyMetadata"]["Arn"] for _ in range(2))
    root.create_bucket(Bucket="ownkeys")
    rights = [
        {"Action": ["s3:GetObject", "s3:PutObject"], "Resource": "arn:aws:s3:::ownkeys/*"},
        {"Action": ["kms:GenerateDataKey", "kms:Decrypt"], "Resource": first},
    ]
    s3 = as_role(cloud, make_role(cloud, "ownkeys", *rights), "s3")
    s3.put_object(Bucket="ownkeys", Key="1", Body=b"x", ServerSideEncryption="aws:kms", SSEKMSKeyId=first)
    with refused("AccessDenied", second):
        s3.put_object(Bucket="ownkeys", Key="2", Body=b"x", ServerSideEncryption="aws:kms", SSEKMSKeyId=second)
    root.put_object(Bucket="ownkeys", Key="2", Body=b"x", ServerSideEncryption="aws:kms", SSEKMSKeyId=second)
    assert s3.get_object(Bucket="ownkeys", Key="1")["Body"].read() == b"x"
    with refused("AccessDenied", "kms:Decrypt"):
        s3.get_object(Bucket="ownkeys", Key="2")


def test_usage_lists_the_actions_of_a_role(cloud: LocalCloud) -> None:
    rights = {"Action": ["ec2:DescribeVpcs", "ec2:DescribeSubnets"], "Resource": "*"}
    arn = make_role(cloud, "frugal", rights)
    as_role(cloud, arn, "ec2").describe_vpcs()
    used = {action for (who, action), _ in cloud.authority.usage() if who == arn}
    assert used == {"ec2:DescribeVpcs"}


def test_statement_is_needed_if_no_other_allows_the_access(cloud: LocalCloud) -> None:
    bucket = "arn:aws:s3:::needy"
    cloud.clients.client("s3").create_bucket(Bucket="needy")
    arn = make_role(
        cloud,
        "needy",
        {"Sid": "Keep", "Action": ["s3:GetObject", "s3:PutObject"], "Resource": f"{bucket}/kept/*"},
        {"Sid": "KeepAgain", "Action": "s3:PutObject", "Resource": f"{bucket}/kept/twice/*"},
        {"Sid": "List", "Action": "s3:ListBucket", "Resource": bucket},
    )
    s3 = as_role(cloud, arn, "s3")
    s3.put_object(Bucket="needy", Key="kept/twice/1", Body=b"x")
    assert [key for key, _ in cloud.authority.needs() if key[0] == arn] == []
    s3.put_object(Bucket="needy", Key="kept/1", Body=b"x")
    assert [key[1:] for key, _ in cloud.authority.needs() if key[0] == arn] == [("Keep", "s3:PutObject")]


def test_statement_is_not_needed_if_a_bucket_policy_allows_the_access(cloud: LocalCloud) -> None:
    root = cloud.clients.client("s3")
    root.create_bucket(Bucket="granted")
    bucket = "arn:aws:s3:::granted"
    arn = make_role(cloud, "granted", {"Sid": "List", "Action": "s3:ListBucket", "Resource": bucket})
    granted = {"Effect": "Allow", "Principal": {"AWS": arn}, "Action": "s3:ListBucket", "Resource": bucket}
    root.put_bucket_policy(Bucket="granted", Policy=json.dumps({"Version": "2012-10-17", "Statement": [granted]}))
    as_role(cloud, arn, "s3").list_objects_v2(Bucket="granted")
    assert [key for key, _ in cloud.authority.needs() if key[0] == arn] == []
    root.delete_bucket_policy(Bucket="granted")
    as_role(cloud, arn, "s3").list_objects_v2(Bucket="granted")
    assert [key for key, _ in cloud.authority.needs() if key[0] == arn] == [(arn, "List", "s3:ListBucket")]
