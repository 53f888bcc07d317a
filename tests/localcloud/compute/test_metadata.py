"""An instance's metadata service, accessed over HTTP and through boto3's credential provider."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.credentials import InstanceMetadataProvider
from botocore.utils import InstanceMetadataFetcher

from localcloud.compute.machines.metadata import RENEWAL_SECONDS, SESSION_SECONDS

PROFILE = {"IamInstanceProfile": {"Name": "node"}}
REQUIRED = {"HttpTokens": "required", "InstanceMetadataTags": "enabled"}
TTL = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN = "X-aws-ec2-metadata-token"


class Metadata:
    """A client for one instance's metadata service."""

    def __init__(self, cloud: Any, instance: str) -> None:
        cloud.until_state(instance, "running")
        self.url = cloud.compute.inventory.get(instance).machine.metadata_url

    def ask(self, method: str, path: str, **headers: str) -> tuple[int, str]:
        request = urllib.request.Request(
            self.url + path, method=method, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status), answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def token(self, seconds: int = 60) -> str:
        status, token = self.ask("PUT", "latest/api/token", **{TTL: str(seconds)})
        assert status == 200
        return token

    def get(self, path: str) -> str | None:
        status, text = self.ask("GET", f"latest/{path}", **{TOKEN: self.token()})
        assert status in (200, 404)
        return text if status == 200 else None


@pytest.fixture(scope="module")
def metadata(cloud) -> Metadata:
    (instance,) = cloud.run("sleep 1000", MetadataOptions=REQUIRED, **PROFILE)
    cloud.ec2.create_tags(Resources=[instance], Tags=[{"Key": "team", "Value": "ml"}])
    return Metadata(cloud, instance)


def test_version_1_is_refused_if_tokens_are_required(metadata):
    assert metadata.ask("GET", "latest/meta-data/instance-id")[0] == 401
    assert metadata.ask("GET", "latest/meta-data/instance-id", **{TOKEN: "made-up"})[0] == 401
    assert metadata.ask("GET", "latest/meta-data/instance-id", **{TOKEN: metadata.token()})[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 400), ({TTL: "0"}, 400), ({TTL: "21601"}, 400), ({TTL: "soon"}, 400), ({TTL: "1"}, 200),
        ({TTL: "21600"}, 200), ({TTL: "60", "X-Forwarded-For": "10.0.0.1"}, 403),
    ],
)  # fmt: skip
def test_token_requires_a_time_to_live_and_no_proxy(metadata, headers, status):
    assert metadata.ask("PUT", "latest/api/token", **headers)[0] == status


def test_token_expires(cloud, metadata):
    token = metadata.token(60)
    cloud.advance(59)
    assert metadata.ask("GET", "latest/meta-data/", **{TOKEN: token})[0] == 200
    cloud.advance(2)
    assert metadata.ask("GET", "latest/meta-data/", **{TOKEN: token})[0] == 401


