"""Auto Scaling groups with real instances: sizes, zones, pools, replacement, membership."""

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


def test_a_group_reaches_its_size_balanced_over_zones_and_says_so(cloud):
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
    cloud.autoscaling.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=1)
    cloud.until_in_service(group, 1)
    cause = cloud.activities(group)[0]["Cause"]
    assert "explicitly set group desired capacity changing the desired capacity from 3 to 1." in cause
    assert "shrinking the capacity from 2 to 1." in cause
    assert len(cloud.bus.of("EC2 Instance Terminate Successful", AutoScalingGroupName=group)) == 2


@pytest.mark.parametrize("way", ["ec2", "inside", "killed"])
def test_an_instance_that_ends_for_whatever_reason_is_replaced(cloud, way):
    group = cloud.group(DesiredCapacity=1)
    (first,) = cloud.until_in_service(group, 1)
    if way == "ec2":
        cloud.ec2.terminate_instances(InstanceIds=[first])
    elif way == "inside":
        cloud.order("poweroff", {"instance_id": first, "reboot": False})
    else:
        cloud.compute.inventory.get(first).machine.on_gone()

    def replaced() -> list[str] | None:
        ids = cloud.in_service(group)
        return ids if ids and ids != [first] else None

    cloud.until(replaced, "a replacement")
    cause = next(one["Cause"] for one in cloud.activities(group) if one["Description"].startswith("Terminating"))
    assert "an EC2 health check indicating it has been terminated or stopped." in cause


def test_spot_capacity_falls_to_the_next_pool_then_the_next_zone(cloud):
    for kind in ("g5.xlarge", "g5.2xlarge"):
        cloud.order("capacity", {"instance_type": kind, "zone": "eu-west-1a", "available": 0})
    cloud.order("capacity", {"instance_type": "g5.xlarge", "zone": "eu-west-1b", "available": 0})
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


def test_a_group_without_capacity_launches_as_soon_as_there_is_some(cloud):
    pool = {"instance_type": "g5.16xlarge", "zone": "eu-west-1a"}
    cloud.order("capacity", {**pool, "available": 0})
    group = cloud.group(MixedInstancesPolicy=cloud.spot_policy("g5.16xlarge"), DesiredCapacity=2, subnets=1)
    cloud.until(lambda: cloud.activities(group), "a failed try")
    assert cloud.described(group)["Instances"] == []
    cloud.order("capacity", {**pool, "available": 1})
    cloud.until_in_service(group, 1)
    cloud.order("capacity", {**pool, "available": None})
    cloud.until_in_service(group, 2)


def test_the_on_demand_part_comes_first(cloud):
    policy = cloud.spot_policy("m5.large", OnDemandBaseCapacity=1, OnDemandPercentageAboveBaseCapacity=50)
    group = cloud.group(MixedInstancesPolicy=policy, DesiredCapacity=4)
    ids = cloud.until_in_service(group, 4)
    markets = [cloud.compute.inventory.get(one).market for one in ids]
    assert Counter(markets) == {"on-demand": 3, "spot": 1}


def test_weights_count_towards_the_capacity(cloud):
    policy = cloud.spot_policy("m5.large")
    policy["LaunchTemplate"]["Overrides"] = [{"InstanceType": "g5.12xlarge", "WeightedCapacity": "4"}]
    group = cloud.group(MixedInstancesPolicy=policy, DesiredCapacity=5, maximum=8)
    cloud.until_in_service(group, 2)
    assert cloud.described(group)["Instances"][0]["WeightedCapacity"] == "4"


def test_detaching_keeps_the_instance_and_may_replace_it(cloud):
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
    cloud.autoscaling.attach_instances(AutoScalingGroupName=group, InstanceIds=[first])
    assert first in cloud.until_in_service(group, 2)
    assert cloud.described(group)["DesiredCapacity"] == 2


