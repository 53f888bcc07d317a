"""Lifecycle hooks and instance refreshes."""

from __future__ import annotations

import urllib.request

import pytest
from botocore.exceptions import ClientError

LAUNCHING, TERMINATING = "autoscaling:EC2_INSTANCE_LAUNCHING", "autoscaling:EC2_INSTANCE_TERMINATING"


def hook(transition: str, result: str = "CONTINUE", seconds: int = 300, **more) -> dict:
    return {
        "LifecycleHookName": "hook", "LifecycleTransition": transition, "DefaultResult": result,
        "HeartbeatTimeout": seconds,
    } | more  # fmt: skip


def complete(cloud, group: str, instance: str, result: str = "CONTINUE") -> None:
    cloud.autoscaling.complete_lifecycle_action(
        AutoScalingGroupName=group, LifecycleHookName="hook", InstanceId=instance, LifecycleActionResult=result
    )


def until_waiting(cloud, group: str, state: str, count: int = 1) -> list[str]:
    def waiting() -> list[str] | None:
        ids = [one["InstanceId"] for one in cloud.described(group)["Instances"] if one["LifecycleState"] == state]
        return ids if len(ids) == count else None

    return cloud.until(waiting, f"{count} in {state}")


def target_state(cloud, instance: str) -> str:
    url = cloud.compute.inventory.get(instance).machine.metadata_url
    with urllib.request.urlopen(f"{url}latest/meta-data/autoscaling/target-lifecycle-state", timeout=10) as answer:
        return answer.read().decode()


def test_terminating_hook_holds_the_instance_until_completed(cloud):
    group = cloud.group(DesiredCapacity=1, LifecycleHookSpecificationList=[hook(TERMINATING)])
    (instance,) = cloud.until_in_service(group, 1)
    assert target_state(cloud, instance) == "InService"
    cloud.autoscaling.update_auto_scaling_group(AutoScalingGroupName=group, DesiredCapacity=0)
    until_waiting(cloud, group, "Terminating:Wait")
    assert target_state(cloud, instance) == "Terminated"
    assert cloud.state_of(instance) == "running"
    (event,) = cloud.bus.of("EC2 Instance-terminate Lifecycle Action", EC2InstanceId=instance)
    assert event["source"] == "aws.autoscaling"
    assert event["detail"] | {"LifecycleActionToken": ""} == {
        "LifecycleActionToken": "", "AutoScalingGroupName": group, "LifecycleHookName": "hook",
        "EC2InstanceId": instance, "LifecycleTransition": TERMINATING, "Origin": "AutoScalingGroup",
        "Destination": "EC2",
    }  # fmt: skip
    complete(cloud, group, instance)
    cloud.until_state(instance, "terminated")
    cloud.until(lambda: cloud.lifecycle(group, instance) is None, "the instance to leave")
    with pytest.raises(ClientError, match="No active Lifecycle Action found"):
        complete(cloud, group, instance)


def test_heartbeat_extends_the_time_out_of_a_hook(cloud):
    group = cloud.group(DesiredCapacity=1, LifecycleHookSpecificationList=[hook(TERMINATING, seconds=100)])
    (instance,) = cloud.until_in_service(group, 1)
    cloud.autoscaling.update_auto_scaling_group(AutoScalingGroupName=group, DesiredCapacity=0)
    until_waiting(cloud, group, "Terminating:Wait")
    cloud.advance(60)
    cloud.autoscaling.record_lifecycle_action_heartbeat(
        AutoScalingGroupName=group, LifecycleHookName="hook", InstanceId=instance
    )
    cloud.advance(60)
    assert cloud.lifecycle(group, instance) == "Terminating:Wait"
    assert cloud.state_of(instance) == "running"
    cloud.advance(60)
    cloud.until_state(instance, "terminated")


def test_launching_hook_continues_or_abandons_the_launch(cloud):
    group = cloud.group(DesiredCapacity=1, LifecycleHookSpecificationList=[hook(LAUNCHING, "ABANDON")])
    (first,) = until_waiting(cloud, group, "Pending:Wait")
    assert cloud.bus.of("EC2 Instance Launch Successful", EC2InstanceId=first) == []
    complete(cloud, group, first, "ABANDON")
    cloud.until_state(first, "terminated")

    def another() -> str | None:
        states = {one["InstanceId"]: one["LifecycleState"] for one in cloud.described(group)["Instances"]}
        return next((one for one, state in states.items() if state == "Pending:Wait" and one != first), None)

    second = cloud.until(another, "another attempt")
    complete(cloud, group, second)
    assert cloud.until_in_service(group, 1) == [second]
    (event,) = cloud.bus.of("EC2 Instance-launch Lifecycle Action", EC2InstanceId=second)
    assert event["detail"]["Origin"] == "EC2"
    assert cloud.bus.of("EC2 Instance Launch Successful", EC2InstanceId=second)


