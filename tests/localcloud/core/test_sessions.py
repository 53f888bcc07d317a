"""Role sessions (trust, session policies, duration and expiry), user keys and signatures."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from localcloud.api import Credentials
from localcloud.cloud import LocalCloud
from tests.localcloud.core.conftest import as_role, client_of, make_role

ACCOUNT = "123456789012"


def refused(code: str, words: str = "") -> pytest.RaisesExc:
    def fits(error: ClientError) -> bool:
        return error.response["Error"]["Code"] == code and words in error.response["Error"]["Message"]

    return pytest.RaisesExc(ClientError, check=fits)


def role_trusting(cloud: LocalCloud, name: str, statement: dict[str, Any], *rights: dict[str, Any]) -> str:
    iam = cloud.clients.client("iam")
    trust = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **statement}]}
    arn: str = iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trust))["Role"]["Arn"]
    if rights:
        policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **one} for one in rights]}
        iam.put_role_policy(RoleName=name, PolicyName="own", PolicyDocument=json.dumps(policy))
    return arn


def credentials_of(answer: dict[str, Any]) -> Credentials:
    c = answer["Credentials"]
    return Credentials(c["AccessKeyId"], c["SecretAccessKey"], c["SessionToken"], c["Expiration"].timestamp())


def test_external_id_is_required(cloud: LocalCloud) -> None:
    condition = {"StringEquals": {"sts:ExternalId": "secret-word"}}
    trust = {"Action": "sts:AssumeRole", "Principal": {"AWS": ACCOUNT}, "Condition": condition}
    arn = role_trusting(cloud, "external", trust)
    sts = cloud.clients.client("sts")
    with refused("AccessDenied", "sts:AssumeRole"):
        sts.assume_role(RoleArn=arn, RoleSessionName="one")
    with refused("AccessDenied"):
        sts.assume_role(RoleArn=arn, RoleSessionName="one", ExternalId="guess")
    found = sts.assume_role(RoleArn=arn, RoleSessionName="one", ExternalId="secret-word")
    assert found["AssumedRoleUser"]["Arn"] == f"arn:aws:sts::{ACCOUNT}:assumed-role/external/one"


def test_session_tags_require_permission_and_are_principal_tags(cloud: LocalCloud) -> None:
    untagged = role_trusting(cloud, "untagged", {"Action": "sts:AssumeRole", "Principal": {"AWS": ACCOUNT}})
    sts = cloud.clients.client("sts")
    tags = [{"Key": "team", "Value": "red"}]
    with refused("AccessDenied"):
        sts.assume_role(RoleArn=untagged, RoleSessionName="one", Tags=tags)
    own_folder = {"Action": "ssm:GetParameter", "Resource": "arn:aws:ssm:*:*:parameter/${aws:PrincipalTag/team}/*"}
    both = {"Action": ["sts:AssumeRole", "sts:TagSession"], "Principal": {"AWS": ACCOUNT}}
    tagged = role_trusting(cloud, "tagged", both, own_folder)
    root = cloud.clients.client("ssm")
    for name in ("/red/x", "/blue/x"):
        root.put_parameter(Name=name, Value="v", Type="String")
    session = credentials_of(sts.assume_role(RoleArn=tagged, RoleSessionName="one", Tags=tags))
    ssm = client_of(cloud, session, "ssm")
    assert ssm.get_parameter(Name="/red/x")["Parameter"]["Value"] == "v"
    with refused("AccessDeniedException", "parameter/blue/x"):
        ssm.get_parameter(Name="/blue/x")


def test_session_policy_is_enforced(cloud: LocalCloud) -> None:
    trust = {"Action": "sts:AssumeRole", "Principal": {"AWS": ACCOUNT}}
    arn = role_trusting(cloud, "broad", trust, {"Action": "*", "Resource": "*"})
    only = {"Effect": "Allow", "Action": "ec2:DescribeVpcs", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [only]})
    sts = cloud.clients.client("sts")
    session = credentials_of(sts.assume_role(RoleArn=arn, RoleSessionName="less", Policy=policy))
    ec2 = client_of(cloud, session, "ec2")
    ec2.describe_vpcs()
    with refused("UnauthorizedOperation", "no session policy allows"):
        ec2.describe_subnets()
    with refused("MalformedPolicyDocument"):
        sts.assume_role(RoleArn=arn, RoleSessionName="less", Policy="{")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"DurationSeconds": 3601}, "MaxSessionDuration"),
        ({"RoleSessionName": "not a name"}, "RoleSessionName 'not a name'"),
    ],
)
def test_invalid_session_parameters_are_rejected(cloud: LocalCloud, arguments: dict[str, Any], words: str) -> None:
    name = f"limits-{len(words)}"
    arn = role_trusting(cloud, name, {"Action": "sts:AssumeRole", "Principal": {"AWS": ACCOUNT}})
    with refused("ValidationError", words):
        cloud.clients.client("sts").assume_role(**{"RoleArn": arn, "RoleSessionName": "fine", **arguments})


def test_role_chaining_requires_both_policies_and_lasts_at_most_an_hour(cloud: LocalCloud) -> None:
    second = f"arn:aws:iam::{ACCOUNT}:role/second"
    first = make_role(cloud, "first", {"Action": "sts:AssumeRole", "Resource": second})
    stranger = make_role(cloud, "stranger")
    trust = {"Action": "sts:AssumeRole", "Principal": {"AWS": [first, stranger]}}
    role_trusting(cloud, "second", trust)
    cloud.clients.client("iam").update_role(RoleName="second", MaxSessionDuration=7200)
    sts = as_role(cloud, first, "sts")
    session = credentials_of(sts.assume_role(RoleArn=second, RoleSessionName="chained"))
    assert client_of(cloud, session, "sts").get_caller_identity()["Arn"].endswith("assumed-role/second/chained")
    with refused("ValidationError", "role chaining"):
        sts.assume_role(RoleArn=second, RoleSessionName="chained", DurationSeconds=7200)
    third = role_trusting(cloud, "third", {"Action": "sts:AssumeRole", "Principal": {"AWS": ACCOUNT}})
    with refused("AccessDenied"):
        sts.assume_role(RoleArn=third, RoleSessionName="chained")


def test_sessions_of_a_deleted_role_are_invalid(cloud: LocalCloud) -> None:
    sts = as_role(cloud, make_role(cloud, "shortlived"), "sts")
    sts.get_caller_identity()
    cloud.clients.client("iam").delete_role(RoleName="shortlived")
    with refused("InvalidClientTokenId"):
        sts.get_caller_identity()


def test_user_keys_have_the_permissions_of_user_and_groups(cloud: LocalCloud) -> None:
    iam = cloud.clients.client("iam")
    iam.create_user(UserName="ada")
    iam.create_group(GroupName="readers")
    iam.add_user_to_group(GroupName="readers", UserName="ada")
    statement = {"Effect": "Allow", "Action": "ec2:DescribeVpcs", "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    iam.put_group_policy(GroupName="readers", PolicyName="read", PolicyDocument=document)
    key = iam.create_access_key(UserName="ada")["AccessKey"]
    user = boto3.session.Session(key["AccessKeyId"], key["SecretAccessKey"], region_name="us-east-1")
    assert user.client("sts", endpoint_url=cloud.endpoint_url).get_caller_identity()["Arn"].endswith("user/ada")
    ec2 = user.client("ec2", endpoint_url=cloud.endpoint_url)
    ec2.describe_vpcs()
    with refused("UnauthorizedOperation", "user/ada"):
        ec2.describe_subnets()
    iam.update_access_key(UserName="ada", AccessKeyId=key["AccessKeyId"], Status="Inactive")
    with refused("AuthFailure"):
        ec2.describe_vpcs()


def test_wrong_secret_key_is_rejected(cloud: LocalCloud) -> None:
    arn = make_role(cloud, "forged")
    real = cloud.identity.issue(arn, "s", trusted_service="ec2.amazonaws.com", duration_seconds=900)
    forged = Credentials(real.access_key_id, "guess", real.session_token, real.expires_unix_seconds)
    for service, call in (("s3", "list_buckets"), ("sts", "get_caller_identity"), ("lambda", "list_functions")):
        with refused("SignatureDoesNotMatch"):
            getattr(client_of(cloud, forged, service), call)()


@pytest.mark.parametrize(
    ("service", "call", "code"),
    [
        ("s3", "list_buckets", "InvalidAccessKeyId"),
        ("ec2", "describe_vpcs", "AuthFailure"),
        ("ssm", "describe_parameters", "UnrecognizedClientException"),
        ("lambda", "list_functions", "UnrecognizedClientException"),
        ("iam", "list_roles", "InvalidClientTokenId"),
    ],
)
def test_unknown_keys_return_the_error_code_of_each_service(
    cloud: LocalCloud, service: str, call: str, code: str
) -> None:
    stranger = Credentials("AKIASTRANGER00000000", "x", "y", 0)
    with refused(code):
        getattr(client_of(cloud, stranger, service), call)()


def test_presigned_urls_expire_and_cannot_be_changed(cloud: LocalCloud) -> None:
    s3 = cloud.clients.client("s3")
    s3.create_bucket(Bucket="links")
    s3.put_object(Bucket="links", Key="a b+c", Body=b"body")
    url = s3.generate_presigned_url("get_object", Params={"Bucket": "links", "Key": "a b+c"}, ExpiresIn=60)
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.read() == b"body"
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(url.replace("X-Amz-Expires=60", "X-Amz-Expires=6000"), timeout=10)
    expired = s3.generate_presigned_url("get_object", Params={"Bucket": "links", "Key": "a b+c"}, ExpiresIn=-1)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(expired, timeout=10)
    assert b"Request has expired" in caught.value.read()


def test_session_expires_after_its_duration(cloud: LocalCloud) -> None:
    arn = make_role(cloud, "timed")
    session = cloud.identity.issue(arn, "s", trusted_service="ec2.amazonaws.com", duration_seconds=900)
    assert 890 < session.expires_unix_seconds - time.time() <= 900