def test_terminating_in_the_group_replaces_or_shrinks(cloud):
    group = cloud.group(DesiredCapacity=2, minimum=1)
    first, _ = cloud.until_in_service(group, 2)
    answer = cloud.autoscaling.terminate_instance_in_auto_scaling_group(
        InstanceId=first, ShouldDecrementDesiredCapacity=True
    )
    assert "shrinking the capacity from 2 to 1." in answer["Activity"]["Cause"]
    (left,) = cloud.until_in_service(group, 1)
    code, message = refusal(
        cloud.autoscaling.terminate_instance_in_auto_scaling_group, InstanceId=left, ShouldDecrementDesiredCapacity=True
    )
    assert (code, "will violate group's min size constraint" in message) == ("ValidationError", True)
    cloud.autoscaling.terminate_instance_in_auto_scaling_group(InstanceId=left, ShouldDecrementDesiredCapacity=False)
    cloud.until(lambda: cloud.in_service(group) not in ([], [left]), "a replacement")


def test_health_protection_and_suspension(cloud):
    group = cloud.group(DesiredCapacity=2)
    first, second = cloud.until_in_service(group, 2)
    cloud.autoscaling.set_instance_protection(
        AutoScalingGroupName=group, InstanceIds=[first], ProtectedFromScaleIn=True
    )
    cloud.autoscaling.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=0)
    assert cloud.until_in_service(group, 1) == [first]
    cloud.autoscaling.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=1)
    cloud.autoscaling.suspend_processes(AutoScalingGroupName=group, ScalingProcesses=["Launch"])
    cloud.autoscaling.set_instance_health(InstanceId=first, HealthStatus="Unhealthy")
    cloud.until(lambda: cloud.described(group)["Instances"] == [], "the unhealthy one to leave")
    assert [one["ProcessName"] for one in cloud.described(group)["SuspendedProcesses"]] == ["Launch"]
    assert cloud.state_of(first) == "terminated"
    cloud.autoscaling.resume_processes(AutoScalingGroupName=group)
    cloud.until_in_service(group, 1)
    assert second not in cloud.in_service(group)


def test_capacity_rebalancing_launches_before_it_ends(cloud):
    policy = cloud.spot_policy("g5.24xlarge")
    group = cloud.group(MixedInstancesPolicy=policy, DesiredCapacity=1, CapacityRebalance=True, subnets=1)
    (first,) = cloud.until_in_service(group, 1)
    pool = {"instance_type": "g5.24xlarge", "zone": "eu-west-1a"}
    cloud.order("capacity", {**pool, "available": 0})
    cloud.order("rebalance", {"instance_id": first})
    cloud.until(lambda: any(one["StatusCode"] == "Failed" for one in cloud.activities(group)), "a refused replacement")
    assert cloud.in_service(group) == [first]
    cloud.order("capacity", {**pool, "available": None})
    assert cloud.until(lambda: cloud.in_service(group) not in ([first], []), "the replacement")
    cloud.until(lambda: cloud.lifecycle(group, first) is None, "the old one to leave")
    cause = next(one["Cause"] for one in cloud.activities(group) if one["Description"].endswith(first))
    assert "rebalance recommendation" in cause


def test_a_changed_subnet_moves_the_instances(cloud):
    group = cloud.group(DesiredCapacity=1, subnets=1)
    (first,) = cloud.until_in_service(group, 1)
    cloud.autoscaling.update_auto_scaling_group(AutoScalingGroupName=group, VPCZoneIdentifier=cloud.subnets[1])
    cloud.until(lambda: cloud.lifecycle(group, first) is None and cloud.in_service(group), "the move")
    assert cloud.described(group)["Instances"][0]["AvailabilityZone"] == "eu-west-1b"


def test_a_cluster_placement_group_keeps_a_group_in_one_zone(cloud):
    cloud.ec2.create_placement_group(GroupName="gang", Strategy="cluster")
    group = cloud.group(DesiredCapacity=2, subnets=2, PlacementGroup="gang")
    cloud.until_in_service(group, 2)
    assert len({one["AvailabilityZone"] for one in cloud.described(group)["Instances"]}) == 1
    failed = [one for one in cloud.activities(group) if one["StatusCode"] == "Failed"]
    assert "Placement group 'gang' is of strategy cluster" in failed[0]["StatusMessage"]
    cloud.autoscaling.update_auto_scaling_group(AutoScalingGroupName=group, MinSize=0, MaxSize=0, DesiredCapacity=0)
    cloud.until(lambda: cloud.described(group)["Instances"] == [], "the group to be empty")
    cloud.ec2.delete_placement_group(GroupName="gang")


