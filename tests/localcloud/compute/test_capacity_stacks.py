"""Capacity created by stacks: changes in place, replacements, and deletion with the stack."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def roles(cloud) -> str:
    """Create the roles required by fleets; return the ARN of the Spot Fleet role."""
    trust = {"Effect": "Allow", "Principal": {"Service": "spotfleet.amazonaws.com"}, "Action": "sts:AssumeRole"}
    document = {"Version": "2012-10-17", "Statement": [trust]}
    linked = {
        name: {"Type": "AWS::IAM::ServiceLinkedRole", "Properties": {"AWSServiceName": f"{name}.amazonaws.com"}}
        for name in ("ec2fleet", "spotfleet", "spot")
    }
    made = cloud.deploy(
        "roles", {"Fleet": {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": document}}, **linked}
    )
    assert made["spotfleet"] == "AWSServiceRoleForEC2SpotFleet"
    return cloud.client("iam").get_role(RoleName=made["Fleet"])["Role"]["Arn"]


def fleet(cloud, template: str, total: int, *types: str) -> dict:
    overrides = [{"InstanceType": name, "SubnetId": cloud.subnets[0]} for name in types]
    return {
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateId": template, "Version": "1"},
                "Overrides": overrides,
            }
        ],
        "TargetCapacitySpecification": {"TotalTargetCapacity": total, "DefaultTargetCapacityType": "spot"},
    }


def running(cloud, tag: str, fleet_id: str) -> list[dict]:
    filters = [
        {"Name": f"tag:{tag}", "Values": [fleet_id]},
        {"Name": "instance-state-name", "Values": ["pending", "running"]},
    ]
    answer = cloud.ec2.describe_instances(Filters=filters)
    return [one for reservation in answer["Reservations"] for one in reservation["Instances"]]


def until_running(cloud, tag: str, fleet_id: str, count: int) -> list[str]:
    def settled() -> bool:
        return len(running(cloud, tag, fleet_id)) == count

    cloud.until(settled, f"{count} instances of {fleet_id}")
    return [one["InstanceId"] for one in running(cloud, tag, fleet_id)]


def test_fleet_size_changes_in_place_and_launch_configuration_replaces_the_fleet(cloud, roles):
    template = cloud.template()

    def resources(total: int, kind: str) -> dict:
        return {"Fleet": {"Type": "AWS::EC2::EC2Fleet", "Properties": fleet(cloud, template, total, kind)}}

    first = cloud.deploy("ec2-fleet", resources(1, "m5.large"))["Fleet"]
    (kept,) = until_running(cloud, "aws:ec2:fleet-id", first, 1)
    assert cloud.deploy("ec2-fleet", resources(2, "m5.large"))["Fleet"] == first
    assert kept in until_running(cloud, "aws:ec2:fleet-id", first, 2)
    second = cloud.deploy("ec2-fleet", resources(2, "m5.xlarge"))["Fleet"]
    assert second != first
    until_running(cloud, "aws:ec2:fleet-id", first, 0)
    until_running(cloud, "aws:ec2:fleet-id", second, 2)
    cloud.destroy("ec2-fleet")
    until_running(cloud, "aws:ec2:fleet-id", second, 0)


def test_launch_configuration_of_a_spot_fleet_changes_in_place(cloud, roles):
    template = cloud.template()

    def resources(total: int, kind: str) -> dict:
        launch = fleet(cloud, template, total, kind)["LaunchTemplateConfigs"]
        config = {"IamFleetRole": roles, "TargetCapacity": total, "LaunchTemplateConfigs": launch, "Type": "maintain"}
        return {"Fleet": {"Type": "AWS::EC2::SpotFleet", "Properties": {"SpotFleetRequestConfigData": config}}}

    first = cloud.deploy("spot-fleet", resources(1, "m5.large"))["Fleet"]
    until_running(cloud, "aws:ec2spot:fleet-request-id", first, 1)
    assert cloud.deploy("spot-fleet", resources(2, "m5.xlarge"))["Fleet"] == first
    until_running(cloud, "aws:ec2spot:fleet-request-id", first, 2)
    types = [one["InstanceType"] for one in running(cloud, "aws:ec2spot:fleet-request-id", first)]
    assert sorted(types) == ["m5.large", "m5.xlarge"]
    cloud.destroy("spot-fleet")
    until_running(cloud, "aws:ec2spot:fleet-request-id", first, 0)


def test_reservation_with_placement_group(cloud):
    def resources(count: int) -> dict:
        reservation = {
            "InstanceType": "p4d.24xlarge", "InstancePlatform": "Linux/UNIX", "AvailabilityZone": "eu-west-1a",
            "InstanceCount": count, "InstanceMatchCriteria": "targeted", "EndDateType": "unlimited",
            "PlacementGroupArn": {
                "Fn::Sub": "arn:${AWS::Partition}:ec2:${AWS::Region}:${AWS::AccountId}:placement-group/${Cluster}"
            },
        }  # fmt: skip
        return {
            "Cluster": {"Type": "AWS::EC2::PlacementGroup", "Properties": {"Strategy": "cluster"}},
            "Reservation": {"Type": "AWS::EC2::CapacityReservation", "Properties": reservation},
        }

    made = cloud.deploy("reserved", resources(1))
    launch = {
        "InstanceType": "p4d.24xlarge", "Placement": {"GroupName": made["Cluster"]},
        "CapacityReservationSpecification": {
            "CapacityReservationTarget": {"CapacityReservationId": made["Reservation"]}
        },
    }  # fmt: skip
    (node,) = cloud.run(**launch)
    shown = cloud.ec2.describe_instances(InstanceIds=[node])["Reservations"][0]["Instances"][0]
    assert shown["CapacityReservationId"] == made["Reservation"]
    assert cloud.deploy("reserved", resources(2)) == made
    found = cloud.ec2.describe_capacity_reservations(CapacityReservationIds=[made["Reservation"]])
    assert found["CapacityReservations"][0]["TotalInstanceCount"] == 2
    cloud.ec2.terminate_instances(InstanceIds=[node])
    cloud.until_state(node, "terminated")
    cloud.destroy("reserved")
    found = cloud.ec2.describe_capacity_reservations(CapacityReservationIds=[made["Reservation"]])
    assert found["CapacityReservations"][0]["State"] == "cancelled"
