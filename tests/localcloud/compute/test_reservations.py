"""Capacity reservations, capacity blocks and interruptible reservations: matching and expiry."""

from __future__ import annotations

import datetime

import pytest
from botocore.exceptions import ClientError

ZONE = "eu-west-1a"
POOL = [
    {
        "Type": "AWS::ResourceGroups::Generic",
        "Parameters": [{"Name": "allowed-resource-types", "Values": ["AWS::EC2::CapacityReservation"]}],
    },
    {"Type": "AWS::EC2::CapacityReservationPool"},
]


def refusal(call, **parameters) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


def reserve(cloud, kind: str, count: int = 1, **more) -> str:
    answer = cloud.ec2.create_capacity_reservation(
        InstanceType=kind, InstancePlatform="Linux/UNIX", AvailabilityZone=ZONE, InstanceCount=count, **more
    )
    return str(answer["CapacityReservation"]["CapacityReservationId"])


def target(reservation: str) -> dict:
    return {"CapacityReservationTarget": {"CapacityReservationId": reservation}}


def shown(cloud, reservation: str) -> dict:
    found = cloud.ec2.describe_capacity_reservations(CapacityReservationIds=[reservation])
    return found["CapacityReservations"][0]


def instance(cloud, instance_id: str) -> dict:
    return cloud.ec2.describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"][0]


def test_open_reservation_accepts_matching_launches(cloud):
    kind = "g6.xlarge"
    cloud.post("capacity", {"instance_type": kind, "zone": ZONE, "market": "on-demand", "available": 1})
    reservation = reserve(cloud, kind)
    assert refusal(cloud.run, InstanceType=kind, CapacityReservationSpecification={
        "CapacityReservationPreference": "none"})[0] == "InsufficientInstanceCapacity"  # fmt: skip
    (first,) = cloud.run(InstanceType=kind)
    assert instance(cloud, first)["CapacityReservationId"] == reservation
    assert shown(cloud, reservation)["AvailableInstanceCount"] == 0
    assert refusal(cloud.run, InstanceType=kind)[0] == "InsufficientInstanceCapacity"
    only = {"CapacityReservationPreference": "capacity-reservations-only"}
    assert refusal(cloud.run, InstanceType=kind, CapacityReservationSpecification=only)[0] == (
        "ReservationCapacityExceeded"
    )
    (spot,) = cloud.run(InstanceType=kind, InstanceMarketOptions={"MarketType": "spot"})
    assert "CapacityReservationId" not in instance(cloud, spot)
    cloud.ec2.terminate_instances(InstanceIds=[first, spot])
    cloud.until(lambda: shown(cloud, reservation)["AvailableInstanceCount"] == 1, "the capacity to be released")
    cloud.ec2.cancel_capacity_reservation(CapacityReservationId=reservation)
    assert shown(cloud, reservation)["State"] == "cancelled"


def test_targeted_reservation_accepts_only_launches_that_name_it(cloud):
    kind = "g6.2xlarge"
    reservation = reserve(cloud, kind, InstanceMatchCriteria="targeted")
    (other,) = cloud.run(InstanceType=kind)
    assert "CapacityReservationId" not in instance(cloud, other)
    (named,) = cloud.run(InstanceType=kind, CapacityReservationSpecification=target(reservation))
    assert instance(cloud, named)["CapacityReservationSpecification"] == target(reservation)
    code, _ = refusal(cloud.run, InstanceType=kind, CapacityReservationSpecification=target(reservation))
    assert code == "ReservationCapacityExceeded"
    wrong = {"InstanceType": "g6.4xlarge", "CapacityReservationSpecification": target(reservation)}
    assert refusal(cloud.run, **wrong)[0] == "InvalidParameterValue"
    assert refusal(cloud.run, **wrong | {"InstanceMarketOptions": {"MarketType": "spot"}})[0] == (
        "InvalidParameterCombination"
    )
    cloud.ec2.modify_capacity_reservation(CapacityReservationId=reservation, InstanceCount=2)
    assert shown(cloud, reservation)["AvailableInstanceCount"] == 1


def test_launch_targets_a_group_of_reservations(cloud):
    kind = "g6.8xlarge"
    reservation = reserve(cloud, kind, InstanceMatchCriteria="targeted")
    groups = cloud.client("resource-groups")
    group = groups.create_group(Name="pool", Configuration=POOL)["Group"]["GroupArn"]
    answer = groups.group_resources(
        Group="pool",
        ResourceArns=[shown(cloud, reservation)["CapacityReservationArn"], "arn:aws:ec2:eu-west-1:1:instance/i-1"],
    )
    assert [one["ErrorCode"] for one in answer["Failed"]] == ["RESOURCE_TYPE_NOT_SUPPORTED"]
    pool = {"CapacityReservationTarget": {"CapacityReservationResourceGroupArn": group}}
    first, second = cloud.run(InstanceType=kind, count=2, CapacityReservationSpecification=pool)
    assert instance(cloud, first)["CapacityReservationId"] == reservation
    assert "CapacityReservationId" not in instance(cloud, second)


