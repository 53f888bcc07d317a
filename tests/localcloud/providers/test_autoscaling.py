"""Auto Scaling types in moto, and what an update policy does, against written answers."""

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
            "Overrides": [{"InstanceType": "t3.micro", "WeightedCapacity": 1}, {"InstanceType": "t3.small"}],
        },
    }


HOOK = {
    "LifecycleHookName": "drain",
    "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
    "HeartbeatTimeout": "120",
    "DefaultResult": "CONTINUE",
}
NOT_KEPT = dict.fromkeys(
    ("AvailabilityZoneDistribution", "AvailabilityZoneImpairmentPolicy", "CapacityReservationSpecification", "Context")
    + ("DesiredCapacityType", "InstanceLifecyclePolicy", "InstanceMaintenancePolicy", "MaxInstanceLifetime")
    + ("ServiceLinkedRoleARN", "DefaultInstanceWarmup", "LaunchConfigurationName", "DeletionProtection")
    + ("AvailabilityZones", "Cooldown", "CapacityRebalance", "PlacementGroup"),
    "moto does not keep it; the calls are checked against written answers below",
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
            {"HealthCheckType": "ELB", "HealthCheckGracePeriod": "30"},
            described("HealthCheckType", "HealthCheckGracePeriod"),
            ("ELB", 30),
        ),
        (
            {"HealthCheckType": None},
            described("HealthCheckType", "HealthCheckGracePeriod"),
            ("EC2", 30),
        ),
        (
            {"NewInstancesProtectedFromScaleIn": True, "TerminationPolicies": ["OldestInstance"]},
            described("NewInstancesProtectedFromScaleIn"),
            (True,),
        ),
        (
            {"MetricsCollection": [{"Granularity": "1Minute", "Metrics": ["GroupDesiredCapacity"]}]},
            lambda group: [item["Metric"] for item in described("EnabledMetrics")(group)[0]],
            ["GroupDesiredCapacity"],
        ),
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


def test_hook(lifecycle: Lifecycle, world: Any) -> None:
    def hook(*names: str) -> Callable[[str], Any]:
        def look(_: str) -> Any:
            found = scaling("describe_lifecycle_hooks", AutoScalingGroupName=world.scaling_group)["LifecycleHooks"][0]
            return tuple(found.get(name) for name in names)

        return look

    lifecycle(
        "AWS::AutoScaling::LifecycleHook",
        {"AutoScalingGroupName": world.scaling_group, **HOOK},
        (
            {"HeartbeatTimeout": 60, "DefaultResult": "ABANDON", "NotificationMetadata": "m"},
            hook("HeartbeatTimeout", "DefaultResult"),
            (60, "ABANDON"),
        ),
        (
            {"LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING"},
            hook("LifecycleTransition"),
            ("autoscaling:EC2_INSTANCE_LAUNCHING",),
        ),
        ref="drain",
        unchanged={"NotificationTargetARN": "moto does not keep it", "RoleARN": "moto does not keep it"},
    )


def test_scheduled_action(lifecycle: Lifecycle, world: Any) -> None:
    def action(*names: str) -> Callable[[str], Any]:
        def look(name: str) -> Any:
            found = scaling("describe_scheduled_actions", ScheduledActionNames=[name])["ScheduledUpdateGroupActions"][0]
            return tuple(str(found.get(key)) for key in names)

        return look

    lifecycle(
        "AWS::AutoScaling::ScheduledAction",
        {"AutoScalingGroupName": world.scaling_group, "MinSize": "0", "Recurrence": "0 6 * * *"},
        (
            {"MinSize": 1, "MaxSize": 2, "DesiredCapacity": "1"},
            action("MinSize", "MaxSize", "DesiredCapacity"),
            ("1", "2", "1"),
        ),
        ({"Recurrence": "0 7 * * *"}, action("Recurrence"), ("0 7 * * *",)),
        (
            {"StartTime": "2027-01-01T00:00:00Z", "EndTime": "2027-02-01T00:00:00Z"},
            action("StartTime"),
            ("2027-01-01 00:00:00+00:00",),
        ),
        ref=r"Demo-Thing-\w+",
        unchanged={"TimeZone": "moto does not keep it"},
    )


