"""The three back ends: made at zero, sized by nobody but the run controller, and with rights on themselves alone."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Assembly, Synthesis
from .test_training_stack import STACK, controller_role, launch, node_role

KINDS = {
    "demo": "AWS::AutoScaling::AutoScalingGroup",
    "ec2-fleet": "AWS::EC2::EC2Fleet",
    "spot-fleet": "AWS::EC2::SpotFleet",
}


def fleet(assembly: Assembly) -> dict[str, Any]:
    """Return the properties of the one fleet of a deployment."""
    (found,) = [item for kind in KINDS.values() for item in assembly.of_type(STACK, kind).values()]
    properties: dict[str, Any] = found["Properties"]
    return properties.get("SpotFleetRequestConfigData", properties)


@pytest.mark.parametrize("name", KINDS)
def test_the_back_end_is_the_one_that_is_named(synthesis: Synthesis, name: str) -> None:
    assert [kind for kind in KINDS.values() if synthesis.of(name).of_type(STACK, kind)] == [KINDS[name]]
    variables = synthesis.of(name).one(STACK, "AWS::Lambda::Function")["Properties"]["Environment"]["Variables"]
    (logical_id,) = synthesis.of(name).of_type(STACK, KINDS[name])
    assert variables["FLEET_ID"] == ("trainstack-demo" if name == "demo" else {"Ref": logical_id})


def test_fleets_are_made_at_zero(synthesis: Synthesis) -> None:
    target = fleet(synthesis.of("ec2-fleet"))["TargetCapacitySpecification"]
    assert target == {"DefaultTargetCapacityType": "spot", "TotalTargetCapacity": 0}
    request = fleet(synthesis.of("spot-fleet"))
    assert (request["TargetCapacity"], request["OnDemandTargetCapacity"]) == (0, 0)
    assert request["ExcessCapacityTerminationPolicy"] == "default"  # as the call spells it
    for properties in (fleet(synthesis.of("ec2-fleet")), request):
        assert properties["Type"] == "maintain"
        assert properties["ReplaceUnhealthyInstances"] is True


@pytest.mark.parametrize("name", ["ec2-fleet", "spot-fleet"])
def test_every_type_is_offered_in_every_zone(synthesis: Synthesis, name: str) -> None:
    (config,) = fleet(synthesis.of(name))["LaunchTemplateConfigs"]
    offered = {(item["InstanceType"], str(item["SubnetId"])) for item in config["Overrides"]}
    assert len(offered) == 2 * 3
    assert config["LaunchTemplateSpecification"]["Version"]["Fn::GetAtt"][1] == "LatestVersionNumber"


def test_a_node_edit_makes_a_second_request(synthesis: Synthesis) -> None:
    """Templates of a Spot Fleet change in place, which no machine notices; its tags are create-only."""
    (specification,) = fleet(synthesis.of("spot-fleet"))["TagSpecifications"]
    tags = {tag["Key"]: tag["Value"] for tag in specification["Tags"]}
    assert tags["trainstack:template-version"]["Fn::GetAtt"][1] == "LatestVersionNumber"


def test_rebalancing_is_as_asked(synthesis: Synthesis) -> None:
    rebalance = fleet(synthesis.of("spot-fleet"))["SpotMaintenanceStrategies"]["CapacityRebalance"]
    assert rebalance == {"ReplacementStrategy": "launch-before-terminate", "TerminationDelay": 300}
    assert "MaintenanceStrategies" not in fleet(synthesis.of("ec2-fleet"))["SpotOptions"]


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("demo", set()),
        ("ec2-fleet", {"ec2fleet.amazonaws.com", "spot.amazonaws.com"}),
        ("spot-fleet", {"spotfleet.amazonaws.com", "spot.amazonaws.com"}),
    ],
)
def test_launching_roles_may_use_the_key_and_are_made_only_when_asked(
    synthesis: Synthesis, name: str, roles: set[str]
) -> None:
    assembly = synthesis.of(name)
    made = assembly.of_type("StorageStack", "AWS::IAM::ServiceLinkedRole").values()
    assert {item["Properties"]["AWSServiceName"] for item in made} == roles
    assert all(item["Condition"] and item["DeletionPolicy"] == "Retain" for item in made)
    policy = str(assembly.one("StorageStack", "AWS::KMS::Key")["Properties"]["KeyPolicy"])
    for service in roles or {"autoscaling.amazonaws.com"}:
        assert f"role/aws-service-role/{service}/" in policy


@pytest.mark.parametrize(
    ("name", "actions"),
    [
        ("demo", {"autoscaling:UpdateAutoScalingGroup", "autoscaling:DetachInstances"}),
        ("ec2-fleet", {"ec2:ModifyFleet"}),
        ("spot-fleet", {"ec2:ModifySpotFleetRequest"}),
    ],
)
def test_the_controller_sizes_its_own_fleet_only(synthesis: Synthesis, name: str, actions: set[str]) -> None:
    statement = synthesis.of(name).statements(STACK, controller_role(synthesis.of(name)))["SizeFleet"]
    assert set([statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]) == actions
    assert statement["Resource"] != "*"


def test_moving_a_fleet_hands_the_nodes_role_on(synthesis: Synthesis) -> None:
    one_zone = synthesis.variant("fleet-one-zone", {"capacity.backend": "ec2_fleet"})
    statements = one_zone.statements(STACK, controller_role(one_zone))
    assert statements["HandRoleToNodes"]["Resource"] == {"Fn::GetAtt": [node_role(one_zone), "Arn"]}
    assert statements["HandRoleToNodes"]["Condition"] == {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}
    assert "HandRoleToNodes" not in synthesis.of("ec2-fleet").statements(
        STACK, controller_role(synthesis.of("ec2-fleet"))
    )
    (config,) = fleet(one_zone)["LaunchTemplateConfigs"]
    assert len({str(item["SubnetId"]) for item in config["Overrides"]}) == 1


@pytest.mark.parametrize(("name", "leaves"), [("demo", True), ("ec2-fleet", False), ("spot-fleet", False)])
def test_only_a_group_has_a_hook_to_complete(synthesis: Synthesis, name: str, leaves: bool) -> None:
    statements = synthesis.of(name).statements(STACK, node_role(synthesis.of(name)))
    assert ("LeaveFleet" in statements) is leaves


class TestMarkets:
    def test_on_demand_base_inside_the_reservation_and_spot_outside(self, synthesis: Synthesis) -> None:
        properties = fleet(synthesis.of("reserved"))
        specification = properties["CapacityReservationSpecification"]
        assert specification["CapacityReservationPreference"] == "capacity-reservations-first"
        assert specification["CapacityReservationTarget"] == {"CapacityReservationIds": ["cr-0123456789abcdef0"]}
        distribution = properties["MixedInstancesPolicy"]["InstancesDistribution"]
        assert distribution["OnDemandBaseCapacity"] == 2
        assert distribution["OnDemandPercentageAboveBaseCapacity"] == 0
        assert "CapacityReservationSpecification" not in launch(synthesis.of("reserved"))
        assert len(properties["VPCZoneIdentifier"]) == 1

    def test_a_capacity_block_is_a_market_of_the_template(self, synthesis: Synthesis) -> None:
        assembly = synthesis.of("capacity-block")
        data, properties = launch(assembly), fleet(assembly)
        assert data["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
        assert data["InstanceType"] == "p5.48xlarge"
        assert data["CapacityReservationSpecification"] == {
            "CapacityReservationPreference": "capacity-reservations-only",
            "CapacityReservationTarget": {"CapacityReservationId": "cr-0123456789abcdef0"},
        }
        assert "MixedInstancesPolicy" not in properties
        assert "LaunchTemplate" in properties

    def test_a_reservation_that_the_stack_makes(self, synthesis: Synthesis) -> None:
        wanted = {"instance_type": "c7i.2xlarge", "zone": "b", "count": 2, "end": "2030-01-31T12:00:00+02:00"}
        made = synthesis.variant("made", {"capacity.market": "reserved", "capacity.reservation": {"create": wanted}})
        properties = made.one(STACK, "AWS::EC2::CapacityReservation")["Properties"]
        assert properties["InstanceMatchCriteria"] == "targeted"
        assert (properties["EndDateType"], properties["EndDate"]) == ("limited", "2030-01-31T10:00:00Z")
        assert ":placement-group/" in str(properties["PlacementGroupArn"])
        (target,) = launch(made)["CapacityReservationSpecification"]["CapacityReservationTarget"].values()
        assert target["Fn::GetAtt"][1] == "Id"
        (subnet,) = fleet(made)["VPCZoneIdentifier"]
        assert "IsolatedB" in str(subnet)

    def test_partitions(self, synthesis: Synthesis) -> None:
        assembly = synthesis.variant("partitions", {"capacity.placement": "partition", "capacity.partitions": 3})
        properties = assembly.one(STACK, "AWS::EC2::PlacementGroup")["Properties"]
        assert (properties["Strategy"], properties["PartitionCount"]) == ("partition", 3)
