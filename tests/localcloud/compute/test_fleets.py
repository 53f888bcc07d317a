"""EC2 Fleets and Spot Fleets with instances: launch, replacement, modification and deletion."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from stacks.functions.run_controller.fleet_clients import FleetIdentity
from stacks.functions.run_controller.fleet_clients.ec2_fleet import Ec2Fleet
from stacks.functions.run_controller.fleet_clients.spot_fleet import SpotFleet
from stacks.functions.run_controller.policy import Release, Resize
from tests.localcloud.compute.controlled_fleets import create_roles


def refusal(call, **parameters) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


@pytest.fixture(scope="module")
def role(cloud) -> str:
    """Create the roles required by fleets; return the ARN of the Spot Fleet role."""
    code, message = refusal(cloud.ec2.create_fleet, **request(cloud, 0))
    assert code == "AuthFailure.ServiceLinkedRoleCreationNotPermitted"
    assert "EC2 Fleet" in message
    return create_roles(cloud)


def configs(cloud, *types: str, subnets: int = 1, template: str | None = None, **more) -> list[dict]:
    overrides = [
        {"InstanceType": name, "SubnetId": subnet, "Priority": float(priority)} | more
        for priority, name in enumerate(types or ("m5.large",))
        for subnet in cloud.subnets[:subnets]
    ]
    reference = {"LaunchTemplateId": template or cloud.template(), "Version": "1"}
    return [{"LaunchTemplateSpecification": reference, "Overrides": overrides}]


def request(cloud, total: int, market: str = "spot", **more) -> dict:
    target = {"TotalTargetCapacity": total, "DefaultTargetCapacityType": market}
    return {"LaunchTemplateConfigs": configs(cloud), "TargetCapacitySpecification": target} | more


def active(cloud, fleet: str) -> list[dict]:
    if fleet.startswith("sfr-"):
        return cloud.ec2.describe_spot_fleet_instances(SpotFleetRequestId=fleet)["ActiveInstances"]
    return cloud.ec2.describe_fleet_instances(FleetId=fleet)["ActiveInstances"]


def until_active(cloud, fleet: str, count: int, without: set[str] = frozenset()) -> list[str]:
    def settled() -> list[str] | None:
        ids = [one["InstanceId"] for one in active(cloud, fleet)]
        return ids if len(ids) == count and not without & set(ids) else None

    return cloud.until(lambda: settled() if count else settled() == [], f"{count} instances in {fleet}")


def described(cloud, fleet: str) -> dict:
    if fleet.startswith("sfr-"):
        return cloud.ec2.describe_spot_fleet_requests(SpotFleetRequestIds=[fleet])["SpotFleetRequestConfigs"][0]
    return cloud.ec2.describe_fleets(FleetIds=[fleet])["Fleets"][0]


def instances(cloud, ids: list[str]) -> list[dict]:
    answer = cloud.ec2.describe_instances(InstanceIds=ids)
    return [one for reservation in answer["Reservations"] for one in reservation["Instances"]]


def test_fleet_launches_replaces_scales_and_is_deleted(cloud, role):
    tags = [{"ResourceType": "fleet", "Tags": [{"Key": "team", "Value": "ml"}]}]
    target = {"TotalTargetCapacity": 3, "OnDemandTargetCapacity": 1, "DefaultTargetCapacityType": "spot"}
    fleet = cloud.ec2.create_fleet(**request(cloud, 3, TargetCapacitySpecification=target, TagSpecifications=tags))[
        "FleetId"
    ]
    ids = until_active(cloud, fleet, 3)
    found = instances(cloud, ids)
    assert sorted(one.get("InstanceLifecycle", "on-demand") for one in found) == ["on-demand", "spot", "spot"]
    assert all({"Key": "aws:ec2:fleet-id", "Value": fleet} in one["Tags"] for one in found)
    cloud.until(lambda: described(cloud, fleet)["ActivityStatus"] == "fulfilled", "the fleet to be filled")
    shown = described(cloud, fleet)
    assert (shown["FulfilledCapacity"], shown["FulfilledOnDemandCapacity"]) == (3.0, 1.0)
    assert shown["Tags"] == tags[0]["Tags"]
    (spot, *_) = [one["InstanceId"] for one in found if one.get("InstanceLifecycle") == "spot"]
    cloud.post("interrupt", {"instance_id": spot, "notice_seconds": None})
    until_active(cloud, fleet, 3, without={spot})
    cloud.ec2.modify_fleet(FleetId=fleet, TargetCapacitySpecification={"TotalTargetCapacity": 1})
    (left,) = until_active(cloud, fleet, 1)
    assert instances(cloud, [left])[0]["InstanceLifecycle"] == "spot"
    history = [one["sub_type"] for one in cloud.records("fleet_event") if one["fleet"] == fleet]
    assert history[:3] == ["submitted", "active", "launched"]
    assert cloud.bus.of("EC2 Fleet Instance Change", sub_type="terminated")
    done = cloud.ec2.delete_fleets(FleetIds=[fleet, "fleet-none"], TerminateInstances=True)
    assert done["SuccessfulFleetDeletions"][0]["CurrentFleetState"] == "deleted_terminating"
    assert done["UnsuccessfulFleetDeletions"][0]["Error"]["Code"] == "fleetIdDoesNotExist"
    cloud.until(lambda: described(cloud, fleet)["FleetState"] == "deleted", "the fleet to be deleted")
    cloud.until_state(left, "terminated")
    assert refusal(cloud.ec2.modify_fleet, FleetId=fleet)[0] == "InvalidFleetState"


def test_fleet_without_capacity_launches_once_capacity_is_available(cloud, role):
    pool = {"instance_type": "g5.12xlarge", "zone": "eu-west-1a"}
    cloud.post("capacity", {**pool, "available": 0})
    fleet = cloud.ec2.create_fleet(**request(cloud, 1, LaunchTemplateConfigs=configs(cloud, "g5.12xlarge")))["FleetId"]
    cloud.until(lambda: described(cloud, fleet)["ActivityStatus"] == "error", "a refusal")
    (event,) = cloud.bus.of("EC2 Fleet Error")
    assert "g5.12xlarge, eu-west-1a, spot: InsufficientInstanceCapacity" in event["detail"]["description"]
    assert event["resources"][0].endswith(f":fleet/{fleet}")
    cloud.post("capacity", {**pool, "available": None})
    (instance,) = until_active(cloud, fleet, 1)
    cloud.ec2.delete_fleets(FleetIds=[fleet], TerminateInstances=False)
    assert described(cloud, fleet)["FleetState"] == "deleted_running"
    assert cloud.state_of(instance) in ("pending", "running")
    cloud.ec2.terminate_instances(InstanceIds=[instance])
    cloud.until(lambda: described(cloud, fleet)["FleetState"] == "deleted", "the fleet to be deleted")


def test_allocation_strategy_orders_the_pools(cloud, role):
    cloud.post("capacity", {"instance_type": "g5.xlarge", "zone": "eu-west-1a", "available": 1})
    deepest = request(
        cloud, 1, SpotOptions={"AllocationStrategy": "capacity-optimized"},
        LaunchTemplateConfigs=configs(cloud, "g5.xlarge", subnets=2),
    )  # fmt: skip
    fleet = cloud.ec2.create_fleet(**deepest)["FleetId"]
    (found,) = instances(cloud, until_active(cloud, fleet, 1))
    assert found["Placement"]["AvailabilityZone"] == "eu-west-1b"
    assert described(cloud, fleet)["FulfilledCapacity"] == 1.0
    cloud.ec2.delete_fleets(FleetIds=[fleet], TerminateInstances=True)
    cloud.post("capacity", {"instance_type": "g5.xlarge", "zone": "eu-west-1a", "available": None})
    cloud.post("capacity", {"instance_type": "g5.4xlarge", "zone": "eu-west-1a", "available": 1, "market": "on-demand"})
    prioritized = request(
        cloud, 2, "on-demand", OnDemandOptions={"AllocationStrategy": "prioritized"},
        LaunchTemplateConfigs=configs(cloud, "g5.4xlarge", "g5.8xlarge"),
    )  # fmt: skip
    fleet = cloud.ec2.create_fleet(**prioritized)["FleetId"]
    until_active(cloud, fleet, 2)
    assert sorted(one["InstanceType"] for one in active(cloud, fleet)) == ["g5.4xlarge", "g5.8xlarge"]
    cloud.ec2.delete_fleets(FleetIds=[fleet], TerminateInstances=True)


def test_maximum_price_below_the_market_launches_nothing(cloud, role):
    fleet = cloud.ec2.create_fleet(**request(cloud, 1, LaunchTemplateConfigs=configs(cloud, MaxPrice="0.0001")))
    fleet_id = fleet["FleetId"]
    cloud.until(lambda: described(cloud, fleet_id)["ActivityStatus"] == "error", "a refusal")
    errors = [one["description"] for one in cloud.records("fleet_event") if one["fleet"] == fleet_id]
    assert any("SpotMaxPriceTooLow" in text for text in errors)
    assert active(cloud, fleet_id) == []
    cloud.ec2.delete_fleets(FleetIds=[fleet_id], TerminateInstances=True)


def test_rebalancing_launches_first_and_terminates_the_old_instance_after_the_delay(cloud, role):
    rebalance = {"ReplacementStrategy": "launch-before-terminate", "TerminationDelay": 120}
    options = {"MaintenanceStrategies": {"CapacityRebalance": rebalance}}
    fleet = cloud.ec2.create_fleet(**request(cloud, 1, SpotOptions=options))["FleetId"]
    (old,) = until_active(cloud, fleet, 1)
    cloud.until_state(old, "running")
    cloud.post("rebalance", {"instance_id": old})
    both = until_active(cloud, fleet, 2)
    assert old in both
    cloud.advance(121)
    until_active(cloud, fleet, 1, without={old})
    cloud.ec2.delete_fleets(FleetIds=[fleet], TerminateInstances=True)


def test_all_problems_of_a_request_are_reported(cloud, role):
    wrong = request(
        cloud, 1, SpotOptions={"AllocationStrategy": "diversified", "InstancePoolsToUseCount": 2,
                               "MinTargetCapacity": 1},
        TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "b"}]}],
    )  # fmt: skip
    code, message = refusal(cloud.ec2.create_fleet, **wrong)
    assert code == "InvalidFleetConfig"
    assert all(word in message for word in ("MinTargetCapacity", "TagSpecifications", "InstancePools", "diversified"))
    for changes in ({"Type": "instant"}, {"Type": "request"}, {"TerminateInstancesWithExpiration": True}):
        assert refusal(cloud.ec2.create_fleet, **request(cloud, 1, **changes))[0] == "InvalidFleetConfig"
    spot = cloud.template(InstanceMarketOptions={"MarketType": "spot"})
    code, message = refusal(
        cloud.ec2.create_fleet, **request(cloud, 1, LaunchTemplateConfigs=configs(cloud, template=spot))
    )
    assert (code, "InstanceMarketOptions" in message) == ("InvalidFleetConfig", True)


def test_spot_fleet_launches_changes_and_is_cancelled(cloud, role):
    config = {
        "IamFleetRole": role, "TargetCapacity": 2, "AllocationStrategy": "priceCapacityOptimized", "Type": "maintain",
        "LaunchTemplateConfigs": configs(cloud, subnets=2),
        "TagSpecifications": [{"ResourceType": "spot-fleet-request", "Tags": [{"Key": "team", "Value": "ml"}]}],
    }  # fmt: skip
    broken = config | {"IamFleetRole": role.replace("spot-fleet", "node")}
    assert refusal(cloud.ec2.request_spot_fleet, SpotFleetRequestConfig=broken)[0] == "InvalidSpotFleetRequestConfig"
    fleet = cloud.ec2.request_spot_fleet(SpotFleetRequestConfig=config)["SpotFleetRequestId"]
    ids = until_active(cloud, fleet, 2)
    assert all({"Key": "aws:ec2spot:fleet-request-id", "Value": fleet} in one["Tags"] for one in instances(cloud, ids))
    larger = configs(cloud, "m5.xlarge")
    cloud.ec2.modify_spot_fleet_request(SpotFleetRequestId=fleet, TargetCapacity=3, LaunchTemplateConfigs=larger)
    until_active(cloud, fleet, 3)
    assert sorted(one["InstanceType"] for one in active(cloud, fleet)) == ["m5.large", "m5.large", "m5.xlarge"]
    shown = described(cloud, fleet)
    assert (shown["SpotFleetRequestState"], shown["SpotFleetRequestConfig"]["TargetCapacity"]) == ("active", 3)
    assert shown["Tags"] == [{"Key": "team", "Value": "ml"}]
    assert cloud.bus.of("EC2 Spot Fleet State Change", sub_type="modify_succeeded")
    answer = cloud.ec2.cancel_spot_fleet_requests(SpotFleetRequestIds=[fleet], TerminateInstances=True)
    assert answer["SuccessfulFleetRequests"][0]["CurrentSpotFleetRequestState"] == "cancelled_terminating"
    cloud.until(lambda: described(cloud, fleet)["SpotFleetRequestState"] == "cancelled", "the request to be cancelled")


@pytest.mark.parametrize("kind", ["ec2", "spot"])
def test_release_of_bought_instances_leaves_the_spot_instances(cloud, role, kind) -> None:
    """The run controller's calls: spot capacity in addition to the nodes on demand, which it then terminates."""
    template = configs(cloud)
    if kind == "ec2":
        target = {"TotalTargetCapacity": 2, "OnDemandTargetCapacity": 2, "DefaultTargetCapacityType": "spot"}
        fleet_id = cloud.ec2.create_fleet(LaunchTemplateConfigs=template, TargetCapacitySpecification=target)["FleetId"]
        client = Ec2Fleet(FleetIdentity("ec2_fleet", fleet_id, 2, 0), cloud.ec2)
    else:
        config = {
            "IamFleetRole": role, "TargetCapacity": 2, "OnDemandTargetCapacity": 2, "LaunchTemplateConfigs": template,
            "AllocationStrategy": "priceCapacityOptimized",
        }  # fmt: skip
        fleet_id = cloud.ec2.request_spot_fleet(SpotFleetRequestConfig=config)["SpotFleetRequestId"]
        client = SpotFleet(FleetIdentity("spot_fleet", fleet_id, 2, 0), cloud.ec2)
    until_active(cloud, fleet_id, 2)
    bought = client.describe()
    assert (bought.on_demand, bought.requested, len(bought.bought)) == (2, 2, 2)
    client.apply(Resize(4, None, 2))
    until_active(cloud, fleet_id, 4)
    mixed = client.describe()
    assert (mixed.on_demand, mixed.desired, mixed.surplus, mixed.bought) == (2, 2, 2, bought.bought)
    client.apply(Release(2, 0, mixed.bought))
    left = until_active(cloud, fleet_id, 2, set(bought.bought))
    assert set(left) == {item.instance_id for item in mixed.instances} - set(bought.bought)
    released = client.describe()
    assert (released.on_demand, released.requested, released.bought) == (0, 2, ())
    client.apply(Resize(0))
    until_active(cloud, fleet_id, 0)
