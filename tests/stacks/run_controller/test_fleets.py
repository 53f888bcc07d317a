"""The run controller's fleet clients: how they parse AWS's responses, and which calls they make for an action."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber

from bootstrap.documents import TERMINATING_HOOK
from stacks.functions.run_controller.fleet_back_ends import BACK_ENDS, Backend
from stacks.functions.run_controller.fleet_clients import CLIENTS, FleetIdentity, auto_scaling_group, connect
from stacks.functions.run_controller.fleet_clients.auto_scaling_group import AutoScalingGroups
from stacks.functions.run_controller.fleet_clients.ec2_fleet import Ec2Fleet
from stacks.functions.run_controller.fleet_clients.spot_fleet import SpotFleet
from stacks.functions.run_controller.policy import CompleteTermination, Detach, LaunchFailure, Release, Resize, Surplus

FLEET, REQUEST = "fleet-1", "sfr-1"
GROUP = FleetIdentity("auto_scaling_group", "g", maximum=2, on_demand_base=0)
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


def test_every_back_end_has_a_client() -> None:
    assert CLIENTS.keys() == BACK_ENDS.keys()


@pytest.fixture
def ec2() -> Any:
    return boto3.client("ec2", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")


def ec2_fleet(ec2: Any, base: int = 0) -> Made:
    return Ec2Fleet(FleetIdentity("ec2_fleet", FLEET, 3, base), ec2), Stubber(ec2)


def spot_fleet(ec2: Any, base: int = 0) -> Made:
    return SpotFleet(FleetIdentity("spot_fleet", REQUEST, 3, base), ec2), Stubber(ec2)


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
def test_describe_splits_the_target_into_desired_and_surplus(ec2: Any, kind: str, total: int) -> None:
    fleet, stub = (ec2_fleet if kind == "ec2" else spot_fleet)(ec2)
    if kind == "ec2":
        tell_ec2(stub, total)
        tell_pages(stub, "describe_fleet_instances", "FleetId", FLEET)
    else:
        tell_spot(stub, total)
        tell_pages(stub, "describe_spot_fleet_instances", "SpotFleetRequestId", REQUEST)
    with stub:
        group = fleet.describe()
    assert (group.desired, group.surplus) == (min(total, 3), max(0, total - 3))
    assert group.subnets == ("subnet-a", "subnet-b")
    assert group.template == "lt-1:3"
    assert group.in_service() == ("i-1", "i-2")
    stub.assert_no_pending_responses()


@pytest.mark.parametrize(
    ("make", "tell", "state"),
    [(ec2_fleet, tell_ec2, "deleted_terminating"), (spot_fleet, tell_spot, "cancelled_running")],
)
def test_deleted_fleet_counts_as_missing(
    ec2: Any, make: Callable[[Any], Made], tell: Callable[..., None], state: str
) -> None:
    fleet, stub = make(ec2)
    tell(stub, 2, state)
    with stub:
        assert fleet.describe() is None


@pytest.mark.parametrize(
    ("make", "operation", "code"),
    [
        (ec2_fleet, "describe_fleets", "InvalidFleetId.NotFound"),
        (spot_fleet, "describe_spot_fleet_requests", "InvalidSpotFleetRequestId.NotFound"),
    ],
)
def test_missing_fleet_returns_none_and_a_rejected_call_raises(
    ec2: Any, make: Callable[[Any], Made], operation: str, code: str
) -> None:
    fleet, stub = make(ec2)
    stub.add_client_error(operation, code)
    stub.add_client_error(operation, "UnauthorizedOperation")
    with stub:
        assert fleet.describe() is None
        with pytest.raises(ClientError, match="Unauthorized"):
            fleet.describe()


@pytest.mark.parametrize(
    ("action", "target", "excess"),
    [
        (Resize(3), (3, 1, 2), "termination"),
        (Resize(0), (0, 0, 0), "termination"),
        (Surplus(3, 1), (4, 1, 3), "no-termination"),
        (Surplus(3, 0), (3, 1, 2), "no-termination"),
    ],
)
def test_actions_set_target_capacity(ec2: Any, action: Any, target: tuple[int, int, int], excess: str) -> None:
    """A lower target terminates instances only if the run needs fewer nodes, never after a replacement."""
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
        fleet.apply(action)
    stub.assert_no_pending_responses()
    request, stub = spot_fleet(ec2, base=1)
    spellings = {"termination": "default", "no-termination": "noTermination"}
    asked = {
        "SpotFleetRequestId": REQUEST,
        "TargetCapacity": total,
        "OnDemandTargetCapacity": on_demand,
        "ExcessCapacityTerminationPolicy": spellings[excess],
    }
    stub.add_response("modify_spot_fleet_request", {"Return": True}, asked)
    with stub:
        request.apply(action)
    stub.assert_no_pending_responses()


@pytest.mark.parametrize("kind", ["ec2", "spot"])
def test_release_lowers_the_target_before_it_terminates(ec2: Any, kind: str) -> None:
    fleet, stub = (ec2_fleet if kind == "ec2" else spot_fleet)(ec2)
    if kind == "ec2":
        target = {"TotalTargetCapacity": 3, "OnDemandTargetCapacity": 1, "SpotTargetCapacity": 2}
        asked = {
            "FleetId": FLEET,
            "TargetCapacitySpecification": target,
            "ExcessCapacityTerminationPolicy": "no-termination",
        }
        stub.add_response("modify_fleet", {"Return": True}, asked)
    else:
        asked = {
            "SpotFleetRequestId": REQUEST,
            "TargetCapacity": 3,
            "OnDemandTargetCapacity": 1,
            "ExcessCapacityTerminationPolicy": "noTermination",
        }
        stub.add_response("modify_spot_fleet_request", {"Return": True}, asked)
    stub.add_response("terminate_instances", {}, {"InstanceIds": ["i-1", "i-2"]})
    with stub:
        fleet.apply(Release(3, 1, ("i-1", "i-2")))
    stub.assert_no_pending_responses()


@pytest.mark.parametrize("kind", ["ec2", "spot"])
def test_instances_beyond_the_base_that_are_not_spot_are_bought(ec2: Any, kind: str) -> None:
    """Also when the target no longer contains them: their release may have failed."""
    fleet, stub = (ec2_fleet if kind == "ec2" else spot_fleet)(ec2, base=1)
    active = [{"InstanceId": "i-1", "SpotInstanceRequestId": "sir-1"}]
    active += [{"InstanceId": name} for name in ("i-2", "i-3", "i-4")]
    if kind == "ec2":
        tell_ec2(stub, 3)
        stub.add_response("describe_fleet_instances", {"ActiveInstances": active}, {"FleetId": FLEET})
    else:
        tell_spot(stub, 3)
        answer = {"ActiveInstances": active}
        stub.add_response("describe_spot_fleet_instances", answer, {"SpotFleetRequestId": REQUEST})
    with stub:
        found = fleet.describe()
    assert found is not None and (found.on_demand, found.bought) == (0, ("i-3", "i-4"))


def test_next_subnet_keeps_launch_templates_and_types(ec2: Any) -> None:
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
        fleet.apply(Resize(2, ("subnet-c",)))
    stub.assert_no_pending_responses()
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
        request.apply(Resize(2, ("subnet-c",)))
    stub.assert_no_pending_responses()


@pytest.mark.parametrize(
    ("make", "tell", "state"),
    [(ec2_fleet, tell_ec2, "deleted_terminating"), (spot_fleet, tell_spot, "cancelled_running")],
)
def test_a_fleet_deleted_since_its_description_is_not_moved(
    ec2: Any, make: Callable[[Any], Made], tell: Callable[..., None], state: str
) -> None:
    fleet, stub = make(ec2)
    tell(stub, 2, state)
    with stub:
        assert fleet.apply(Resize(2, ("subnet-c",))) == f"fleet {fleet._id} has been deleted"
    stub.assert_no_pending_responses()


@pytest.mark.parametrize(
    ("make", "operation", "key"),
    [
        (ec2_fleet, "describe_fleets", "Fleets"),
        (spot_fleet, "describe_spot_fleet_requests", "SpotFleetRequestConfigs"),
    ],
)
def test_an_empty_description_counts_as_missing(
    ec2: Any, make: Callable[[Any], Made], operation: str, key: str
) -> None:
    fleet, stub = make(ec2)
    stub.add_response(operation, {key: []})
    with stub:
        assert fleet.describe() is None


def test_unsupported_action_raises(ec2: Any) -> None:
    for make in (ec2_fleet, spot_fleet):
        with pytest.raises(TypeError, match="cannot be detached"):
            make(ec2)[0].apply(Detach("i-1"))
    with pytest.raises(TypeError, match="Auto Scaling groups detach interrupted instances"):
        AutoScalingGroups(GROUP, object(), object()).apply(Surplus(1, 1))


@pytest.mark.parametrize(
    ("backend", "kind", "service"),
    [
        ("auto_scaling_group", AutoScalingGroups, "autoscaling ec2"),
        ("ec2_fleet", Ec2Fleet, "ec2"),
        ("spot_fleet", SpotFleet, "ec2"),
    ],
)
def test_connect_returns_the_client_of_the_back_end(backend: Backend, kind: type, service: str) -> None:
    asked: list[str] = []
    fleet = connect(FleetIdentity(backend, "x", maximum=1, on_demand_base=0), asked.append)
    assert isinstance(fleet, kind)
    assert asked == service.split()


def test_template_of_a_plain_group_and_of_one_with_several_templates() -> None:
    plain = {"LaunchTemplate": {"LaunchTemplateId": "lt-7", "Version": "7"}}
    other = {
        "InstanceType": "p4d.24xlarge",
        "LaunchTemplateSpecification": {"LaunchTemplateId": "lt-9", "Version": "9"},
    }
    template = {
        "LaunchTemplateSpecification": {"LaunchTemplateId": "lt-8", "Version": "8"},
        "Overrides": [other, {"InstanceType": "x"}],
    }
    mixed = {"MixedInstancesPolicy": {"LaunchTemplate": template}}

    class Recorded:
        def __init__(self, group: dict[str, Any]) -> None:
            about = {"AutoScalingGroupName": "g", "VPCZoneIdentifier": "subnet-a"}
            self.group = {**about, "DesiredCapacity": 1, "MaxSize": 2, **group}

        def describe_auto_scaling_groups(self, **_: Any) -> dict[str, Any]:
            return {"AutoScalingGroups": [self.group]}

    templates = [AutoScalingGroups(GROUP, Recorded(group), object()).describe() for group in (plain, mixed)]
    assert [group.template for group in templates if group] == ["lt-7:7", "lt-8:8,lt-9:9"]


def activity(
    minute: int, status: str, message: str = "", description: str = "Launching a new EC2 instance"
) -> dict[str, Any]:
    return {
        "ActivityId": f"a-{minute}",
        "AutoScalingGroupName": "g",
        "Cause": "At 2026-11-01T10:00:00Z an instance was started in response to a difference",
        "Description": f"{description}.  Status Reason: {message}" if message else description,
        "StartTime": datetime(2026, 11, 1, 10, minute, tzinfo=UTC),
        "StatusCode": status,
        **({"StatusMessage": message} if message else {}),
    }


NO_SPOT = "There is no Spot capacity available that matches your request. Launching EC2 instance failed."
KEY_STATE = "Instance became unhealthy while waiting for instance to be in InService state. Termination Reason: "
NOON = datetime(2026, 11, 1, 9, tzinfo=UTC).timestamp()


def test_launch_failures_of_a_group_end_at_the_last_successful_launch() -> None:
    """The shape of the activities: https://github.com/aws/aws-parallelcluster/issues/1944."""
    key = f"{KEY_STATE}Client.InvalidKMSKey.InvalidState: The KMS key provided is in an incorrect state"
    stopped = f"{KEY_STATE}Client.InstanceInitiatedShutdown: Instance initiated shutdown"
    activities = [
        activity(9, "Failed", NO_SPOT),
        activity(8, "Failed", stopped, "Launching a new EC2 instance: i-0bb"),
        activity(7, "Failed", key, "Launching a new EC2 instance: i-0aa"),
        activity(6, "Successful", description="Terminating EC2 instance: i-0cc"),
        activity(5, "Successful", description="Launching a new EC2 instance: i-0cc"),
        activity(4, "Failed", "older"),
    ]
    client = boto3.client("autoscaling", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    stub = Stubber(client)
    group = {
        "AutoScalingGroupName": "g",
        "MinSize": 0,
        "MaxSize": 2,
        "DesiredCapacity": 1,
        "DefaultCooldown": 300,
        "AvailabilityZones": ["us-east-1a"],
        "HealthCheckType": "EC2",
        "CreatedTime": datetime.now(UTC),
    }
    for _ in range(2):
        stub.add_response("describe_auto_scaling_groups", {"AutoScalingGroups": [group]})
        stub.add_response("describe_scaling_activities", {"Activities": activities})
    with stub:
        found = AutoScalingGroups(GROUP, client, object()).launch_failures(NOON)
        recent = AutoScalingGroups(GROUP, client, object()).launch_failures(activities[1]["StartTime"].timestamp())
    newest, earlier = (activities[index]["StartTime"].timestamp() for index in (0, 2))
    assert found == (LaunchFailure(NO_SPOT, "", newest), LaunchFailure(key, "i-0aa", earlier))
    assert recent == (LaunchFailure(NO_SPOT, "", newest),)


@pytest.mark.parametrize("kind", ["ec2", "spot"])
def test_launch_failures_of_a_fleet_are_its_errors_since_the_last_launch(ec2: Any, kind: str) -> None:
    """Types of events: the models of DescribeFleetHistory and DescribeSpotFleetRequestHistory in botocore."""
    fleet, stub = (ec2_fleet if kind == "ec2" else spot_fleet)(ec2)
    change, error = ("instance-change", "service-error") if kind == "ec2" else ("instanceChange", "error")
    operation = "describe_fleet_history" if kind == "ec2" else "describe_spot_fleet_request_history"
    when = datetime(2026, 11, 1, 10, tzinfo=UTC)

    def record(event_type: str, sub_type: str, description: str = "") -> dict[str, Any]:
        event = {"EventSubType": sub_type, "EventDescription": description}
        return {"EventType": event_type, "Timestamp": when, "EventInformation": event}

    first = [record(error, "spotInstanceCountLimitExceeded"), record(change, "launched")]
    second = [
        record("fleet-change" if kind == "ec2" else "fleetRequestChange", "progress"),
        record(error, "iamFleetRoleInvalid"),
        record("information", "launchSpecUnusable", "price too low"),
    ]
    stub.add_response(operation, {"HistoryRecords": first, "NextToken": "more"})
    stub.add_response(operation, {"HistoryRecords": second})
    with stub:
        found = fleet.launch_failures(when.timestamp())
    assert [each.message for each in found] == ["launchSpecUnusable: price too low", "iamFleetRoleInvalid"]
    assert {each.unix_seconds for each in found} == {when.timestamp()}
    stub.assert_no_pending_responses()


class RecordedGroups:
    """Auto Scaling with two groups, and EC2, that record the calls that change something."""

    def __init__(self, **instances: list[tuple[str, str]]) -> None:
        template = {"LaunchTemplateId": "lt-1", "Version": "1"}
        self.groups = [
            {
                "AutoScalingGroupName": f"trainstack-x.{zone}",
                "DesiredCapacity": len(instances.get(zone, [])),
                "MaxSize": 2,
                "VPCZoneIdentifier": f"subnet-{zone}",
                "LaunchTemplate": template,
                "Instances": [{"InstanceId": name, "LifecycleState": state} for name, state in instances.get(zone, [])],
            }
            for zone in ("b", "a")  # not in the order of preference
        ]
        self.calls: list[tuple[Any, ...]] = []
        self.terminated: list[str] = []
        self.error: ClientError | None = None

    def client(self) -> AutoScalingGroups:
        names = "trainstack-x.a,trainstack-x.b"
        identity = FleetIdentity("auto_scaling_group", names, maximum=2, on_demand_base=0)
        return AutoScalingGroups(identity, self, self)

    def describe_auto_scaling_groups(self, AutoScalingGroupNames: list[str]) -> dict[str, Any]:  # noqa: N803
        assert AutoScalingGroupNames == ["trainstack-x.a", "trainstack-x.b"]
        return {"AutoScalingGroups": self.groups}

    def describe_instances(self, Filters: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
        (ids,) = [each["Values"] for each in Filters if each["Name"] == "instance-id"]
        return {"Reservations": [{"Instances": [{"InstanceId": one}]} for one in ids if one in self.terminated]}

    def set_desired_capacity(self, **asked: Any) -> None:
        assert asked["HonorCooldown"] is False
        self.calls.append((asked["AutoScalingGroupName"], asked["DesiredCapacity"]))

    def detach_instances(self, **asked: Any) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append(("detach", asked["AutoScalingGroupName"], *asked["InstanceIds"]))

    def complete_lifecycle_action(self, **asked: Any) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append((asked["LifecycleHookName"], asked["AutoScalingGroupName"], asked["InstanceId"]))


class TestOneGroupForEachSubnet:
    def test_empty_groups_have_no_current_subnet(self) -> None:
        state = RecordedGroups().client().describe()
        assert state is not None
        assert (state.desired, state.subnets, state.template, state.maximum) == (0, (), "lt-1:1", 2)

    def test_the_fleet_is_the_sum_of_its_groups(self) -> None:
        state = RecordedGroups(b=[("i-1", "InService"), ("i-2", "Pending")]).client().describe()
        assert state is not None
        assert (state.desired, state.subnets, state.in_service()) == (2, ("subnet-b",), ("i-1",))

    def test_an_attempt_uses_the_group_of_its_subnet(self) -> None:
        groups = RecordedGroups()
        groups.client().apply(Resize(2, ("subnet-b",)))
        assert groups.calls == [("trainstack-x.b", 2)]

    def test_a_resize_stays_in_the_group_with_the_nodes(self) -> None:
        groups = RecordedGroups(b=[("i-1", "InService")])
        groups.client().apply(Resize(2))
        assert groups.calls == [("trainstack-x.b", 2)]

    def test_a_resize_to_zero_empties_all_groups(self) -> None:
        groups = RecordedGroups(a=[("i-1", "InService")], b=[("i-2", "InService")])
        groups.client().apply(Resize(0))
        assert sorted(groups.calls) == [("trainstack-x.a", 0), ("trainstack-x.b", 0)]

    def test_nodes_in_two_groups_are_reduced_to_one(self) -> None:
        groups = RecordedGroups(a=[("i-1", "InService")], b=[("i-2", "InService"), ("i-3", "InService")])
        groups.client().apply(Resize(2))
        assert groups.calls == [("trainstack-x.a", 0)]

    def test_an_instance_is_detached_from_its_group(self) -> None:
        groups = RecordedGroups(b=[("i-1", "InService")])
        groups.client().apply(Detach("i-1"))
        assert groups.calls == [("detach", "trainstack-x.b", "i-1")]

    @pytest.mark.parametrize("action", [Detach("i-9"), CompleteTermination("i-9")])
    def test_an_instance_that_has_left_before_the_call_is_no_error(self, action: Any) -> None:
        groups = RecordedGroups(b=[("i-1", "InService")])
        reason = groups.client().apply(action)
        assert reason == "i-9 is in none of the groups trainstack-x.a, trainstack-x.b: it has left"
        assert groups.calls == []

    @pytest.mark.parametrize(
        "message",
        [
            "The instance i-1 is not part of Auto Scaling group trainstack-x.b.",
            "The instance i-1 is not in InService or Standby.",
        ],
    )
    def test_an_instance_that_leaves_during_the_call_is_no_error(self, message: str) -> None:
        groups = RecordedGroups(b=[("i-1", "InService")])
        groups.error = ClientError({"Error": {"Code": "ValidationError", "Message": message}}, "DetachInstances")
        assert groups.client().apply(Detach("i-1")) == f"i-1 has left trainstack-x.b: {message}"
        other = "You are not authorized to perform this operation"
        groups.error = ClientError({"Error": {"Code": "AccessDenied", "Message": other}}, "DetachInstances")
        with pytest.raises(ClientError, match=other):
            groups.client().apply(Detach("i-1"))

    def test_an_unknown_subnet_asks_for_a_deploy(self) -> None:
        with pytest.raises(LookupError, match="no group has a subnet among subnet-z; deploy again"):
            RecordedGroups().client().apply(Resize(2, ("subnet-z",)))


class TestTerminatedInstances:
    def test_only_terminated_instances_in_the_hook_are_held(self) -> None:
        groups = RecordedGroups(a=[("i-1", "Terminating:Wait"), ("i-2", "Terminating:Wait"), ("i-3", "InService")])
        groups.terminated = ["i-1", "i-3"]
        state = groups.client().describe()
        assert state is not None and state.held_after_termination == ("i-1",)

    def test_the_hook_is_completed(self) -> None:
        groups = RecordedGroups(a=[("i-1", "Terminating:Wait")])
        groups.client().apply(CompleteTermination("i-1"))
        assert groups.calls == [(TERMINATING_HOOK, "trainstack-x.a", "i-1")]
        assert auto_scaling_group.TERMINATING_HOOK == TERMINATING_HOOK

    def test_a_hook_that_has_completed_meanwhile_is_no_error(self) -> None:
        groups = RecordedGroups(a=[("i-1", "Terminating:Wait")])
        message = "No active Lifecycle Action found with instance ID i-1"
        groups.error = ClientError({"Error": {"Code": "ValidationError", "Message": message}}, "Complete")
        groups.client().apply(CompleteTermination("i-1"))
        groups.error = ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "Complete")
        with pytest.raises(ClientError, match="AccessDenied"):
            groups.client().apply(CompleteTermination("i-1"))


class Groups:
    """Auto Scaling groups of two zones, each with a second group for On-Demand nodes."""

    def __init__(self, **desired: int) -> None:
        self.groups = [
            {
                "AutoScalingGroupName": f"g.{zone}{suffix}",
                "DesiredCapacity": desired.get(f"{zone}{suffix.removeprefix('.').replace('-', '_')}", 0),
                "MaxSize": 4,
                "VPCZoneIdentifier": f"subnet-{zone}",
                "LaunchTemplate": {"LaunchTemplateId": "lt-1", "Version": "1"},
                "Instances": [],
            }
            for suffix in ("", ".on-demand")
            for zone in ("a", "b")
        ]
        for group in self.groups:
            group["Instances"] = [
                {"InstanceId": f"i-{group['AutoScalingGroupName']}-{number}", "LifecycleState": "InService"}
                for number in range(group["DesiredCapacity"])
            ]

    def describe_auto_scaling_groups(self, **_: Any) -> dict[str, Any]:
        return {"AutoScalingGroups": self.groups}

    def set_desired_capacity(self, **arguments: Any) -> None:
        (group,) = [one for one in self.groups if one["AutoScalingGroupName"] == arguments["AutoScalingGroupName"]]
        group["DesiredCapacity"] = arguments["DesiredCapacity"]

    def sizes(self) -> dict[str, int]:
        return {one["AutoScalingGroupName"]: one["DesiredCapacity"] for one in self.groups if one["DesiredCapacity"]}


MIXED = FleetIdentity("auto_scaling_group", "g.a,g.b,g.a.on-demand,g.b.on-demand", maximum=4, on_demand_base=0)


def test_groups_on_demand_are_part_of_the_fleet() -> None:
    groups = Groups(a=3, aon_demand=1)
    found = AutoScalingGroups(MIXED, groups, object()).describe()
    assert found is not None
    assert (found.desired, found.on_demand, found.bought) == (4, 1, ("i-g.a.on-demand-0",))
    assert found.subnets == ("subnet-a",)


@pytest.mark.parametrize(
    ("before", "action", "after"),
    [
        ({"a": 4}, Resize(4, None, 1), {"g.a": 3, "g.a.on-demand": 1}),  # in the zone of the other nodes
        ({}, Resize(4, ("subnet-b",), 4), {"g.b.on-demand": 4}),
        ({"aon_demand": 4}, Resize(8, ("subnet-b",), 4), {"g.b": 4, "g.a.on-demand": 4}),  # requested in addition
        ({"b": 4, "aon_demand": 4}, Resize(4, None, 0), {"g.b": 4}),
        ({"a": 3, "aon_demand": 1}, Resize(0), {}),
    ],
)
def test_nodes_on_demand_have_groups_of_their_own(
    before: dict[str, int], action: Resize, after: dict[str, int]
) -> None:
    groups = Groups(**before)
    AutoScalingGroups(MIXED, groups, object()).apply(action)
    assert groups.sizes() == after


def test_purchase_without_groups_on_demand_is_an_error() -> None:
    groups = Groups(a=4)
    groups.groups = groups.groups[:2]
    with pytest.raises(LookupError, match="deploy again"):
        AutoScalingGroups(MIXED, groups, object()).apply(Resize(4, None, 1))


@pytest.mark.parametrize("kind", ["ec2", "spot"])
def test_maintained_fleet_buys_without_ending_other_instances(ec2: Any, kind: str) -> None:
    fleet, stub = (ec2_fleet if kind == "ec2" else spot_fleet)(ec2, base=1)
    if kind == "ec2":
        target = {"TotalTargetCapacity": 3, "OnDemandTargetCapacity": 3, "SpotTargetCapacity": 0}
        asked = {"FleetId": FLEET, "TargetCapacitySpecification": target}
        stub.add_response("modify_fleet", {}, {**asked, "ExcessCapacityTerminationPolicy": "no-termination"})
    else:
        asked = {"SpotFleetRequestId": REQUEST, "TargetCapacity": 3, "OnDemandTargetCapacity": 3}
        answer, more = {"Return": True}, {"ExcessCapacityTerminationPolicy": "noTermination"}
        stub.add_response("modify_spot_fleet_request", answer, {**asked, **more})
    with stub:
        fleet.apply(Resize(3, None, 2))
    stub.assert_no_pending_responses()


def test_maintained_fleet_reports_its_bought_instances(ec2: Any) -> None:
    fleet, stub = ec2_fleet(ec2, base=1)
    target = {"TotalTargetCapacity": 3, "OnDemandTargetCapacity": 2}
    described = {"FleetState": "active", "LaunchTemplateConfigs": CONFIGS, "TargetCapacitySpecification": target}
    stub.add_response("describe_fleets", {"Fleets": [described]}, {"FleetIds": [FLEET]})
    active = [{"InstanceId": "i-1"}, {"InstanceId": "i-2"}, {"InstanceId": "i-3", "SpotInstanceRequestId": "sir-1"}]
    stub.add_response("describe_fleet_instances", {"ActiveInstances": active}, {"FleetId": FLEET})
    with stub:
        found = fleet.describe()
    assert found is not None
    assert (found.on_demand, found.bought) == (1, ("i-2",))
