"""Interruptions, rebalance recommendations and pools that give nothing."""

from __future__ import annotations

import json
import urllib.request

import psutil

from localcloud.compute import process_tree

SPOT = {"InstanceMarketOptions": {"MarketType": "spot"}, "MetadataOptions": {"HttpTokens": "optional"}}


def metadata(cloud, instance: str, path: str) -> str:
    cloud.until_state(instance, "running")
    url = cloud.compute.inventory.get(instance).machine.metadata_url
    try:
        with urllib.request.urlopen(f"{url}latest/meta-data/{path}", timeout=10) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return str(error.code)


def test_an_interruption_gives_notice_and_takes_the_instance_at_its_end(cloud):
    (instance,) = cloud.run("trap 'echo had-its-time; exit' TERM; echo up; while :; do sleep 0.05; done", **SPOT)
    cloud.until_printed(instance, "up")
    assert metadata(cloud, instance, "spot/instance-action") == "404"
    assert metadata(cloud, instance, "instance-life-cycle") == "spot"
    assert cloud.order("interrupt", {"instance_id": instance, "notice_seconds": 2.0}) == 200
    notice = json.loads(metadata(cloud, instance, "spot/instance-action"))
    assert notice["action"] == "terminate"
    assert notice["time"] == metadata(cloud, instance, "spot/termination-time")
    warning = cloud.bus.of("EC2 Spot Instance Interruption Warning", instance_id=instance)
    assert warning[0]["detail"] == {"instance-id": instance, "instance-action": "terminate"}
    assert warning[0]["resources"] == [f"arn:aws:ec2:eu-west-1a:123456789012:instance/{instance}"]
    assert cloud.order("interrupt", {"instance_id": instance, "notice_seconds": 2.0}) == 400
    cloud.until_state(instance, "terminated")
    assert "had-its-time" in cloud.console(instance)
    ended = [one for one in cloud.records("instance_ended") if one["instance_id"] == instance]
    assert ended[0]["reason"] == "Server.SpotInstanceTermination"
    record = next(one for one in cloud.records("interruption") if one["instance_id"] == instance)
    assert record["notice_seconds"] == 2.0
    assert ended[0]["unix_seconds"] >= record["unix_seconds"] + 2.0
    described = cloud.ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]
    assert described["StateReason"]["Code"] == "Server.SpotInstanceTermination"


def test_without_notice_processes_get_no_time_at_all(cloud):
    (instance,) = cloud.run("trap 'echo had-its-time; exit' TERM; echo up; while :; do sleep 0.05; done", **SPOT)
    cloud.until_printed(instance, "up")
    assert cloud.order("interrupt", {"instance_id": instance, "notice_seconds": None}) == 200
    cloud.until_state(instance, "terminated")
    assert "had-its-time" not in cloud.console(instance)
    assert list(process_tree.marked(instance)) == []
    assert cloud.bus.of("EC2 Spot Instance Interruption Warning", instance_id=instance) == []


def test_a_notice_may_be_used_to_leave_early(cloud):
    (instance,) = cloud.run("echo up; read line < $HOME/never || true", **SPOT)
    cloud.until_printed(instance, "up")
    cloud.order("interrupt", {"instance_id": instance, "notice_seconds": 600})
    cloud.order("poweroff", {"instance_id": instance, "reboot": False})
    cloud.until_state(instance, "terminated")
    ended = [one for one in cloud.records("instance_ended") if one["instance_id"] == instance]
    assert ended[0]["reason"] == "Client.InstanceInitiatedShutdown"


def test_a_rebalance_recommendation_is_seen_on_the_machine(cloud):
    (instance,) = cloud.run(**SPOT)
    assert metadata(cloud, instance, "events/recommendations/rebalance") == "404"
    assert cloud.order("rebalance", {"instance_id": instance}) == 200
    assert "noticeTime" in json.loads(metadata(cloud, instance, "events/recommendations/rebalance"))
    (event,) = cloud.bus.of("EC2 Instance Rebalance Recommendation", instance_id=instance)
    assert event["source"] == "aws.ec2"
    assert cloud.state_of(instance) == "running"


def test_wrong_orders_are_answered_in_words(cloud):
    (instance,) = cloud.run()
    for verb, body, words in (
        ("interrupt", {"instance_id": instance}, "only spot is interrupted"),
        ("rebalance", {"instance_id": instance}, "only spot is interrupted"),
        ("interrupt", {}, "instance_id: is missing"),
        ("interrupt", {"instance_id": "i-0"}, "does not exist"),
        ("interrupt", {"instance_id": instance, "notice_seconds": "soon"}, "neither a number nor null"),
        ("capacity", {"instance_type": "m5.large", "zone": "eu-west-1a", "available": -1}, "neither a count nor null"),
        ("capacity", {"instance_type": "m5.large", "zone": "z", "available": 1, "market": "flea"}, "neither 'spot'"),
        ("freeze", {"instance_id": instance, "frozen": "yes"}, "is not a bool"),
    ):
        request = urllib.request.Request(
            f"{cloud.endpoint_url}/_localcloud/compute/{verb}", json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        try:
            urllib.request.urlopen(request, timeout=10)
        except urllib.error.HTTPError as error:
            assert error.code == 400
            assert words in json.loads(error.read())["error"]
        else:
            raise AssertionError(f"{verb} {body} was accepted")
    assert cloud.state_of(instance) in ("pending", "running")


def test_the_instances_verb_lists_them(cloud):
    (instance,) = cloud.run(**SPOT)
    cloud.until_state(instance, "running")
    with urllib.request.urlopen(f"{cloud.endpoint_url}/_localcloud/compute/instances", timeout=10) as answer:
        shown = next(one for one in json.loads(answer.read()) if one["id"] == instance)
    assert shown | {"launched_unix_seconds": 0, "private_address": ""} == {
        "id": instance, "type": "m5.large", "market": "spot", "zone": "eu-west-1a", "subnet": cloud.subnets[0],
        "private_address": "", "launched_unix_seconds": 0, "ended_unix_seconds": None, "state": "running",
        "reason": None, "group": None,
    }  # fmt: skip
    cloud.until_printed(instance, "init]")
    with urllib.request.urlopen(
        f"{cloud.endpoint_url}/_localcloud/compute/console?instance_id={instance}", timeout=10
    ) as answer:
        assert "init]" in json.loads(answer.read())["console"]


def test_a_pool_without_capacity_refuses_run_instances(cloud):
    pool = {"instance_type": "g5.xlarge", "zone": "eu-west-1a"}
    cloud.order("capacity", {**pool, "available": 1})
    answer = cloud.ec2.run_instances(
        ImageId="ami-0123456789abcdef0", InstanceType="g5.xlarge", SubnetId=cloud.subnets[0], MinCount=1, MaxCount=3,
        **SPOT,
    )  # fmt: skip
    assert len(answer["Instances"]) == 1
    assert cloud.records("capacity_refused")[-1]["instance_type"] == "g5.xlarge"
    cloud.order("capacity", {**pool, "available": None})
    (instance,) = cloud.run(InstanceType="g5.xlarge", **SPOT)
    cloud.until_state(instance, "running")
    assert psutil.pid_exists(int((cloud.state / "instances" / instance / "pid").read_text()))
