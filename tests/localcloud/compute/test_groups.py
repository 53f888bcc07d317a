"""Auto Scaling groups with instances: sizes, zones, pools, replacement and membership."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from botocore.exceptions import ClientError

SPOT_FAILURE = "Could not launch Spot Instances. UnfulfillableCapacity"


def refusal(call, **parameters) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


def test_group_reaches_its_size_balanced_over_zones_with_activities_and_events(cloud):
    group = cloud.group(
        DesiredCapacity=3,
        subnets=2,
        Tags=[
            {"Key": "seen", "Value": "1", "PropagateAtLaunch": True},
            {"Key": "kept", "Value": "1", "PropagateAtLaunch": False},
        ],
    )
    ids = cloud.until_in_service(group, 3)
    shown = cloud.described(group)
    assert sorted(Counter(one["AvailabilityZone"] for one in shown["Instances"]).values()) == [1, 2]
    assert (shown["MinSize"], shown["MaxSize"], shown["DesiredCapacity"]) == (0, 4, 3)
    answer = cloud.ec2.describe_instances(InstanceIds=ids)
    tags = {tag["Key"]: tag["Value"] for tag in answer["Reservations"][0]["Instances"][0]["Tags"]}
    assert tags["aws:autoscaling:groupName"] == group
    assert tags["seen"] == "1"
    assert "kept" not in tags
    activity = cloud.activities(group)[-1]
    assert activity["StatusCode"] == "Successful"
    assert activity["Description"].startswith("Launching a new EC2 instance: i-")
    assert "a user request created an AutoScalingGroup changing the desired capacity from 0 to 3." in activity["Cause"]
    assert "increasing the capacity from 0 to 3." in activity["Cause"]
    event = cloud.bus.of("EC2 Instance Launch Successful", AutoScalingGroupName=group)[0]
    assert event["source"] == "aws.autoscaling"
    assert event["resources"][0] == shown["AutoScalingGroupARN"]
    assert event["detail"]["EC2InstanceId"] in ids
    assert (event["detail"]["Origin"], event["detail"]["Destination"]) == ("EC2", "AutoScalingGroup")
    cloud.autoscaling.update_auto_scaling_group(AutoScalingGroupName=group, DesiredCapacity=1)
    cloud.until_in_service(group, 1)
    cause = cloud.activities(group)[0]["Cause"]
    assert "desired: 1 changing the desired capacity from 3 to 1." in cause
    assert "shrinking the capacity from 2 to 1." in cause
    assert len(cloud.bus.of("EC2 Instance Terminate Successful", AutoScalingGroupName=group)) == 2


@pytest.mark.parametrize("way", ["ec2", "inside", "killed"])
def test_terminated_instance_is_replaced(cloud, way):
    group = cloud.group(DesiredCapacity=1)
    (first,) = cloud.until_in_service(group, 1)
    if way == "ec2":
        cloud.ec2.terminate_instances(InstanceIds=[first])
    elif way == "inside":
        cloud.post("poweroff", {"instance_id": first})
    else:
        cloud.compute.inventory.get(first).machine.on_crash()

    def replaced() -> list[str] | None:
        ids = cloud.in_service(group)
        return ids if ids and ids != [first] else None

    cloud.until(replaced, "a replacement")
    cause = next(one["Cause"] for one in cloud.activities(group) if one["Description"].startswith("Terminating"))
    assert "an EC2 health check indicating it has been terminated or stopped." in cause


def test_spot_launch_tries_the_next_pool_then_the_next_zone(cloud):
    for kind in ("g5.xlarge", "g5.2xlarge"):
        cloud.post("capacity", {"instance_type": kind, "zone": "eu-west-1a", "available": 0})
    cloud.post("capacity", {"instance_type": "g5.xlarge", "zone": "eu-west-1b", "available": 0})
    group = cloud.group(MixedInstancesPolicy=cloud.spot_policy("g5.xlarge", "g5.2xlarge"), DesiredCapacity=1)
    (instance,) = cloud.until_in_service(group, 1)
    shown = cloud.described(group)["Instances"][0]
    assert (shown["InstanceType"], shown["AvailabilityZone"]) == ("g5.2xlarge", "eu-west-1b")
    described = cloud.ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]
    assert described["InstanceLifecycle"] == "spot"
    failed = [one for one in cloud.activities(group) if one["StatusCode"] == "Failed"]
    assert [json.loads(one["Details"])["Availability Zone"] for one in failed] == ["eu-west-1a"]
    assert failed[0]["StatusMessage"].startswith(SPOT_FAILURE)
    assert cloud.bus.of("EC2 Instance Launch Unsuccessful", AutoScalingGroupName=group, StatusCode="Failed")
    refused = [
        (one["instance_type"], one["zone"]) for one in cloud.records("capacity_refused") if one["group"] == group
    ]
    assert refused == [("g5.xlarge", "eu-west-1a"), ("g5.2xlarge", "eu-west-1a"), ("g5.xlarge", "eu-west-1b")]


def test_group_without_capacity_launches_once_capacity_is_available(cloud):
    pool = {"instance_type": "g5.16xlarge", "zone": "eu-west-1a"}
    cloud.post("capacity", {**pool, "available": 0})
    group = cloud.group(MixedInstancesPolicy=cloud.spot_policy("g5.16xlarge"), DesiredCapacity=2, subnets=1)
    cloud.until(lambda: cloud.activities(group), "a failed attempt")
    assert cloud.described(group)["Instances"] == []
    cloud.post("capacity", {**pool, "available": 1})
    cloud.until_in_service(group, 1)
    cloud.post("capacity", {**pool, "available": None})
    cloud.until_in_service(group, 2)


def test_on_demand_base_is_launched_first(cloud):
    policy = cloud.spot_policy("m5.large", OnDemandBaseCapacity=1, OnDemandPercentageAboveBaseCapacity=50)
    group = cloud.group(MixedInstancesPolicy=policy, DesiredCapacity=4)
    ids = cloud.until_in_service(group, 4)
    markets = [cloud.compute.inventory.get(one).market for one in ids]
    assert Counter(markets) == {"on-demand": 3, "spot": 1}


def test_detached_instance_keeps_running_and_may_be_replaced(cloud):
    group = cloud.group(DesiredCapacity=2)
    first, second = cloud.until_in_service(group, 2)
    answer = cloud.autoscaling.detach_instances(
        AutoScalingGroupName=group, InstanceIds=[first], ShouldDecrementDesiredCapacity=False
    )
    assert answer["Activities"][0]["Description"] == f"Detaching EC2 instance: {first}"
    ids = cloud.until_in_service(group, 2)
    assert first not in ids
    assert cloud.state_of(first) == "running"
    tags = cloud.ec2.describe_tags(Filters=[{"Name": "resource-id", "Values": [first]}])["Tags"]
    assert "aws:autoscaling:groupName" not in {tag["Key"] for tag in tags}
    cloud.autoscaling.detach_instances(
        AutoScalingGroupName=group, InstanceIds=[second], ShouldDecrementDesiredCapacity=True
    )
    assert cloud.described(group)["DesiredCapacity"] == 1
    cloud.until_in_service(group, 1)


def test_capacity_rebalancing_launches_before_it_terminates(cloud):
    policy = cloud.spot_policy("g5.24xlarge")
    group = cloud.group(MixedInstancesPolicy=policy, DesiredCapacity=1, CapacityRebalance=True, subnets=1)
    (first,) = cloud.until_in_service(group, 1)
    pool = {"instance_type": "g5.24xlarge", "zone": "eu-west-1a"}
    cloud.post("capacity", {**pool, "available": 0})
    cloud.post("rebalance", {"instance_id": first})
    cloud.until(lambda: any(one["StatusCode"] == "Failed" for one in cloud.activities(group)), "a refused replacement")
    assert cloud.in_service(group) == [first]
    cloud.post("capacity", {**pool, "available": None})
    assert cloud.until(lambda: cloud.in_service(group) not in ([first], []), "the replacement")
    cloud.until(lambda: cloud.lifecycle(group, first) is None, "the old instance to leave")
    cause = next(one["Cause"] for one in cloud.activities(group) if one["Description"].endswith(first))
    assert "rebalance recommendation" in cause


def test_changed_subnet_moves_the_instances(cloud):
    group = cloud.group(DesiredCapacity=1, subnets=1)
    (first,) = cloud.until_in_service(group, 1)
    cloud.autoscaling.update_auto_scaling_group(AutoScalingGroupName=group, VPCZoneIdentifier=cloud.subnets[1])
    cloud.until(lambda: cloud.lifecycle(group, first) is None and cloud.in_service(group), "the move")
    assert cloud.described(group)["Instances"][0]["AvailabilityZone"] == "eu-west-1b"


def test_deletion_requires_an_empty_group_or_force(cloud):
    group = cloud.group(DesiredCapacity=1)
    (instance,) = cloud.until_in_service(group, 1)
    assert refusal(cloud.autoscaling.delete_auto_scaling_group, AutoScalingGroupName=group)[0] == "ResourceInUse"
    cloud.autoscaling.delete_auto_scaling_group(AutoScalingGroupName=group, ForceDelete=True)
    cloud.until(
        lambda: not cloud.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[group])["AutoScalingGroups"],
        "the group to be deleted",
    )
    cloud.until_state(instance, "terminated")


def test_broken_template_is_a_failed_activity(cloud):
    template = cloud.template(InstanceType="m5.large", ImageId="resolve:ssm:/missing")
    group = cloud.group(LaunchTemplate={"LaunchTemplateId": template}, DesiredCapacity=1)
    activity = cloud.until(lambda: cloud.activities(group), "an activity")[0]
    assert activity["StatusCode"] == "Failed"
    assert "Systems Manager parameter /missing" in activity["StatusMessage"]
    cloud.autoscaling.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=0, HonorCooldown=False)
    (settings,) = cloud.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[group])["AutoScalingGroups"]
    assert settings["DesiredCapacity"] == 0


def test_invalid_requests_are_refused(cloud):
    asg = cloud.autoscaling
    group = cloud.group(maximum=2)
    template = {"LaunchTemplateId": cloud.template(InstanceType="m5.large"), "Version": "1"}
    spot = cloud.template(InstanceMarketOptions={"MarketType": "spot"})
    new = {
        "AutoScalingGroupName": "refused", "MinSize": 0, "MaxSize": 1, "LaunchTemplate": template,
        "VPCZoneIdentifier": cloud.subnets[0],
    }  # fmt: skip
    mixed = {key: value for key, value in new.items() if key != "LaunchTemplate"}
    nowhere = {key: value for key, value in new.items() if key != "VPCZoneIdentifier"}
    too_many, unknown = {"AutoScalingGroupName": group}, {"AutoScalingGroupName": "none"}
    cases = [
        (asg.create_auto_scaling_group, new | {"AutoScalingGroupName": group}, "AlreadyExists", "already exists"),
        (asg.create_auto_scaling_group, new | {"MinSize": 2}, "ValidationError", "Max bound, 1, must be greater"),
        (asg.create_auto_scaling_group, new | {"DesiredCapacity": 2}, "ValidationError", "Desired capacity:2 must be"),
        (asg.create_auto_scaling_group, new | {"VPCZoneIdentifier": "subnet-0"}, "ValidationError", "subnet-0"),
        (asg.create_auto_scaling_group, nowhere, "ValidationError", "At least one Availability Zone"),
        (asg.create_auto_scaling_group, mixed, "ValidationError", "Valid requests must contain either"),
        (asg.create_auto_scaling_group, new | {"PlacementGroup": "g"}, "ValidationError",
         "not emulated: PlacementGroup"),
        (asg.create_auto_scaling_group, new | {"TargetGroupARNs": ["arn"]}, "ValidationError",
         "not emulated: TargetGroupARNs"),
        (asg.create_auto_scaling_group, new | {"HealthCheckType": "ELB"}, "ValidationError",
         "not emulated: HealthCheckType"),
        (asg.create_auto_scaling_group, new | {"TerminationPolicies": ["x"]}, "ValidationError",
         "not emulated: TerminationPolicies"),
        (asg.create_auto_scaling_group, new | {"MaxInstanceLifetime": 60}, "ValidationError", "at least 86400"),
        (
            asg.create_auto_scaling_group,
            mixed | {"MixedInstancesPolicy": cloud.spot_policy("m5.large", template=spot)},
            "ValidationError",
            "InstanceMarketOptions",
        ),
        (asg.update_auto_scaling_group, too_many | {"DesiredCapacity": 3}, "ValidationError", "Desired capacity:3"),
        (asg.update_auto_scaling_group, unknown | {"DesiredCapacity": 0}, "ValidationError", "not found"),
        (asg.set_desired_capacity, too_many | {"DesiredCapacity": 3}, "ValidationError", "is above max value 2"),
        (asg.set_desired_capacity, too_many | {"DesiredCapacity": -1}, "ValidationError", "is below min value 0"),
        (asg.set_desired_capacity, unknown | {"DesiredCapacity": 0}, "ValidationError", "not found"),
        (asg.suspend_processes, {"AutoScalingGroupName": group}, "UnsupportedOperation", "not emulated"),
    ]  # fmt: skip
    for call, parameters, code, text in cases:
        got, message = refusal(call, **parameters)
        assert (got, text in message) == (code, True), (parameters, got, message)
    assert asg.describe_auto_scaling_groups(AutoScalingGroupNames=["refused"])["AutoScalingGroups"] == []


def test_group_tags_are_separate_from_instance_tags(cloud):
    group = cloud.group()
    target = {"ResourceId": group, "ResourceType": "auto-scaling-group"}
    cloud.autoscaling.create_or_update_tags(Tags=[{**target, "Key": "k", "Value": "v", "PropagateAtLaunch": True}])
    filters = [{"Name": "auto-scaling-group", "Values": [group]}]
    (tag,) = cloud.autoscaling.describe_tags(Filters=filters)["Tags"]
    assert (tag["Key"], tag["Value"], tag["PropagateAtLaunch"]) == ("k", "v", True)
    found = cloud.autoscaling.describe_auto_scaling_groups(Filters=[{"Name": "tag:k", "Values": ["v"]}])
    assert [one["AutoScalingGroupName"] for one in found["AutoScalingGroups"]] == [group]
    cloud.autoscaling.delete_tags(Tags=[{**target, "Key": "k"}])
    assert cloud.autoscaling.describe_tags(Filters=filters)["Tags"] == []


def test_groups_are_paginated(cloud):
    names = {cloud.group() for _ in range(3)}
    pages = cloud.autoscaling.get_paginator("describe_auto_scaling_groups").paginate(
        AutoScalingGroupNames=sorted(names), PaginationConfig={"PageSize": 2}
    )
    found = [[one["AutoScalingGroupName"] for one in page["AutoScalingGroups"]] for page in pages]
    assert [len(page) for page in found] == [2, 1]
    assert {name for page in found for name in page} == names


def test_maximum_lifetime_replaces_instances(cloud):
    group = cloud.group(DesiredCapacity=1, MaxInstanceLifetime=86400)
    (first,) = cloud.until_in_service(group, 1)
    cloud.advance(86401)
    cloud.until(lambda: cloud.in_service(group) not in ([], [first]), "a replacement")
    assert "maximum instance lifetime" in next(
        one["Cause"] for one in cloud.activities(group) if one["Description"].startswith("Terminating")
    )


def test_group_uses_its_reservation_first_and_then_on_demand(cloud):
    made = cloud.ec2.create_capacity_reservation(
        InstanceType="m5.large", InstancePlatform="Linux/UNIX", AvailabilityZone="eu-west-1a", InstanceCount=1,
        InstanceMatchCriteria="targeted",
    )["CapacityReservation"]["CapacityReservationId"]  # fmt: skip
    reserved = {
        "CapacityReservationPreference": "capacity-reservations-first",
        "CapacityReservationTarget": {"CapacityReservationIds": [made]},
    }
    group = cloud.group(DesiredCapacity=2, subnets=1, CapacityReservationSpecification=reserved)
    ids = cloud.until_in_service(group, 2)
    assert cloud.described(group)["CapacityReservationSpecification"] == reserved
    answer = cloud.ec2.describe_instances(InstanceIds=ids)
    instances = [one for each in answer["Reservations"] for one in each["Instances"]]
    assert {one.get("CapacityReservationId", "on-demand") for one in instances} == {"on-demand", made}
