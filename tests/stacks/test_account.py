"""`check --aws` and `ami` against the embedded cloud."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from botocore.exceptions import NoCredentialsError

from localcloud.cloud import LocalCloud
from localcloud.tokens import TOKEN_HEADER
from stacks.account import account_problems
from stacks.account.account import Templates
from stacks.capacity.catalogue import catalogue
from stacks.config import DeploymentConfig
from stacks.errors import ConfigError, Problem
from stacks.loading import load
from stacks.loading.ami_lock import ImageLookupError, current_image, read_lock, write_lock
from tests.localcloud.core.conftest import as_role, make_role

from .conftest import ROOT

REGION = "us-east-1"
PARAMETER = "/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-2.13-amazon-linux-2023/latest/ami-id"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    running = LocalCloud(tmp_path_factory.mktemp("cloud"), region=REGION)
    running.start()
    yield running
    running.close()


def order(cloud: LocalCloud, path: str, **body: Any) -> None:
    url, headers = f"{cloud.endpoint_url}/_localcloud/{path}", {TOKEN_HEADER: cloud.control_token}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


def deployment(path: Path, capacity: Mapping[str, Any], **sections: Any) -> DeploymentConfig:
    document = {"name": "x", "capacity": dict(capacity), "training": {"dataset": "d"}, **sections}
    file = path / "x.yaml"
    file.write_text(yaml.safe_dump(document))
    return load(file)


def template(**data: Any) -> Templates:
    """Return a template like the CDK's, with references to resources that are not deployed."""
    launch = {
        "ImageId": {"Ref": "Image"},
        "IamInstanceProfile": {"Arn": {"Fn::GetAtt": ["Profile", "Arn"]}},
        "NetworkInterfaces": [{"DeviceIndex": 0, "Groups": [{"Fn::ImportValue": "x-NetworkStack:Nodes"}]}],
        "UserData": {"Fn::Base64": {"Fn::Join": ["", ["#!/bin/sh\n: ", {"Ref": "Bucket"}]]}},
        **data,
    }
    parameter = {"Type": "AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>", "Default": PARAMETER}
    resource = {"Type": "AWS::EC2::LaunchTemplate", "Properties": {"LaunchTemplateData": launch}}
    return {"TrainingStack": {"Parameters": {"Image": parameter}, "Resources": {"Template": resource}}}


@cache  # the cloud has hundreds of images: a list takes a second
def an_image(cloud: LocalCloud) -> str:
    return str(cloud.clients.client("ec2").describe_images(Owners=["amazon"])["Images"][0]["ImageId"])


def problems_of(
    cloud: LocalCloud, config: DeploymentConfig, templates: Callable[[], Templates] = template
) -> list[Problem]:
    return account_problems(
        config, templates=lambda: fixed(templates(), an_image(cloud)), client_of=cloud.clients.client
    )


def fixed(templates: Templates, image: str) -> Templates:
    """Set an image id: unlike AWS's RunInstances, that of the embedded cloud does not support `resolve:ssm:`."""
    for one in templates["TrainingStack"]["Resources"].values():
        one["Properties"]["LaunchTemplateData"]["ImageId"] = image
    return templates


def rules(problems: list[Problem], severity: str) -> str:
    return "\n".join(str(one) for one in problems if one.severity == severity)


SPOT = {"instance_types": ["g6.xlarge", "g6.2xlarge", "g5.xlarge"], "nodes": 1}


def test_a_valid_deployment_has_no_error(cloud: LocalCloud, tmp_path: Path) -> None:
    found = problems_of(cloud, deployment(tmp_path, SPOT))
    assert rules(found, "error") == ""
    assert "which do not exist before the first deploy" in rules(found, "warning")
    assert cloud.clients.client("ec2").describe_instances()["Reservations"] == [], "nothing is launched"


def test_reports_a_small_quota(cloud: LocalCloud, tmp_path: Path) -> None:
    order(cloud, "service-quotas/quota", quota_code="L-3819A6DF", value=8)
    try:
        found = problems_of(
            cloud, deployment(tmp_path, {**SPOT, "nodes": 2, "instance_types": ["g6.2xlarge", "g6.xlarge"]})
        )
    finally:
        order(cloud, "service-quotas/quota", quota_code="L-3819A6DF", value=4096)
    assert "2 x g6.2xlarge require 16 vCPUs" in rules(found, "error")
    assert "L-3819A6DF" in rules(found, "error")


def test_quota_depends_on_family_and_market() -> None:
    types = catalogue().types
    assert types["c7i.2xlarge"].quota_code(spot=False) == "L-1216C47A"
    assert types["g6e.xlarge"].quota_code(spot=True) == "L-3819A6DF"
    assert types["p4d.24xlarge"].quota_code(spot=True) == "L-7212CCBC"
    assert types["p5.48xlarge"].quota_code(spot=True) == "L-C4BD4855"
    assert types["p5.48xlarge"].quota_code(spot=False) == "L-417A185B"
    assert types["p6-b200.48xlarge"].quota_code(spot=True) is None