def test_deleted_hook_releases_waiting_instances(cloud):
    group = cloud.group(DesiredCapacity=1)
    cloud.autoscaling.put_lifecycle_hook(AutoScalingGroupName=group, **hook(TERMINATING))
    (described,) = cloud.autoscaling.describe_lifecycle_hooks(AutoScalingGroupName=group)["LifecycleHooks"]
    assert (described["HeartbeatTimeout"], described["GlobalTimeout"]) == (300, 30000)
    (instance,) = cloud.until_in_service(group, 1)
    cloud.autoscaling.update_auto_scaling_group(AutoScalingGroupName=group, DesiredCapacity=0)
    until_waiting(cloud, group, "Terminating:Wait")
    cloud.autoscaling.delete_lifecycle_hook(AutoScalingGroupName=group, LifecycleHookName="hook")
    cloud.until_state(instance, "terminated")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"HeartbeatTimeout": 10}, "HeartbeatTimeout 10 must be from 30 to 7200"),
        ({"LifecycleTransition": "sideways"}, "LifecycleTransition must be"),
        ({"DefaultResult": "MAYBE"}, "DefaultResult must be"),
        ({"NotificationTargetARN": "arn:aws:sqs:eu-west-1:1:q"}, "does not emulate NotificationTargetARN"),
    ],
)
def test_invalid_hooks_are_refused(cloud, changes, text):
    group = cloud.group()
    with pytest.raises(ClientError, match=text):
        cloud.autoscaling.put_lifecycle_hook(AutoScalingGroupName=group, **(hook(TERMINATING) | changes))


def refreshed(cloud, group: str, refresh: str) -> dict:
    def ended() -> dict | None:
        (shown,) = cloud.autoscaling.describe_instance_refreshes(
            AutoScalingGroupName=group, InstanceRefreshIds=[refresh]
        )["InstanceRefreshes"]
        return shown if shown["Status"] in ("Successful", "Failed", "Cancelled") else None

    return cloud.until(ended, "the refresh to end")


def test_refresh_with_zero_minimum_health_replaces_all_instances_together_after_their_hooks(cloud):
    template = cloud.template(InstanceType="m5.large")
    group = cloud.group(
        LaunchTemplate={"LaunchTemplateId": template, "Version": "$Latest"}, DesiredCapacity=2,
        LifecycleHookSpecificationList=[hook(TERMINATING)],
    )  # fmt: skip
    old = cloud.until_in_service(group, 2)
    cloud.ec2.create_launch_template_version(
        LaunchTemplateId=template,
        LaunchTemplateData={"InstanceType": "m5.xlarge", "ImageId": "ami-0123456789abcdef0"},
    )
    refresh = cloud.autoscaling.start_instance_refresh(
        AutoScalingGroupName=group, Preferences={"MinHealthyPercentage": 0, "SkipMatching": True}
    )["InstanceRefreshId"]
    with pytest.raises(ClientError, match="already in progress"):
        cloud.autoscaling.start_instance_refresh(AutoScalingGroupName=group)
    assert sorted(until_waiting(cloud, group, "Terminating:Wait", 2)) == sorted(old)
    assert len(cloud.described(group)["Instances"]) == 2
    for instance in old:
        complete(cloud, group, instance)
    shown = refreshed(cloud, group, refresh)
    assert (shown["Status"], shown["PercentageComplete"], shown["InstancesToUpdate"]) == ("Successful", 100, 0)
    instances = cloud.described(group)["Instances"]
    assert [one["InstanceType"] for one in instances] == ["m5.xlarge", "m5.xlarge"]
    assert not {one["InstanceId"] for one in instances} & set(old)
    assert "in response to an instance refresh." in next(
        one["Cause"] for one in cloud.activities(group) if one["Description"].endswith(old[0])
        and one["Description"].startswith("Terminating")
    )  # fmt: skip


def test_refresh_skips_matching_instances(cloud):
    group = cloud.group(DesiredCapacity=1)
    (instance,) = cloud.until_in_service(group, 1)
    answer = cloud.autoscaling.start_instance_refresh(AutoScalingGroupName=group, Preferences={"SkipMatching": True})
    assert refreshed(cloud, group, answer["InstanceRefreshId"])["Status"] == "Successful"
    assert cloud.in_service(group) == [instance]


def test_refresh_with_full_minimum_health_replaces_one_instance_at_a_time(cloud):
    group = cloud.group(DesiredCapacity=3, LifecycleHookSpecificationList=[hook(TERMINATING)])
    old = set(cloud.until_in_service(group, 3))
    refresh = cloud.autoscaling.start_instance_refresh(
        AutoScalingGroupName=group, Preferences={"MinHealthyPercentage": 100}
    )["InstanceRefreshId"]
    for _ in range(3):
        (waiting,) = until_waiting(cloud, group, "Terminating:Wait")
        assert len(cloud.in_service(group)) == 2
        complete(cloud, group, waiting)
        cloud.until(lambda one=waiting: cloud.lifecycle(group, one) is None, "the instance to leave")
    assert refreshed(cloud, group, refresh)["Status"] == "Successful"
    assert not set(cloud.until_in_service(group, 3)) & old


def test_unsupported_preferences_are_refused(cloud):
    group = cloud.group()
    with pytest.raises(ClientError, match="AutoRollback, CheckpointPercentages: not emulated"):
        cloud.autoscaling.start_instance_refresh(
            AutoScalingGroupName=group, Preferences={"AutoRollback": True, "CheckpointPercentages": [50]}
        )
