"""The three back ends: created with zero nodes, resized by the run controller only, with limited permissions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from localcloud.cloud import LocalCloud
from localcloud.iam.volume_keys import may_encrypt
from stacks.functions.run_controller.environment import Environment

from .conftest import Assembly, Synthesis
from .test_training_stack import STACK, controller_role, launch, node_role

DEADLINE = {"limits.deadline_hours": 100.0, "limits.training_hours": 50.0}
KINDS = {
    "demo": "AWS::AutoScaling::AutoScalingGroup",
    "ec2-fleet": "AWS::EC2::EC2Fleet",
    "spot-fleet": "AWS::EC2::SpotFleet",
}


def fleet(assembly: Assembly) -> dict[str, Any]:
    """Return the properties of a deployment's fleet, or of its first group."""
    found = [item for kind in KINDS.values() for item in assembly.of_type(STACK, kind).values()][0]
    properties: dict[str, Any] = found["Properties"]
    return properties.get("SpotFleetRequestConfigData", properties)


@pytest.mark.parametrize("name", KINDS)
def test_fleet_has_the_configured_back_end(synthesis: Synthesis, name: str) -> None:
    assert [kind for kind in KINDS.values() if synthesis.of(name).of_type(STACK, kind)] == [KINDS[name]]
    variables = synthesis.of(name).one(STACK, "AWS::Lambda::Function")["Properties"]["Environment"]["Variables"]
    logical_id, *others = synthesis.of(name).of_type(STACK, KINDS[name])
    assert len(others) == (1 if name == "demo" else 0)  # one group for each candidate zone
    groups = "trainstack-demo.a,trainstack-demo.b"
    assert variables["FLEET_ID"] == (groups if name == "demo" else {"Ref": logical_id})


def test_fleets_start_with_zero_nodes(synthesis: Synthesis) -> None:
    target = fleet(synthesis.of("ec2-fleet"))["TargetCapacitySpecification"]
    assert target == {"DefaultTargetCapacityType": "spot", "TotalTargetCapacity": 0}
    request = fleet(synthesis.of("spot-fleet"))
    assert (request["TargetCapacity"], request["OnDemandTargetCapacity"]) == (0, 0)
    assert request["ExcessCapacityTerminationPolicy"] == "default"  # spelled as in the API
    for properties in (fleet(synthesis.of("ec2-fleet")), request):
        assert properties["Type"] == "maintain"
        assert properties["ReplaceUnhealthyInstances"] is True


@pytest.mark.parametrize("name", ["ec2-fleet", "spot-fleet"])
def test_each_type_is_listed_for_each_zone(synthesis: Synthesis, name: str) -> None:
    (config,) = fleet(synthesis.of(name))["LaunchTemplateConfigs"]
    offered = {(item["InstanceType"], str(item["SubnetId"])) for item in config["Overrides"]}
    assert len(offered) == 2 * 3
    assert config["LaunchTemplateSpecification"]["Version"]["Fn::GetAtt"][1] == "LatestVersionNumber"


def test_node_edit_creates_a_second_request(synthesis: Synthesis) -> None:
    """A Spot Fleet's template changes in place, without effect on instances; its tags are create-only."""
    (specification,) = fleet(synthesis.of("spot-fleet"))["TagSpecifications"]
    tags = {tag["Key"]: tag["Value"] for tag in specification["Tags"]}
    assert tags["trainstack:template-version"]["Fn::GetAtt"][1] == "LatestVersionNumber"