def test_paths(cloud, metadata):
    instance = metadata.get("meta-data/instance-id")
    record = cloud.compute.inventory.get(instance)
    described = cloud.ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]
    mac = described["NetworkInterfaces"][0]["MacAddress"]
    interface = f"meta-data/network/interfaces/macs/{mac}"
    expected = {
        "meta-data/instance-type": "m5.large",
        "meta-data/ami-id": "ami-0123456789abcdef0",
        "meta-data/local-ipv4": described["PrivateIpAddress"],
        "meta-data/local-hostname": described["PrivateDnsName"],
        "meta-data/mac": mac,
        "meta-data/placement/availability-zone": "eu-west-1a",
        "meta-data/placement/availability-zone-id": "euw1-az3",
        "meta-data/placement/region": "eu-west-1",
        "meta-data/instance-life-cycle": "on-demand",
        "meta-data/tags/instance": "team",
        "meta-data/tags/instance/team": "ml",
        "meta-data/iam/security-credentials/": "node",
        "meta-data/network/interfaces/macs/": f"{mac}/",
        f"{interface}/subnet-id": cloud.subnets[0],
        f"{interface}/interface-id": described["NetworkInterfaces"][0]["NetworkInterfaceId"],
        f"{interface}/security-groups": described["SecurityGroups"][0]["GroupName"],
        "meta-data/security-groups": described["SecurityGroups"][0]["GroupName"],
        # Source: github.com/aws/amazon-ec2-metadata-mock, pkg/config/defaults, and the categories in AWS's user guide.
        "meta-data/ami-manifest-path": "(unknown)",
        "meta-data/block-device-mapping/": "ami\nroot",
        "meta-data/block-device-mapping/root": described["RootDeviceName"],
        "meta-data/events/": "maintenance/",
        "meta-data/events/maintenance/": "history\nscheduled",
        "meta-data/events/maintenance/scheduled": "[]",
        f"{interface}/vpc-id": cloud.vpc,
        f"{interface}/vpc-ipv4-cidr-block": "127.64.0.0/16",
        f"{interface}/subnet-ipv4-cidr-block": "127.64.0.0/24",
        "user-data": "#!/bin/sh\nsleep 1000\n",
    }
    assert {path: metadata.get(path) for path in expected} == expected
    assert metadata.url.startswith(f"http://{record.private_address}:")
    for path in (
        "meta-data/spot/instance-action", "meta-data/spot/termination-time", "meta-data/public-keys/",
        "meta-data/events/recommendations/rebalance", "meta-data/autoscaling/target-lifecycle-state",
        "meta-data/no-such-thing", "meta-data/instance-id/deeper",
    ):  # fmt: skip
        assert metadata.get(path) is None, path
    assert {"instance-id", "placement/", "iam/"} <= set(metadata.get("meta-data/").splitlines())
    document = json.loads(metadata.get("dynamic/instance-identity/document"))
    assert (document["instanceId"], document["region"], document["accountId"]) == (
        instance,
        "eu-west-1",
        "123456789012",
    )
    info = json.loads(metadata.get("meta-data/iam/info"))
    assert info["InstanceProfileArn"] == "arn:aws:iam::123456789012:instance-profile/node"


def test_version_1_and_tags_follow_the_options(cloud):
    (instance,) = cloud.run(MetadataOptions={"HttpTokens": "optional"})
    metadata = Metadata(cloud, instance)
    assert metadata.ask("GET", "latest/meta-data/instance-id") == (200, instance)
    assert metadata.get("meta-data/tags/instance") is None
    assert metadata.get("meta-data/iam/info") is None
    cloud.ec2.modify_instance_metadata_options(
        InstanceId=instance, HttpTokens="required", HttpEndpoint="enabled", HttpPutResponseHopLimit=2,
        InstanceMetadataTags="enabled",
    )  # fmt: skip
    assert metadata.ask("GET", "latest/meta-data/instance-id")[0] == 401
    assert metadata.get("meta-data/tags/instance") == ""


def test_disabled_endpoint_is_forbidden(cloud):
    (instance,) = cloud.run(MetadataOptions={"HttpEndpoint": "disabled"})
    metadata = Metadata(cloud, instance)
    assert metadata.ask("PUT", "latest/api/token", **{TTL: "60"})[0] == 403
    assert metadata.ask("GET", "latest/meta-data/instance-id")[0] == 403


def test_boto3_loads_credentials(cloud, metadata):
    fetcher = InstanceMetadataFetcher(config={"ec2_metadata_service_endpoint": metadata.url})
    found = InstanceMetadataProvider(iam_role_fetcher=fetcher).load()
    frozen = found.get_frozen_credentials()
    session = boto3.Session(frozen.access_key, frozen.secret_key, frozen.token, region_name="eu-west-1")
    sts = session.client("sts", endpoint_url=cloud.endpoint_url, config=Config(retries={"total_max_attempts": 1}))
    instance = metadata.get("meta-data/instance-id")
    assert sts.get_caller_identity()["Arn"] == f"arn:aws:sts::123456789012:assumed-role/node/{instance}"


def test_credentials_are_cached_and_renewed_before_they_expire(cloud, metadata):
    def current() -> dict[str, str]:
        return dict(json.loads(metadata.get("meta-data/iam/security-credentials/node")))

    first = current()
    assert first["Code"] == "Success"
    assert first["Expiration"].endswith("Z")
    assert current()["AccessKeyId"] == first["AccessKeyId"]
    cloud.advance(SESSION_SECONDS - RENEWAL_SECONDS + 1)
    assert current()["AccessKeyId"] != first["AccessKeyId"]


def test_role_that_does_not_trust_ec2_has_no_credentials(cloud):
    (instance,) = cloud.run(IamInstanceProfile={"Name": "broken"})
    metadata = Metadata(cloud, instance)
    answer = json.loads(metadata.get("meta-data/iam/security-credentials/broken"))
    assert answer["Code"] == "AssumeRoleUnauthorizedAccess"
    assert "AccessKeyId" not in answer