def test_scaling_policy(lifecycle: Lifecycle, world: Any) -> None:
    def policy(*names: str) -> Callable[[str], Any]:
        def look(_: str) -> Any:
            found = scaling("describe_policies", AutoScalingGroupName=world.scaling_group)["ScalingPolicies"][0]
            return tuple(found.get(name) for name in names)

        return look

    metric = {"PredefinedMetricType": "ASGAverageCPUUtilization"}
    tracking = {"PredefinedMetricSpecification": metric, "TargetValue": "50"}
    provider = registry()["AWS::AutoScaling::ScalingPolicy"]
    lifecycle(
        "AWS::AutoScaling::ScalingPolicy",
        {"AutoScalingGroupName": world.scaling_group, "AdjustmentType": "ChangeInCapacity", "ScalingAdjustment": "1"},
        ({"ScalingAdjustment": 2, "Cooldown": "60"}, policy("ScalingAdjustment", "Cooldown"), (2, 60)),
        (
            {
                "PolicyType": "TargetTrackingScaling",
                "TargetTrackingConfiguration": tracking,
                "AdjustmentType": None,
                "ScalingAdjustment": None,
                "Cooldown": None,
            },
            lambda arn: policy("TargetTrackingConfiguration")(arn)[0]["TargetValue"],
            50.0,
        ),
        ref=r"arn:aws:autoscaling:.*policyName/Demo-Thing-\w+",
        unchanged=dict.fromkeys(provider.updatable - {"PolicyType"}, "one call puts the whole policy"),
    )


class Group:
    """A group of two instances that replaces what is ended or refreshed; what a test needs of Auto Scaling."""

    def __init__(self, *, refresh: str = "Successful") -> None:
        self.instances = ["i-1", "i-2"]
        self.refresh = refresh
        self.made = 2

    def describe(self, **_: Any) -> Any:
        instances = [{"InstanceId": i, "LifecycleState": "InService"} for i in self.instances]
        group = {"AutoScalingGroupName": "g", "AutoScalingGroupARN": "arn:g", "DesiredCapacity": 2}
        return {"AutoScalingGroups": [{**group, "Instances": instances}]}

    def end(self, **arguments: Any) -> Any:
        assert arguments["ShouldDecrementDesiredCapacity"] is False
        self.made += 1
        self.instances = [i for i in self.instances if i != arguments["InstanceId"]] + [f"i-{self.made}"]
        return {}

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
            "terminate_instance_in_auto_scaling_group": self.end,
            "suspend_processes": lambda **_: {},
            "resume_processes": lambda **_: {},
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


def test_without_a_policy_running_instances_stay(update: Any) -> None:
    assert set(update({}).names()) == {
        "update_auto_scaling_group",
        "create_or_update_tags",
        "describe_auto_scaling_groups",
    }


def test_a_new_template_version_starts_a_refresh_and_waits_for_it(update: Any) -> None:
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


def test_an_empty_group_needs_no_refresh(update: Any) -> None:
    group = Group()
    group.instances = []
    client = update({"AutoScalingInstanceRefresh": {"Strategy": "Rolling"}}, group=group)
    assert "start_instance_refresh" not in client.names()


def test_a_failed_refresh_fails_the_update(update: Any) -> None:
    with pytest.raises(ResourceFailure, match="r-1 of g: Failed: because"):
        update({"AutoScalingInstanceRefresh": {"Strategy": "Rolling"}}, group=Group(refresh="Failed"))


def test_a_rolling_update_replaces_batch_by_batch_with_processes_suspended(update: Any) -> None:
    group = Group()
    policy = {"MaxBatchSize": "1", "MinInstancesInService": 1, "SuspendProcesses": ["AZRebalance"]}
    client = update({"AutoScalingRollingUpdate": policy}, group=group)
    assert group.instances == ["i-3", "i-4"]
    names = [name for name in client.names() if not name.startswith("describe")]
    ended = "terminate_instance_in_auto_scaling_group"
    assert names[1:5] == ["suspend_processes", ended, ended, "resume_processes"]


