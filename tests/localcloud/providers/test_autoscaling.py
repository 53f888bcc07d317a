"""Auto Scaling groups in moto, and their update policies against scripted responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import boto3
import pytest

from localcloud.cloudformation.provider import ResourceFailure
from localcloud.cloudformation.providers import registry

Lifecycle = Callable[..., None]
GROUP = "AWS::AutoScaling::AutoScalingGroup"


def scaling(operation: str, **arguments: Any) -> Any:
    return getattr(boto3.client("autoscaling"), operation)(**arguments)


def described(*names: str) -> Callable[[str], Any]:
    def look(group: str) -> Any:
        found = scaling("describe_auto_scaling_groups", AutoScalingGroupNames=[group])["AutoScalingGroups"][0]
        return tuple(found.get(name) for name in names)

    return look


def tags(group: str) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in described("Tags")(group)[0]}


def mixed(template: str, version: str = "1") -> dict[str, Any]:
    return {
        "InstancesDistribution": {
            "OnDemandBaseCapacity": "0",
            "OnDemandPercentageAboveBaseCapacity": 0,
            "SpotAllocationStrategy": "price-capacity-optimized",
        },
        "LaunchTemplate": {
            "LaunchTemplateSpecification": {"LaunchTemplateId": template, "Version": version},
            "Overrides": [{"InstanceType": "t3.micro"}, {"InstanceType": "t3.small"}],
        },
    }


HOOK = {
    "LifecycleHookName": "drain",
    "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
    "HeartbeatTimeout": "120",
    "DefaultResult": "CONTINUE",
}
NOT_KEPT = dict.fromkeys(
    ("CapacityReservationSpecification", "MaxInstanceLifetime", "CapacityRebalance"),
    "moto does not store it; a test below checks the calls against scripted responses",
)


def test_group(lifecycle: Lifecycle, world: Any) -> None:
    def hooks(group: str) -> dict[str, int]:
        found = scaling("describe_lifecycle_hooks", AutoScalingGroupName=group)["LifecycleHooks"]
        return {hook["LifecycleHookName"]: hook["HeartbeatTimeout"] for hook in found}

    def distribution(group: str) -> Any:
        return described("MixedInstancesPolicy")(group)[0]["InstancesDistribution"]["SpotAllocationStrategy"]

    lifecycle(
        GROUP,
        {
            "MinSize": "0",
            "MaxSize": "2",
            "VPCZoneIdentifier": [world.subnet(), world.subnet(1)],
            "MixedInstancesPolicy": mixed(world.template),
            "LifecycleHookSpecificationList": [HOOK],
            "Tags": [{"Key": "Name", "Value": "node", "PropagateAtLaunch": "true"}],
        },
        ({}, distribution, "price-capacity-optimized"),
        ({"MaxSize": 3, "MinSize": 1}, described("MinSize", "MaxSize"), (1, 3)),
        ({"DesiredCapacity": "2"}, described("DesiredCapacity"), (2,)),
        ({"VPCZoneIdentifier": [world.subnet(1)]}, described("VPCZoneIdentifier"), (world.subnet(1),)),
        (
            {
                "LifecycleHookSpecificationList": [
                    {**HOOK, "HeartbeatTimeout": 60},
                    {**HOOK, "LifecycleHookName": "new"},
                ]
            },
            hooks,
            {"drain": 60, "new": 120},
        ),
        ({"LifecycleHookSpecificationList": None}, hooks, {}),
        (
            {"MixedInstancesPolicy": None, "LaunchTemplate": {"LaunchTemplateId": world.template, "Version": "1"}},
            lambda group: described("LaunchTemplate")(group)[0]["LaunchTemplateId"],
            world.template,
        ),
        ({"Tags": None}, lambda group: set(tags(group)), {"team", "aws:cloudformation:stack-name"}),
        ref=r"Demo-Thing-\w+",
        tags=tags,
        unchanged=NOT_KEPT,
    )


class Group:
    """Group of two instances with scripted instance refreshes."""

    def __init__(self, *, refresh: str = "Successful") -> None:
        self.instances = ["i-1", "i-2"]
        self.refresh = refresh

    def describe(self, **_: Any) -> Any:
        instances = [{"InstanceId": i, "LifecycleState": "InService"} for i in self.instances]
        group = {"AutoScalingGroupName": "g", "AutoScalingGroupARN": "arn:g", "DesiredCapacity": 2}
        return {"AutoScalingGroups": [{**group, "Instances": instances}]}

    def refreshes(self, **arguments: Any) -> Any:
        assert arguments["InstanceRefreshIds"] == ["r-1"]
        return {"InstanceRefreshes": [{"Status": self.refresh, "StatusReason": "because"}]}

    def answers(self) -> Mapping[str, Callable[..., Any]]:
        return {
            "describe_auto_scaling_groups": self.describe,
            "update_auto_scaling_group": lambda **_: {},
            "create_or_update_tags": lambda **_: {},
            "start_instance_refresh": lambda **_: {"InstanceRefreshId": "r-1"},
            "describe_instance_refreshes": self.refreshes,
        }


OLD = {"MinSize": 0, "MaxSize": 2, "LaunchTemplate": {"LaunchTemplateId": "lt-1", "Version": "1"}}
NEW = {**OLD, "LaunchTemplate": {"LaunchTemplateId": "lt-1", "Version": "2"}}


@pytest.fixture
def update(scripted: Any, boto: Any, context: Any) -> Callable[..., Any]:
    def run(policy: Any, *, new: Any = NEW, group: Group | None = None, old: Any = OLD) -> Any:
        client = scripted("autoscaling", (group or Group()).answers())
        where = context(clients=boto(autoscaling=client), attributes={"UpdatePolicy": policy})
        registry()[GROUP].update(where, "g", old, new)
        return client

    return run


def test_no_policy_keeps_running_instances(update: Any) -> None:
    assert set(update({}).names()) == {
        "update_auto_scaling_group",
        "create_or_update_tags",
        "describe_auto_scaling_groups",
    }


def test_new_template_version_starts_a_refresh_and_waits_for_it(update: Any) -> None:
    preferences = {"MinHealthyPercentage": "0", "SkipMatching": "true"}
    client = update({"AutoScalingInstanceRefresh": {"Strategy": "Rolling", "Preferences": preferences}})
    started = dict(client.calls)["start_instance_refresh"]
    assert started == {
        "AutoScalingGroupName": "g",
        "Strategy": "Rolling",
        "Preferences": {"MinHealthyPercentage": 0, "SkipMatching": True},
    }
    assert client.names().index("update_auto_scaling_group") < client.names().index("start_instance_refresh")
    assert "describe_instance_refreshes" in client.names()


def test_other_changes_start_no_refresh(update: Any) -> None:
    client = update({"AutoScalingInstanceRefresh": {"Strategy": "Rolling"}}, new={**OLD, "MaxSize": 3})
    assert "start_instance_refresh" not in client.names()


def test_empty_group_starts_no_refresh(update: Any) -> None:
    group = Group()
    group.instances = []
    client = update({"AutoScalingInstanceRefresh": {"Strategy": "Rolling"}}, group=group)
    assert "start_instance_refresh" not in client.names()


def test_failed_refresh_fails_the_update(update: Any) -> None:
    with pytest.raises(ResourceFailure, match="r-1 of g: Failed: because"):
        update({"AutoScalingInstanceRefresh": {"Strategy": "Rolling"}}, group=Group(refresh="Failed"))


def test_unmodified_sizes_are_not_sent_if_the_policy_ignores_them(update: Any) -> None:
    policy = {"AutoScalingScheduledAction": {"IgnoreUnmodifiedGroupSizeProperties": "true"}}
    sent = dict(update(policy, new={**NEW, "MaxSize": 4}).calls)["update_auto_scaling_group"]
    assert (sent.get("MinSize"), sent["MaxSize"]) == (None, 4)
    assert dict(update({}, new={**NEW, "MaxSize": 4}).calls)["update_auto_scaling_group"]["MinSize"] == 0


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ({"AutoScalingReplacingUpdate": {"WillReplace": True}}, "not emulated: AutoScalingReplacingUpdate"),
        ({"AutoScalingRollingUpdate": {}}, "not emulated: AutoScalingRollingUpdate"),
    ],
)
def test_unsupported_policies_fail_the_update(policy: Any, problem: str, update: Any) -> None:
    with pytest.raises(ResourceFailure, match=problem):
        update(policy)


def test_creation_policy_with_signals_fails(context: Any) -> None:
    where = context(attributes={"CreationPolicy": {"ResourceSignal": {"Count": 1}}})
    with pytest.raises(ResourceFailure, match="ResourceSignal: signals are not emulated"):
        registry()[GROUP].create(where, OLD)


def test_all_settings_reach_the_service(update: Any) -> None:
    settings = {
        "CapacityRebalance": True,
        "CapacityReservationSpecification": {"CapacityReservationPreference": "capacity-reservations-first"},
        "MaxInstanceLifetime": 86400,
    }
    sent = dict(update({}, new={**OLD, **settings}).calls)["update_auto_scaling_group"]
    assert sent == {"AutoScalingGroupName": "g", **OLD, **settings}


def test_removed_settings_return_to_defaults_or_fail(update: Any) -> None:
    extra = {"CapacityRebalance": True, "MaxInstanceLifetime": 86400}
    sent = dict(update({}, old={**OLD, **extra}, new=OLD).calls)["update_auto_scaling_group"]
    assert sent == {"AutoScalingGroupName": "g", **OLD, "CapacityRebalance": False, "MaxInstanceLifetime": 0}
    with pytest.raises(ResourceFailure, match="cannot be removed in place: CapacityReservationSpecification"):
        update({}, old={**OLD, "CapacityReservationSpecification": {}}, new=OLD)


def test_creation_waits_for_the_desired_capacity(scripted: Any, boto: Any, context: Any) -> None:
    group = Group()
    group.instances = []
    looks = iter(range(100))

    def describe(**arguments: Any) -> Any:
        if next(looks) == 3:
            group.instances = ["i-1", "i-2"]
        return group.describe(**arguments)

    answers = {**group.answers(), "create_auto_scaling_group": lambda **_: {}, "describe_auto_scaling_groups": describe}
    where = context(clients=boto(autoscaling=scripted("autoscaling", answers)))
    registry()[GROUP].create(where, {**OLD, "DesiredCapacity": "2"})
    assert next(looks) > 3