def test_capacity_block_runs_from_its_start_until_30_minutes_before_its_end(cloud):
    now = datetime.datetime.fromtimestamp(cloud.now(), datetime.UTC)
    wanted = {"InstanceType": "p5.48xlarge", "InstanceCount": 1, "CapacityDurationHours": 24}
    assert refusal(cloud.ec2.describe_capacity_block_offerings, **wanted | {"CapacityDurationHours": 30})[0] == (
        "InvalidParameterValue"
    )
    offers = cloud.ec2.describe_capacity_block_offerings(
        **wanted, StartDateRange=now + datetime.timedelta(days=2)
    )["CapacityBlockOfferings"]  # fmt: skip
    bought = cloud.ec2.purchase_capacity_block(
        CapacityBlockOfferingId=offers[0]["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
    )["CapacityReservation"]
    assert (bought["State"], bought["ReservationType"]) == ("scheduled", "capacity-block")
    launch = {
        "InstanceType": "p5.48xlarge", "InstanceMarketOptions": {"MarketType": "capacity-block"},
        "CapacityReservationSpecification": target(bought["CapacityReservationId"]),
    }  # fmt: skip
    assert refusal(cloud.run, **launch)[0] == "InvalidCapacityReservationState"
    cloud.advance((bought["StartDate"] - now).total_seconds() + 1)
    assert refusal(cloud.run, **launch | {"InstanceMarketOptions": {}})[0] == "InvalidParameterValue"
    (first,) = cloud.run(**launch)
    assert instance(cloud, first)["InstanceLifecycle"] == "capacity-block"
    cloud.until_state(first, "running")
    cloud.advance(23.5 * 3600 + 1)
    cloud.until_state(first, "terminated")
    code, _ = refusal(cloud.ec2.cancel_capacity_reservation, CapacityReservationId=bought["CapacityReservationId"])
    assert code == "UnsupportedOperation"


def test_interruptible_reservation_is_reclaimed_with_notice(cloud):
    kind = "g6.12xlarge"
    source = reserve(cloud, kind, 2, InstanceMatchCriteria="targeted")
    cloud.ec2.create_interruptible_capacity_reservation_allocation(CapacityReservationId=source, InstanceCount=1)
    allocation = shown(cloud, source)["InterruptibleCapacityAllocation"]
    lent = allocation["InterruptibleCapacityReservationId"]
    assert (allocation["Status"], shown(cloud, lent)["Interruptible"]) == ("active", True)
    (first,) = cloud.run(
        InstanceType=kind, CapacityReservationSpecification=target(lent),
        InstanceMarketOptions={"MarketType": "interruptible-capacity-reservation"},
    )  # fmt: skip
    cloud.ec2.update_interruptible_capacity_reservation_allocation(CapacityReservationId=source, TargetInstanceCount=0)
    (warning,) = cloud.bus.of("EC2 Capacity Reservation Instance Interruption Warning")
    assert warning["detail"]["instance-id"] == first
    assert shown(cloud, source)["AvailableInstanceCount"] == 2


def test_interfaces_are_checked_against_the_network_cards_of_the_type(cloud):
    def interface(card: int, device: int, **more) -> dict:
        return {"NetworkCardIndex": card, "DeviceIndex": device, "SubnetId": cloud.subnets[0],
                "Groups": [cloud.security_group]} | more  # fmt: skip

    cards = [interface(0, 0), *(interface(card, 1, InterfaceType="efa-only") for card in range(1, 32))]
    answer = cloud.ec2.run_instances(
        ImageId="ami-0123456789abcdef0", InstanceType="p5.48xlarge", MinCount=1, MaxCount=1, NetworkInterfaces=cards,
    )  # fmt: skip
    node = answer["Instances"][0]["InstanceId"]
    found = instance(cloud, node)["NetworkInterfaces"]
    places = sorted((one["Attachment"]["NetworkCardIndex"], one["Attachment"]["DeviceIndex"]) for one in found)
    assert places == [(0, 0), *((card, 1) for card in range(1, 32))]
    assert sum(one["InterfaceType"] == "efa-only" for one in found) == 31

    def refused(kind: str, *interfaces: dict) -> tuple[str, str]:
        return refusal(
            cloud.ec2.run_instances, ImageId="ami-0123456789abcdef0", InstanceType=kind, MinCount=1, MaxCount=1,
            NetworkInterfaces=list(interfaces),
        )  # fmt: skip

    efa = interface(0, 0, InterfaceType="efa")
    assert "EFA interfaces are not supported" in refused("g5.xlarge", efa)[1]
    assert refused("g5.48xlarge", interface(0, 0), interface(1, 1))[0] == "InvalidParameterValue"
    assert refused("g5.48xlarge", efa, interface(0, 1, InterfaceType="efa"))[0] == "AttachmentLimitExceeded"
    assert refused("g5.48xlarge", interface(0, 0, InterfaceType="efa-only"))[0] == "InvalidParameterValue"
    public = interface(0, 0, AssociatePublicIpAddress=True)
    assert "associatePublicIPAddress" in refused("g5.48xlarge", public, interface(0, 1))[1]


def test_partition_group_spreads_instances_and_cluster_group_checks_the_type(cloud):
    cloud.ec2.create_placement_group(GroupName="parts", Strategy="partition", PartitionCount=2)
    placed = cloud.run(count=2, Placement={"GroupName": "parts", "Tenancy": "dedicated"})
    assert sorted(instance(cloud, one)["Placement"]["PartitionNumber"] for one in placed) == [1, 2]
    assert instance(cloud, placed[0])["Placement"]["Tenancy"] == "dedicated"
    assert refusal(cloud.run, Placement={"GroupName": "parts", "PartitionNumber": 3})[0] == "InvalidParameterValue"
    cloud.ec2.create_placement_group(GroupName="close", Strategy="cluster")
    code, message = refusal(cloud.run, InstanceType="t3.micro", Placement={"GroupName": "close"})
    assert (code, "Cluster placement groups" in message) == ("InvalidParameterCombination", True)
