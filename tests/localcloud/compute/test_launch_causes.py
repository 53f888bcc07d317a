"""Each class of launch failure, injected into each kind of fleet, as the run controller explains it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stacks.functions.run_controller import policy
from stacks.functions.run_controller.causes import Cause
from stacks.functions.run_controller.fleet_clients import FleetIdentity, connect
from tests.localcloud.compute.controlled_fleets import create_roles

KINDS = ("plain group", "mixed group", "EC2 Fleet", "Spot Fleet")
# EC2's codes and messages: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html and the reports
# in tests/stacks/run_controller/test_causes.py.
FAULTS = [
    (Cause.CAPACITY, "InsufficientInstanceCapacity", "There is no Spot capacity available that matches your request."),
    (Cause.CAPACITY, "UnfulfillableCapacity", "Unable to fulfill capacity due to your request configuration."),
    (Cause.QUOTA, "MaxSpotInstanceCountExceeded", "Max spot instance count exceeded"),
    (
        Cause.QUOTA,
        "VcpuLimitExceeded",
        "You have requested more vCPU capacity than your current vCPU limit of 0 allows for the instance bucket that "
        "the specified instance type belongs to.",
    ),
    (
        Cause.PRICE,
        "SpotMaxPriceTooLow",
        "Your Spot request price of 0.1 is lower than the minimum required Spot request fulfillment price of 0.6034.",
    ),
    (Cause.PRICE, "MaxSpotFleetRequestPriceExceeded", "The maximum total price of the fleet is reached."),
    (Cause.PERMISSION, "UnauthorizedOperation", "You are not authorized to perform this operation."),
    (
        Cause.PERMISSION,
        "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
        "The provided credentials do not have permission to create the service-linked role for EC2 Spot Instances.",
    ),
    (Cause.CONFIGURATION, "InvalidAMIID.NotFound", "The image id '[ami-327f5352]' does not exist"),
    (
        Cause.CONFIGURATION,
        "Unsupported",
        "Your requested instance type (m5.large) is not supported in your requested Availability Zone (eu-west-1a).",
    ),
]


@pytest.fixture(scope="module")
def fleets(cloud: Any) -> dict[str, FleetIdentity]:
    """Create one empty fleet of each kind."""
    overrides = [{"InstanceType": "m5.large", "SubnetId": cloud.subnets[0]}]
    reference = {"LaunchTemplateId": cloud.template(), "Version": "1"}
    configs = [{"LaunchTemplateSpecification": reference, "Overrides": overrides}]
    target = {"TotalTargetCapacity": 0, "DefaultTargetCapacityType": "spot"}
    config = {
        "IamFleetRole": create_roles(cloud),
        "TargetCapacity": 0,
        "LaunchTemplateConfigs": configs,
        "AllocationStrategy": "lowestPrice",
    }
    fleet = cloud.ec2.create_fleet(LaunchTemplateConfigs=configs, TargetCapacitySpecification=target)["FleetId"]
    request = cloud.ec2.request_spot_fleet(SpotFleetRequestConfig=config)["SpotFleetRequestId"]
    mixed = cloud.group(MixedInstancesPolicy=cloud.spot_policy("m5.large"))
    return {
        "plain group": FleetIdentity("auto_scaling_group", cloud.group(), 4, 0),
        "mixed group": FleetIdentity("auto_scaling_group", mixed, 4, 0),
        "EC2 Fleet": FleetIdentity("ec2_fleet", fleet, 4, 0),
        "Spot Fleet": FleetIdentity("spot_fleet", request, 4, 0),
    }


@pytest.fixture
def fault(cloud: Any, request: pytest.FixtureRequest) -> Iterator[tuple[Cause, str, str]]:
    cause, code, message = request.param
    cloud.post("refuse", {"code": code, "message": message})
    yield cause, code, message
    cloud.post("refuse", {})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", FAULTS, indirect=True, ids=lambda fault: fault[1])
def test_the_controller_names_the_cause_and_quotes_the_message(
    cloud: Any, fleets: dict[str, FleetIdentity], kind: str, fault: tuple[Cause, str, str]
) -> None:
    cause, code, message = fault
    fleet = connect(fleets[kind], cloud.client)
    started = cloud.now()
    fleet.apply(policy.Resize(1))
    cloud.until(lambda: fleet.launch_failures(started), "a failed launch")
    state = fleet.describe()
    assert state is not None
    settings = policy.Settings(state.subnets, False, 600.0, 3)
    run = policy.Run("r", "d", nodes=1, min_nodes=1)
    decision = policy.decide(
        policy.Situation(
            started,
            settings,
            run,
            None,
            state,
            frozenset(),
            frozenset(),
            policy.ControllerState("d", state.template, "running"),
            launch_failures=fleet.launch_failures(started),
        )
    )
    assert decision.state.cause is cause
    is_summary = kind == "mixed group" and code == "InsufficientInstanceCapacity"
    assert ("UnfulfillableCapacity" if is_summary else message) in decision.state.explanation()
    fleet.apply(policy.Resize(0))


def test_a_launch_clears_the_failures(cloud: Any, fleets: dict[str, FleetIdentity]) -> None:
    for kind in KINDS:
        fleet = connect(fleets[kind], cloud.client)
        fleet.apply(policy.Resize(1))
        cloud.until(lambda fleet=fleet: fleet.describe().in_service(), f"an instance of the {kind}")
        cloud.until(lambda fleet=fleet: fleet.launch_failures(0.0) == (), f"the launch of the {kind}")
        fleet.apply(policy.Resize(0))