def test_deleting_needs_an_empty_group_or_force(cloud):
    group = cloud.group(DesiredCapacity=1)
    (instance,) = cloud.until_in_service(group, 1)
    assert refusal(cloud.autoscaling.delete_auto_scaling_group, AutoScalingGroupName=group)[0] == "ResourceInUse"
    cloud.autoscaling.delete_auto_scaling_group(AutoScalingGroupName=group, ForceDelete=True)
    cloud.until(
        lambda: not cloud.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[group])["AutoScalingGroups"],
        "the group to go",
    )
    cloud.until_state(instance, "terminated")


def test_a_broken_template_is_a_failed_activity(cloud):
    template = cloud.template(InstanceType="m5.large", ImageId="resolve:ssm:/gone")
    group = cloud.group(LaunchTemplate={"LaunchTemplateId": template}, DesiredCapacity=1)
    activity = cloud.until(lambda: cloud.activities(group), "an activity")[0]
    assert activity["StatusCode"] == "Failed"
    assert "Systems Manager parameter /gone" in activity["StatusMessage"]
    cloud.autoscaling.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=0)


def test_what_auto_scaling_refuses(cloud):
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
        (asg.create_auto_scaling_group, new | {"PlacementGroup": "none"}, "ValidationError", "is unknown"),
        (asg.create_auto_scaling_group, new | {"TargetGroupARNs": ["arn"]}, "ValidationError", "TargetGroupARNs: not"),
        (asg.create_auto_scaling_group, new | {"HealthCheckType": "ELB"}, "ValidationError", "HealthCheckType 'ELB'"),
        (asg.create_auto_scaling_group, new | {"TerminationPolicies": ["Best"]}, "ValidationError", "'Best' is not"),
        (asg.create_auto_scaling_group, new | {"MaxInstanceLifetime": 60}, "ValidationError", "at least 86400"),
        (
            asg.create_auto_scaling_group,
            mixed | {"MixedInstancesPolicy": cloud.spot_policy("m5.large", template=spot)},
            "ValidationError",
            "InstanceMarketOptions",
        ),
        (asg.set_desired_capacity, too_many | {"DesiredCapacity": 3}, "ValidationError", "above max"),
        (asg.set_desired_capacity, unknown | {"DesiredCapacity": 0}, "ValidationError", "not found"),
        (asg.set_instance_health, {"InstanceId": "i-0", "HealthStatus": "Healthy"}, "ValidationError", "i-0"),
        (asg.enter_standby, {"AutoScalingGroupName": group, "ShouldDecrementDesiredCapacity": True},
         "UnsupportedOperation", "EnterStandby"),
    ]  # fmt: skip
    for call, parameters, code, words in cases:
        got, message = refusal(call, **parameters)
        assert (got, words in message) == (code, True), (parameters, got, message)
    assert asg.describe_auto_scaling_groups(AutoScalingGroupNames=["refused"])["AutoScalingGroups"] == []


def test_tags_of_groups_are_kept_apart_from_those_of_instances(cloud):
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


def test_descriptions_come_in_pages(cloud):
    names = {cloud.group() for _ in range(3)}
    pages = cloud.autoscaling.get_paginator("describe_auto_scaling_groups").paginate(
        AutoScalingGroupNames=sorted(names), PaginationConfig={"PageSize": 2}
    )
    found = [[one["AutoScalingGroupName"] for one in page["AutoScalingGroups"]] for page in pages]
    assert [len(page) for page in found] == [2, 1]
    assert {name for page in found for name in page} == names


def test_the_maximum_lifetime_ends_instances(cloud):
    group = cloud.group(DesiredCapacity=1, MaxInstanceLifetime=86400)
    (first,) = cloud.until_in_service(group, 1)
    cloud.advance(86401)
    cloud.until(lambda: cloud.in_service(group) not in ([], [first]), "a younger one")
    assert "maximum instance lifetime" in next(
        one["Cause"] for one in cloud.activities(group) if one["Description"].startswith("Terminating")
    )


def test_a_group_uses_its_reservation_first_and_then_buys(cloud):
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
    assert sorted(one.get("CapacityReservationId", "bought") for one in instances) == ["bought", made]
