"""Interruptions, rebalance recommendations and pools without capacity."""

from __future__ import annotations

import json
import urllib.request

import psutil
import pytest
from botocore.exceptions import ClientError

from localcloud.compute.machines import process_tree

SPOT = {"InstanceMarketOptions": {"MarketType": "spot"}, "MetadataOptions": {"HttpTokens": "optional"}}


def metadata(cloud, instance: str, path: str) -> str:
    cloud.until_state(instance, "running")
    url = cloud.compute.inventory.get(instance).machine.metadata_url
    try:
        with urllib.request.urlopen(f"{url}latest/meta-data/{path}", timeout=10) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return str(error.code)


def test_interruption_gives_notice_and_reclaims_the_instance_on_expiry(cloud):
    (instance,) = cloud.run("trap 'echo had-its-time; exit' TERM; echo up; while :; do sleep 0.05; done", **SPOT)
    cloud.until_printed(instance, "up")
    assert metadata(cloud, instance, "spot/instance-action") == "404"
    assert metadata(cloud, instance, "instance-life-cycle") == "spot"
    assert cloud.post("interrupt", {"instance_id": instance, "notice_seconds": 2.0}) == 200
    notice = json.loads(metadata(cloud, instance, "spot/instance-action"))
    assert notice["action"] == "terminate"
    assert notice["time"] == metadata(cloud, instance, "spot/termination-time")
    warning = cloud.bus.of("EC2 Spot Instance Interruption Warning", instance_id=instance)
    assert warning[0]["detail"] == {"instance-id": instance, "instance-action": "terminate"}
    assert warning[0]["resources"] == [f"arn:aws:ec2:eu-west-1a:123456789012:instance/{instance}"]
    assert cloud.post("interrupt", {"instance_id": instance, "notice_seconds": 2.0}) == 400
    cloud.until_state(instance, "terminated")
    assert "had-its-time" in cloud.console(instance)
    ended = [one for one in cloud.records("instance_ended") if one["instance_id"] == instance]
    assert ended[0]["reason"] == "Server.SpotInstanceTermination"
    record = next(one for one in cloud.records("interruption") if one["instance_id"] == instance)
    assert record["notice_seconds"] == 2.0
    assert ended[0]["unix_seconds"] >= record["unix_seconds"] + 2.0
    described = cloud.ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]
    assert described["StateReason"]["Code"] == "Server.SpotInstanceTermination"


def test_interruption_without_notice_kills_processes_immediately(cloud):
    (instance,) = cloud.run("trap 'echo had-its-time; exit' TERM; echo up; while :; do sleep 0.05; done", **SPOT)
    cloud.until_printed(instance, "up")
    assert cloud.post("interrupt", {"instance_id": instance, "notice_seconds": None}) == 200
    cloud.until_state(instance, "terminated")
    assert "had-its-time" not in cloud.console(instance)
    assert list(process_tree.marked(instance)) == []
    assert cloud.bus.of("EC2 Spot Instance Interruption Warning", instance_id=instance) == []


def test_instance_can_shut_down_before_the_notice_expires(cloud):
    (instance,) = cloud.run("echo up; read line < $HOME/never || true", **SPOT)
    cloud.until_printed(instance, "up")
    cloud.post("interrupt", {"instance_id": instance, "notice_seconds": 600})
    cloud.post("poweroff", {"instance_id": instance})
    cloud.until_state(instance, "terminated")
    ended = [one for one in cloud.records("instance_ended") if one["instance_id"] == instance]
    assert ended[0]["reason"] == "Client.InstanceInitiatedShutdown"


def test_rebalance_recommendation_appears_in_metadata(cloud):
    (instance,) = cloud.run(**SPOT)
    assert metadata(cloud, instance, "events/recommendations/rebalance") == "404"
    assert cloud.post("rebalance", {"instance_id": instance}) == 200
    assert "noticeTime" in json.loads(metadata(cloud, instance, "events/recommendations/rebalance"))
    (event,) = cloud.bus.of("EC2 Instance Rebalance Recommendation", instance_id=instance)
    assert event["source"] == "aws.ec2"
    assert cloud.state_of(instance) == "running"