def test_a_rolling_update_that_may_touch_nothing_is_refused(update: Any) -> None:
    with pytest.raises(ResourceFailure, match="MinInstancesInService 2 leaves none of 2"):
        update({"AutoScalingRollingUpdate": {"MinInstancesInService": 2}})


def test_unmodified_sizes_are_left_to_who_sizes_the_group(update: Any) -> None:
    policy = {"AutoScalingScheduledAction": {"IgnoreUnmodifiedGroupSizeProperties": "true"}}
    sent = dict(update(policy, new={**NEW, "MaxSize": 4}).calls)["update_auto_scaling_group"]
    assert (sent.get("MinSize"), sent["MaxSize"]) == (None, 4)
    assert dict(update({}, new={**NEW, "MaxSize": 4}).calls)["update_auto_scaling_group"]["MinSize"] == 0


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ({"AutoScalingReplacingUpdate": {"WillReplace": True}}, "wants a new group"),
        ({"AutoScalingRollingUpdate": {"WaitOnResourceSignals": True}}, "counts no signals"),
        ({"AutoScalingRollingUpdate": {"PauseTime": "PT5M"}}, "cannot do PauseTime"),
        ({"AutoScalingRollingUpdate": {}, "AutoScalingInstanceRefresh": {"Strategy": "Rolling"}}, "exclude each other"),
        ({"AutoScalingRefresh": {}}, "unknown AutoScalingRefresh"),
    ],
)
def test_what_the_policy_cannot_do_is_refused(policy: Any, problem: str, update: Any) -> None:
    with pytest.raises(ResourceFailure, match=problem):
        update(policy)


def test_every_setting_of_a_group_reaches_the_service(update: Any) -> None:
    settings: dict[str, Any] = {
        "AvailabilityZones": ["us-east-1a"],
        "AvailabilityZoneDistribution": {"CapacityDistributionStrategy": "balanced-only"},
        "AvailabilityZoneImpairmentPolicy": {
            "ZonalShiftEnabled": True,
            "ImpairedZoneHealthCheckBehavior": "IgnoreUnhealthy",
        },
        "CapacityRebalance": False,
        "CapacityReservationSpecification": {"CapacityReservationPreference": "capacity-reservations-first"},
        "Context": "c",
        "DefaultInstanceWarmup": 10,
        "DeletionProtection": "none",
        "DesiredCapacityType": "units",
        "InstanceLifecyclePolicy": {"RetentionTriggers": {"TerminateHookAbandon": "retain"}},
        "InstanceMaintenancePolicy": {"MinHealthyPercentage": 0, "MaxHealthyPercentage": 100},
        "MaxInstanceLifetime": 86400,
        "PlacementGroup": "together",
        "ServiceLinkedRoleARN": "arn:aws:iam::123456789012:role/aws-service-role/x",
    }
    sent = dict(update({}, new={**OLD, **settings, "Cooldown": "60"}).calls)["update_auto_scaling_group"]
    assert sent == {"AutoScalingGroupName": "g", **OLD, **settings, "DefaultCooldown": 60}


def test_dropped_settings_go_back_to_their_defaults_or_are_refused(update: Any) -> None:
    extra = {"PlacementGroup": "pg", "MaxInstanceLifetime": 86400, "DefaultInstanceWarmup": 60, "Cooldown": 60}
    sent = dict(update({}, old={**OLD, **extra}, new=OLD).calls)["update_auto_scaling_group"]
    assert sent == {
        "AutoScalingGroupName": "g",
        **OLD,
        "DefaultCooldown": 300,
        "PlacementGroup": "",
        "MaxInstanceLifetime": 0,
        "DefaultInstanceWarmup": -1,
    }
    with pytest.raises(ResourceFailure, match="CapacityReservationSpecification cannot be dropped"):
        update({}, old={**OLD, "CapacityReservationSpecification": {}}, new=OLD)


def test_creation_waits_for_the_instances_that_the_template_asks_for(scripted: Any, boto: Any, context: Any) -> None:
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
