"""The run controller's back ends: what they make of AWS's answers, and which calls an action becomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber

from stacks.functions.run_controller.fleets import FleetIdentity, connect
from stacks.functions.run_controller.fleets.auto_scaling_group import AutoScalingGroup
from stacks.functions.run_controller.fleets.ec2_fleet import Ec2Fleet
from stacks.functions.run_controller.fleets.spot_fleet import SpotFleet
from stacks.functions.run_controller.policy import Detach, Resize, Surplus

FLEET, REQUEST = "fleet-1", "sfr-1"
SPECIFICATION = {"LaunchTemplateId": "lt-1", "LaunchTemplateName": "nodes", "Version": "3"}
OVERRIDES = [
    {"InstanceType": name, "SubnetId": subnet, "Priority": float(place)}
    for place, name in enumerate(("g6.12xlarge", "g6.24xlarge"))
    for subnet in ("subnet-a", "subnet-b")
]
CONFIGS = [{"LaunchTemplateSpecification": SPECIFICATION, "Overrides": OVERRIDES}]
MOVED = [
    {
        "LaunchTemplateSpecification": {"LaunchTemplateId": "lt-1", "Version": "3"},
        "Overrides": [
            {"InstanceType": name, "SubnetId": "subnet-c", "Priority": float(place)}
            for place, name in enumerate(("g6.12xlarge", "g6.24xlarge"))
        ],
    }
]
Made = tuple[Any, Stubber]


@pytest.fixture
def ec2() -> Any:
    return boto3.client("ec2", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")


def ec2_fleet(ec2: Any, base: int = 0) -> Made:
    return Ec2Fleet(FLEET, ec2, maximum=3, on_demand_base=base), Stubber(ec2)


def spot_fleet(ec2: Any, base: int = 0) -> Made:
    return SpotFleet(REQUEST, ec2, maximum=3, on_demand_base=base), Stubber(ec2)


def tell_ec2(stub: Stubber, total: int, state: str = "active") -> None:
    fleet = {
        "FleetState": state,
        "LaunchTemplateConfigs": CONFIGS,
        "TargetCapacitySpecification": {"TotalTargetCapacity": total},
    }
    stub.add_response("describe_fleets", {"Fleets": [fleet]}, {"FleetIds": [FLEET]})


def tell_spot(stub: Stubber, total: int, state: str = "active") -> None:
    config = {"TargetCapacity": total, "LaunchTemplateConfigs": CONFIGS, "IamFleetRole": "role"}
    request = {"SpotFleetRequestState": state, "SpotFleetRequestConfig": config}
    answer = {"SpotFleetRequestConfigs": [request]}
    stub.add_response("describe_spot_fleet_requests", answer, {"SpotFleetRequestIds": [REQUEST]})


def tell_pages(stub: Stubber, operation: str, key: str, fleet_id: str) -> None:
    first = {"ActiveInstances": [{"InstanceId": "i-1"}], "NextToken": "more"}
    stub.add_response(operation, first, {key: fleet_id})
    stub.add_response(operation, {"ActiveInstances": [{"InstanceId": "i-2"}]}, {key: fleet_id, "NextToken": "more"})


@pytest.mark.parametrize("total", [0, 2, 3, 5])
@pytest.mark.parametrize("kind", ["ec2", "spot"])
def test_a_fleet_is_seen_with_what_it_was_asked_for_beyond(ec2: Any, kind: str, total: int) -> None:
    fleet, stub = (ec2_fleet if kind == "ec2" else spot_fleet)(ec2)
    if kind == "ec2":
        tell_ec2(stub, total)
        tell_pages(stub, "describe_fleet_instances", "FleetId", FLEET)
    else:
        tell_spot(stub, total)
        tell_pages(stub, "describe_spot_fleet_instances", "SpotFleetRequestId", REQUEST)
    with stub:
        group = fleet.look()
    assert (group.desired, group.surplus) == (min(total, 3), max(0, total - 3))
    assert group.subnets == ("subnet-a", "subnet-b")
    assert group.template_version == f"{FLEET if kind == 'ec2' else REQUEST}:3"
    assert group.in_service() == ("i-1", "i-2")
    stub.assert_no_pending_responses()


@pytest.mark.parametrize(
    ("make", "tell", "state"),
    [(ec2_fleet, tell_ec2, "deleted_terminating"), (spot_fleet, tell_spot, "cancelled_running")],
)
def test_a_fleet_on_its_way_out_is_not_there(
    ec2: Any, make: Callable[[Any], Made], tell: Callable[..., None], state: str
) -> None:
    fleet, stub = make(ec2)
    tell(stub, 2, state)
    with stub:
        assert fleet.look() is None


@pytest.mark.parametrize(
    ("make", "operation", "code"),
    [
        (ec2_fleet, "describe_fleets", "InvalidFleetId.NotFound"),
        (spot_fleet, "describe_spot_fleet_requests", "InvalidSpotFleetRequestId.NotFound"),
    ],
)
def test_absence_is_an_answer_and_refusal_an_error(
    ec2: Any, make: Callable[[Any], Made], operation: str, code: str
) -> None:
    fleet, stub = make(ec2)
    stub.add_client_error(operation, code)
    stub.add_client_error(operation, "UnauthorizedOperation")
    with stub:
        assert fleet.look() is None
        with pytest.raises(ClientError, match="Unauthorized"):
            fleet.look()


@pytest.mark.parametrize(
    ("action", "target", "excess"),
    [
        (Resize(3), (3, 1, 2), "termination"),
        (Resize(0), (0, 0, 0), "termination"),
        (Surplus(3, 1), (4, 1, 3), "no-termination"),
        (Surplus(3, 0), (3, 1, 2), "no-termination"),
    ],
)
def test_actions_become_targets(ec2: Any, action: Any, target: tuple[int, int, int], excess: str) -> None:
    """Asking for less ends machines only when the run wants fewer: never the ones that replaced others."""
    fleet, stub = ec2_fleet(ec2, base=1)
    total, on_demand, spot = target
    specification = {
        "TotalTargetCapacity": total,
        "OnDemandTargetCapacity": on_demand,
        "SpotTargetCapacity": spot,
    }
    asked = {"FleetId": FLEET, "TargetCapacitySpecification": specification, "ExcessCapacityTerminationPolicy": excess}
    stub.add_response("modify_fleet", {"Return": True}, asked)
    with stub:
        fleet.carry_out(action)
    request, stub = spot_fleet(ec2, base=1)
    words = {"termination": "default", "no-termination": "noTermination"}
    asked = {
        "SpotFleetRequestId": REQUEST,
        "TargetCapacity": total,
        "OnDemandTargetCapacity": on_demand,
        "ExcessCapacityTerminationPolicy": words[excess],
    }
    stub.add_response("modify_spot_fleet_request", {"Return": True}, asked)
    with stub:
        request.carry_out(action)
    stub.assert_no_pending_responses()


def test_the_next_subnet_keeps_templates_and_types(ec2: Any) -> None:
    fleet, stub = ec2_fleet(ec2)
    tell_ec2(stub, 0)
    asked = {
        "FleetId": FLEET,
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": 2,
            "OnDemandTargetCapacity": 0,
            "SpotTargetCapacity": 2,
        },
        "ExcessCapacityTerminationPolicy": "termination",
        "LaunchTemplateConfigs": MOVED,
    }
    stub.add_response("modify_fleet", {"Return": True}, asked)
    with stub:
        fleet.carry_out(Resize(2, ("subnet-c",)))
    request, stub = spot_fleet(ec2)
    tell_spot(stub, 0)
    asked = {
        "SpotFleetRequestId": REQUEST,
        "TargetCapacity": 2,
        "OnDemandTargetCapacity": 0,
        "ExcessCapacityTerminationPolicy": "default",
        "LaunchTemplateConfigs": MOVED,
    }
    stub.add_response("modify_spot_fleet_request", {"Return": True}, asked)
    with stub:
        request.carry_out(Resize(2, ("subnet-c",)))


def test_what_a_back_end_cannot_do_is_refused(ec2: Any) -> None:
    for make in (ec2_fleet, spot_fleet):
        with pytest.raises(TypeError, match="cannot be detached"):
            make(ec2)[0].carry_out(Detach("i-1"))
    with pytest.raises(TypeError, match="detaches"):
        AutoScalingGroup("g", object()).carry_out(Surplus(1, 1))


@pytest.mark.parametrize(
    ("backend", "kind", "service"),
    [
        ("auto_scaling_group", AutoScalingGroup, "autoscaling"),
        ("ec2_fleet", Ec2Fleet, "ec2"),
        ("spot_fleet", SpotFleet, "ec2"),
    ],
)
def test_the_back_end_is_the_one_that_is_named(backend: str, kind: type, service: str) -> None:
    asked: list[str] = []
    fleet = connect(FleetIdentity(backend, "x", maximum=1, on_demand_base=0), asked.append)
    assert isinstance(fleet, kind)
    assert asked == [service]


def test_a_group_without_a_mixed_policy_and_one_with_several_templates() -> None:
    plain = {"LaunchTemplate": {"Version": "7"}}
    other = {"InstanceType": "p4d.24xlarge", "LaunchTemplateSpecification": {"Version": "9"}}
    template = {"LaunchTemplateSpecification": {"Version": "8"}, "Overrides": [other, {"InstanceType": "x"}]}
    mixed = {"MixedInstancesPolicy": {"LaunchTemplate": template}}

    class Recorded:
        def __init__(self, group: dict[str, Any]) -> None:
            self.group = {"DesiredCapacity": 1, "MaxSize": 2, "VPCZoneIdentifier": "subnet-a", **group}

        def describe_auto_scaling_groups(self, **_: Any) -> dict[str, Any]:
            return {"AutoScalingGroups": [self.group]}

    versions = [AutoScalingGroup("g", Recorded(group)).look() for group in (plain, mixed)]
    assert [group.template_version for group in versions if group] == ["7", "8,9"]