def test_reports_types_missing_from_zones(cloud: LocalCloud, tmp_path: Path) -> None:
    network = {"zones": ["e"]}
    found = problems_of(cloud, deployment(tmp_path, SPOT, network=network))
    assert "is not offered in the zones e" in rules(found, "error")
    found = problems_of(cloud, deployment(tmp_path, SPOT, network={"zones": ["a", "e"]}))
    assert "is not offered in zone e" in rules(found, "warning")


def test_reports_a_low_spot_placement_score(cloud: LocalCloud, tmp_path: Path) -> None:
    for name in SPOT["instance_types"]:  # type: ignore[attr-defined]
        for zone in "abcdef":
            order(cloud, "compute/capacity", instance_type=name, zone=f"{REGION}{zone}", available=0)
    try:
        found = problems_of(cloud, deployment(tmp_path, SPOT))
    finally:
        for name in SPOT["instance_types"]:  # type: ignore[attr-defined]
            for zone in "abcdef":
                order(cloud, "compute/capacity", instance_type=name, zone=f"{REGION}{zone}", available=100)
    assert "is currently low (score 1 of 10)" in rules(found, "warning")


def test_reports_a_failing_dry_run(cloud: LocalCloud, tmp_path: Path) -> None:
    wrong = {"NetworkInterfaces": [{"DeviceIndex": 0, "SubnetId": "subnet-0123456789abcdef0"}]}
    found = problems_of(cloud, deployment(tmp_path, SPOT), lambda: template(**wrong))
    assert "the launch would fail: InvalidSubnetID.NotFound" in rules(found, "error")


def test_reports_an_unsuitable_reservation(cloud: LocalCloud, tmp_path: Path) -> None:
    ec2 = cloud.clients.client("ec2")
    made = ec2.create_capacity_reservation(
        InstanceType="g5.xlarge", InstancePlatform="Linux/UNIX", AvailabilityZone=f"{REGION}b", InstanceCount=1
    )["CapacityReservation"]["CapacityReservationId"]
    reserved = {"instance_types": ["g6.xlarge"], "nodes": 2, "market": "reserved"}
    network = {"zones": ["a"]}
    found = problems_of(cloud, deployment(tmp_path, {**reserved, "reservation": {"id": made}}, network=network))
    errors = rules(found, "error")
    assert "reserves g5.xlarge, which is not in capacity.instance_types" in errors
    assert "must be b, the reservation's zone; nodes launch in a" in errors
    assert "has 1 of 1 instances available, but 2 are needed" in rules(found, "warning")
    absent = {**reserved, "reservation": {"id": "cr-0123456789abcdef0"}}
    assert "does not exist in us-east-1" in rules(problems_of(cloud, deployment(tmp_path, absent)), "error")
    ec2.cancel_capacity_reservation(CapacityReservationId=made)


def test_reports_credentials_of_another_account(cloud: LocalCloud, tmp_path: Path) -> None:
    found = problems_of(cloud, deployment(tmp_path, SPOT, account="999999999999"))
    assert [one.path for one in found] == ["account"]
    assert "the credentials belong to account" in str(found[0])


def test_reports_each_missing_permission(cloud: LocalCloud, tmp_path: Path) -> None:
    role = make_role(cloud, "asks-little", {"Action": "ec2:GetSpotPlacementScores", "Resource": "*"})
    config = deployment(tmp_path, SPOT)
    found = account_problems(config, templates=template, client_of=lambda service: as_role(cloud, role, service))
    assert rules(found, "error") == ""
    warnings = rules(found, "warning")
    for permission in ("servicequotas:GetServiceQuota", "ec2:DescribeInstanceTypeOfferings", "cloudformation:"):
        assert permission in warnings


def test_reports_missing_credentials_and_network(tmp_path: Path) -> None:
    class WithoutCredentials:
        def get_caller_identity(self) -> None:
            raise NoCredentialsError

    config = deployment(tmp_path, SPOT)
    (problem,) = account_problems(config, templates=template, client_of=lambda _: WithoutCredentials())
    assert "no AWS credentials found" in str(problem)
    file = tmp_path / "x.yaml"
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("AWS_")
    } | {
        "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_MAX_ATTEMPTS": "1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    }  # fmt: skip
    command = [sys.executable, "-m", "stacks", "check", str(file), "--aws"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "the call to AWS failed" in done.stderr
    assert "Traceback" not in done.stderr


def test_load_uses_the_image_lock(cloud: LocalCloud, tmp_path: Path) -> None:
    ssm, ec2 = cloud.clients.client("ssm"), cloud.clients.client("ec2")
    image = current_image(ssm, ec2, PARAMETER)
    assert image.image.startswith("ami-")
    config = deployment(tmp_path, SPOT)
    assert config.node.ami == PARAMETER
    lock = tmp_path / "ami.lock.json"
    write_lock(lock, REGION, PARAMETER, image)
    write_lock(lock, "eu-west-1", PARAMETER, image)
    assert set(read_lock(lock)) == {REGION, "eu-west-1"}
    assert load(tmp_path / "x.yaml").node.ami == image.image
    lock.write_text('{"us-east-1": 7}')
    with pytest.raises(ConfigError, match="is not a valid machine image lock"):
        load(tmp_path / "x.yaml")
    with pytest.raises(ImageLookupError, match="ParameterNotFound"):
        current_image(ssm, ec2, "/no/such/parameter")
