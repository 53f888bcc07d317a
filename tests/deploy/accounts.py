"""Creates the resources that an example expects in the account, and sets their IDs in the example's configuration."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.deploy.conftest import Workplace

Config = dict[str, Any]
FLEET_ROLES = {
    "ec2_fleet": ("ec2fleet.amazonaws.com", "spot.amazonaws.com"),
    "spot_fleet": ("spotfleet.amazonaws.com", "spot.amazonaws.com"),
}
"""Services whose service-linked roles exist in an account that has used such a fleet."""


def prepare(name: str, config: Mapping[str, Any], workplace: Workplace) -> Config:
    """Create the resources of an example, and return the example's configuration with their IDs."""
    prepared = copy.deepcopy(dict(config))
    if "existing" in prepared.get("network", {}):
        _vpc(prepared, workplace)
    for service in FLEET_ROLES.get(prepared["capacity"].get("backend", ""), ()):
        workplace.cloud.client("iam").create_service_linked_role(AWSServiceName=service)
    reservation = prepared["capacity"].get("reservation") or {}
    if "id" in reservation:
        _reservation(prepared, workplace)
    for kind in ("dataset_volume", "shared_volume"):
        volume = prepared.get("storage", {}).get(kind) or {}
        if "snapshot_id" in volume:
            volume["snapshot_id"] = _snapshot(prepared, workplace, volume["gib"])
    return prepared


def _zone(config: Config, letter: str) -> str:
    return str(config.get("region", "us-east-1")) + letter


def _vpc(config: Config, workplace: Workplace) -> None:
    ec2 = workplace.cloud.client("ec2")
    existing = config["network"]["existing"]
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    for setting in ({"EnableDnsSupport": {"Value": True}}, {"EnableDnsHostnames": {"Value": True}}):
        ec2.modify_vpc_attribute(VpcId=vpc, **setting)
    table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    existing["id"] = vpc
    existing["cidr"] = "10.0.0.0/16"
    if "route_table_ids" in existing:
        existing["route_table_ids"] = [table]
    for index, subnet in enumerate(existing["subnets"]):
        made = ec2.create_subnet(
            VpcId=vpc, CidrBlock=f"10.0.{16 * index}.0/20", AvailabilityZone=_zone(config, subnet["zone"])
        )
        subnet["id"] = made["Subnet"]["SubnetId"]
        ec2.associate_route_table(RouteTableId=table, SubnetId=subnet["id"])


def _reservation(config: Config, workplace: Workplace) -> None:
    capacity = config["capacity"]
    made = workplace.cloud.client("ec2").create_capacity_reservation(
        InstanceType=capacity["instance_types"][0],
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=_zone(config, capacity["reservation"].get("zone") or "a"),
        InstanceCount=capacity["nodes"],
        InstanceMatchCriteria="targeted",
    )
    reservation = capacity["reservation"]["id"] = made["CapacityReservation"]["CapacityReservationId"]
    # Other instances use the reservation, because the test checks the deployment without booting nodes.
    ec2 = workplace.cloud.client("ec2")
    ec2.run_instances(
        ImageId=ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"],
        InstanceType=capacity["instance_types"][0],
        MinCount=capacity["nodes"],
        MaxCount=capacity["nodes"],
        Placement={"AvailabilityZone": made["CapacityReservation"]["AvailabilityZone"]},
        CapacityReservationSpecification={"CapacityReservationTarget": {"CapacityReservationId": reservation}},
    )


def _snapshot(config: Config, workplace: Workplace, gib: int) -> str:
    ec2 = workplace.cloud.client("ec2")
    volume = ec2.create_volume(AvailabilityZone=_zone(config, "a"), Size=gib, VolumeType="gp3")["VolumeId"]
    return str(ec2.create_snapshot(VolumeId=volume)["SnapshotId"])