def test_invalid_requests_return_the_problem(cloud):
    (instance,) = cloud.run()
    pool = {"instance_type": "m5.large", "zone": "eu-west-1a"}
    for verb, body, text in (
        ("interrupt", {"instance_id": instance}, "only spot instances can be interrupted"),
        ("rebalance", {"instance_id": instance}, "only spot instances can be interrupted"),
        ("interrupt", {}, "instance_id: required, of type str"),
        ("interrupt", {"instance_id": "i-0"}, "does not exist"),
        ("interrupt", {"instance_id": instance, "notice_seconds": "soon"}, "'soon' is not a number or null"),
        ("capacity", {**pool, "available": -1}, "-1 is not a non-negative integer or null"),
        ("capacity", {**pool, "available": 1, "market": "flea"}, "'flea' is not 'spot' or 'on-demand'"),
        ("freeze", {"instance_id": instance, "frozen": "yes"}, "'yes' is not of type bool"),
    ):
        status, answer = cloud.control(f"compute/{verb}", body)
        assert status == 400
        assert text in answer["error"]
    assert cloud.state_of(instance) in ("pending", "running")


def test_instances_endpoint_lists_instances(cloud):
    (instance,) = cloud.run(**SPOT)
    cloud.until_state(instance, "running")
    shown = next(one for one in cloud.control("compute/instances")[1] if one["id"] == instance)
    assert shown | {"launched_unix_seconds": 0, "private_address": ""} == {
        "id": instance, "type": "m5.large", "market": "spot", "zone": "eu-west-1a", "subnet": cloud.subnets[0],
        "private_address": "", "launched_unix_seconds": 0, "ended_unix_seconds": None, "state": "running",
        "reason": None, "group": None,
    }  # fmt: skip
    cloud.until_printed(instance, "init]")
    assert "init]" in cloud.control(f"compute/console?instance_id={instance}")[1]["console"]


def test_pool_without_capacity_refuses_run_instances(cloud):
    pool = {"instance_type": "g5.xlarge", "zone": "eu-west-1a"}
    cloud.post("capacity", {**pool, "available": 1})
    answer = cloud.ec2.run_instances(
        ImageId="ami-0123456789abcdef0", InstanceType="g5.xlarge", SubnetId=cloud.subnets[0], MinCount=1, MaxCount=3,
        **SPOT,
    )  # fmt: skip
    assert len(answer["Instances"]) == 1
    assert cloud.records("capacity_refused")[-1]["instance_type"] == "g5.xlarge"
    cloud.post("capacity", {**pool, "available": None})
    (instance,) = cloud.run(InstanceType="g5.xlarge", **SPOT)
    cloud.until_state(instance, "running")
    assert psutil.pid_exists(int((cloud.state / "instances" / instance / "pid").read_text()))


def price_in(cloud, zone: str) -> list[float]:
    answer = cloud.ec2.describe_spot_price_history(
        InstanceTypes=["m5.large"], AvailabilityZone=zone, ProductDescriptions=["Linux/UNIX"]
    )
    return [float(one["SpotPrice"]) for one in answer["SpotPriceHistory"]]


def test_zone_without_capacity_interrupts_its_spot_instances_and_refuses_launches(cloud):
    (instance,) = cloud.run("echo up; while :; do sleep 0.05; done", **SPOT)
    (kept,) = cloud.run("echo up; while :; do sleep 0.05; done")  # on demand
    cloud.until_printed(instance, "up")
    pool = {"instance_types": ["m5.large", "g5.xlarge"], "zone": "eu-west-1a", "notice_seconds": 0.5}
    before = price_in(cloud, "eu-west-1a")
    assert cloud.post("pool", {**pool, "is_available": False, "usd_per_hour": 0.5}) == 200
    assert cloud.bus.of("EC2 Spot Instance Interruption Warning", instance_id=instance)
    assert cloud.post("pool", {**pool, "is_available": False}) == 200  # the instance has its notice already
    cloud.until_state(instance, "terminated")
    cloud.until_state(kept, "running")
    assert price_in(cloud, "eu-west-1a")[-1] == 0.5 != before[0]
    assert price_in(cloud, "eu-west-1b") != [0.5]
    launch = {"ImageId": "ami-0123456789abcdef0", "InstanceType": "m5.large", "SubnetId": cloud.subnets[0]}
    with pytest.raises(ClientError, match="There is no Spot capacity available"):
        cloud.ec2.run_instances(MinCount=1, MaxCount=1, **launch, **SPOT)
    assert cloud.post("pool", {**pool, "is_available": True, "usd_per_hour": 0.02}) == 200
    cloud.until_state(cloud.run(**SPOT)[0], "running")
    assert price_in(cloud, "eu-west-1a")[-1] == 0.02


def test_invalid_orders_for_a_zone_are_rejected(cloud):
    pool = {"instance_types": ["m5.large"], "zone": "eu-west-1a", "is_available": True}
    for wrong in ({"zone": "us-east-1a"}, {"instance_types": ["z9.large"]}, {"usd_per_hour": "x"}, {"is_available": 1}):
        assert cloud.post("pool", {**pool, **wrong}) == 400