def test_rebalance_options(synthesis: Synthesis) -> None:
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
def test_service_linked_roles_may_use_the_key_and_are_optional(
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
    ("name", "role"),
    [
        ("demo", "autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"),
        ("ec2-fleet", "ec2fleet.amazonaws.com/AWSServiceRoleForEC2Fleet"),
        ("spot-fleet", "spotfleet.amazonaws.com/AWSServiceRoleForEC2SpotFleet"),
    ],
)
def test_service_linked_role_may_encrypt_the_volumes(
    synthesis: Synthesis, tmp_path: Path, name: str, role: str
) -> None:
    """The embedded cloud evaluates the key's policy with the conditions of EC2's calls."""
    key = synthesis.of(name).one("StorageStack", "AWS::KMS::Key")
    properties = {"KeyPolicy": key["Properties"]["KeyPolicy"]}
    cloud = LocalCloud(tmp_path)
    cloud.start()
    try:
        cloudformation = cloud.clients.client("cloudformation")
        template = {"Resources": {"Key": {"Type": "AWS::KMS::Key", "Properties": properties}}}
        cloudformation.create_stack(StackName="key", TemplateBody=json.dumps(template))
        cloudformation.get_waiter("stack_create_complete").wait(
            StackName="key", WaiterConfig={"Delay": 0.1, "MaxAttempts": 300}
        )
        (made,) = cloudformation.describe_stack_resources(StackName="key")["StackResources"]
        assert may_encrypt(cloud.region, role, made["PhysicalResourceId"])
        assert not may_encrypt(cloud.region, "other.amazonaws.com/AWSServiceRoleForOther", made["PhysicalResourceId"])
    finally:
        cloud.close()


@pytest.mark.parametrize(
    ("name", "actions"),
    [
        (
            "demo",
            {"autoscaling:SetDesiredCapacity", "autoscaling:DetachInstances", "autoscaling:CompleteLifecycleAction"},
        ),
        ("ec2-fleet", {"ec2:ModifyFleet"}),
        ("spot-fleet", {"ec2:ModifySpotFleetRequest"}),
    ],
)
def test_controller_may_resize_its_fleet_only(synthesis: Synthesis, name: str, actions: set[str]) -> None:
    statement = synthesis.of(name).statements(STACK, controller_role(synthesis.of(name)))["SizeFleet"]
    assert set([statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]) == actions
    assert statement["Resource"] != "*"


@pytest.mark.parametrize(
    ("name", "changes", "moves", "releases"),
    [
        ("plain", {}, False, False),
        ("cost", {"capacity.choose": "cost"}, True, False),
        ("availability", {"capacity.choose": "availability"}, False, False),
        ("base", {"capacity.choose": "cost", "capacity.on_demand_base": 1}, False, False),
        ("ec2-cost", {"capacity.choose": "cost", "capacity.backend": "ec2_fleet"}, False, False),
        ("ec2-deadline", {"capacity.backend": "ec2_fleet", **DEADLINE}, False, True),
        ("spot-deadline", {"capacity.backend": "spot_fleet", **DEADLINE}, False, True),
        ("ec2-stop", {"capacity.backend": "ec2_fleet", **DEADLINE, "limits.on_deadline_miss": "stop"}, False, False),
    ],
)
def test_the_role_matches_what_the_controller_does_with_running_nodes(
    synthesis: Synthesis, name: str, changes: dict[str, Any], moves: bool, releases: bool
) -> None:
    """The function derives both from its variables, and the stack grants the permissions from the file."""
    assembly = synthesis.variant(f"running-{name}", changes)
    role = controller_role(assembly)
    statements = assembly.statements(STACK, role)
    (variables,) = (
        each["Properties"]["Environment"]["Variables"]
        for each in assembly.of_type(STACK, "AWS::Lambda::Function").values()
        if each["Properties"]["Role"] == {"Fn::GetAtt": [role, "Arn"]}
    )
    texts = {key: value if isinstance(value, str) else "subnet-a,subnet-b" for key, value in variables.items()}
    assert Environment.of(texts).settings.moves is moves
    assert ("ReadProgress" in statements) is (moves or "limits.deadline_hours" in changes)
    assert ("ReleaseNodes" in statements) is releases
    if releases:
        assert statements["ReleaseNodes"]["Action"] == "ec2:TerminateInstances"
        tag = statements["ReleaseNodes"]["Condition"]["StringEquals"]
        assert tag == {"aws:ResourceTag/trainstack:deployment": variables["DEPLOYMENT"]}


