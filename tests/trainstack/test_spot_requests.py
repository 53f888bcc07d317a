"""Spot requests of a deleted deployment, which would launch further instances."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import boto3
from moto import mock_aws

from stacks.functions.zombie_watch.search import Search, _spot_requests
from trainstack.account import DEPLOYMENT_TAG
from trainstack.zombies.search import end

REGION = "us-east-1"


@mock_aws
def test_requests_of_a_deployment_without_a_training_stack_are_found() -> None:
    @cache
    def client(service: str) -> Any:
        return boto3.client(service, region_name=REGION)

    image = client("ec2").describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    ids = {}
    for owner in ("gone", "live", "cluster"):
        tags = [{"Key": DEPLOYMENT_TAG, "Value": owner}]
        made = client("ec2").request_spot_instances(
            LaunchSpecification={"ImageId": image, "InstanceType": "g6.xlarge"},
            TagSpecifications=[{"ResourceType": "spot-instances-request", "Tags": tags}],
        )
        ids[owner] = made["SpotInstanceRequests"][0]["SpotInstanceRequestId"]
    client("ec2").request_spot_instances(LaunchSpecification={"ImageId": image, "InstanceType": "g6.xlarge"})
    stacks = {"live": frozenset({"TrainingStack"}), "cluster": frozenset({"PcsStack"})}
    (found,) = _spot_requests(Search(client, REGION, stacks, time.time(), lambda _: None, lambda *_: None))
    assert (found.id, found.deployment) == (ids["gone"], "gone")
    assert ids["gone"] in found.remedy
    assert end(client, [found], [found]) == [(found, "")]
    states = client("ec2").describe_spot_instance_requests()["SpotInstanceRequests"]
    assert {each["State"] for each in states if each["SpotInstanceRequestId"] == ids["gone"]} <= {"cancelled"}
    assert ids["live"] in {each["SpotInstanceRequestId"] for each in states}