def test_moving_a_fleet_passes_the_node_role(synthesis: Synthesis) -> None:
    one_zone = synthesis.variant("fleet-one-zone", {"capacity.backend": "ec2_fleet"})
    statements = one_zone.statements(STACK, controller_role(one_zone))
    assert statements["PassNodeRole"]["Resource"] == {"Fn::GetAtt": [node_role(one_zone), "Arn"]}
    assert statements["PassNodeRole"]["Condition"] == {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}
    assert "PassNodeRole" not in synthesis.of("ec2-fleet").statements(STACK, controller_role(synthesis.of("ec2-fleet")))
    (config,) = fleet(one_zone)["LaunchTemplateConfigs"]
    assert len({str(item["SubnetId"]) for item in config["Overrides"]}) == 1


@pytest.mark.parametrize(("name", "leaves"), [("demo", True), ("ec2-fleet", False), ("spot-fleet", False)])
def test_only_a_group_has_lifecycle_hook_permissions(synthesis: Synthesis, name: str, leaves: bool) -> None:
    statements = synthesis.of(name).statements(STACK, node_role(synthesis.of(name)))
    assert ("CompleteTermination" in statements) is leaves


class TestMarkets:
    def test_on_demand_base_uses_the_reservation_and_spot_does_not(self, synthesis: Synthesis) -> None:
        properties = fleet(synthesis.of("reserved"))
        specification = properties["CapacityReservationSpecification"]
        assert specification["CapacityReservationPreference"] == "capacity-reservations-first"
        assert specification["CapacityReservationTarget"] == {"CapacityReservationIds": ["cr-0123456789abcdef0"]}
        distribution = properties["MixedInstancesPolicy"]["InstancesDistribution"]
        assert distribution["OnDemandBaseCapacity"] == 2
        assert distribution["OnDemandPercentageAboveBaseCapacity"] == 0
        assert "CapacityReservationSpecification" not in launch(synthesis.of("reserved"))
        assert len(properties["VPCZoneIdentifier"]) == 1

    def test_capacity_block_is_a_market_option_of_the_template(self, synthesis: Synthesis) -> None:
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

    def test_reservation_created_by_the_stack(self, synthesis: Synthesis) -> None:
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


DEADLINE = """
name: planned
capacity: {instance_types: [g6.xlarge], nodes: 2, placement: cluster}
network: {zones: [a, b]}
limits: {deadline_hours: 40, training_hours: 20}
training: {dataset: text, config: {model: {preset: gpt2}, global_batch_size: 256}}
"""


@pytest.fixture(scope="module")
def planned(synthesis: Synthesis, tmp_path_factory: pytest.TempPathFactory) -> Assembly:
    path = tmp_path_factory.mktemp("planned") / "planned.yaml"
    path.write_text(DEADLINE)
    return synthesis.run(path, "planned")


def test_deadline_adds_a_group_on_demand_to_each_group(planned: Assembly) -> None:
    groups = planned.of_type(STACK, "AWS::AutoScaling::AutoScalingGroup")
    percentages = {
        each["Properties"]["AutoScalingGroupName"]: each["Properties"]["MixedInstancesPolicy"]["InstancesDistribution"][
            "OnDemandPercentageAboveBaseCapacity"
        ]
        for each in groups.values()
    }
    names = ["trainstack-planned.a", "trainstack-planned.b"]
    assert percentages == dict.fromkeys(names, 0) | {f"{name}.on-demand": 100 for name in names}
    zones = [str(each["Properties"]["VPCZoneIdentifier"]) for each in groups.values()]
    assert zones[:2] == zones[2:]
    variables = planned.one(STACK, "AWS::Lambda::Function")["Properties"]["Environment"]["Variables"]
    assert variables["FLEET_ID"].split(",") == list(percentages)
    assert (variables["DEADLINE_HOURS"], variables["TRAINING_HOURS"]) == ("40.0", "20.0")
    assert json.loads(variables["PLACES"])["zones"] == ["us-east-1a", "us-east-1b"]


def test_controller_reads_the_progress_only_with_a_deadline(planned: Assembly, synthesis: Synthesis) -> None:
    def reads(assembly: Assembly) -> bool:
        policies = assembly.of_type(STACK, "AWS::IAM::Policy")
        own = [each for name, each in policies.items() if name.startswith("RunController")]
        return "control/status.json" in json.dumps(own)

    assert reads(planned)
    assert not reads(synthesis.of("demo"))
