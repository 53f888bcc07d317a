"""Concurrent operations on Auto Scaling groups in memory, without instances."""

from __future__ import annotations

from typing import Any, cast

import pytest

from localcloud.api import ApiError, Call, Principal
from localcloud.compute.autoscaling.model import Group, GroupStore, LaunchPlan, Member, TemplateReference
from localcloud.compute.autoscaling.refresh import RefreshOperations
from localcloud.compute.launch.resolver import LaunchTemplateVersion

TEMPLATE = TemplateReference("lt-1", "nodes", "1")
START = Call(
    "autoscaling", "StartInstanceRefresh",
    {"AutoScalingGroupName": "nodes", "Preferences": {"SkipMatching": True}},
    Principal("arn:aws:iam::123456789012:root", "123456789012", "root"), "eu-west-1", "123456789012",
)  # fmt: skip


def member(instance_id: str, **values: Any) -> Member:
    known = {"instance_type": "m5.large", "zone": "a", "subnet_id": "s", "market": "spot", "joined": 0.0}
    return Member(instance_id=instance_id, template=TEMPLATE, state="InService", **(known | values))


def store_of(*members: Member, **values: Any) -> tuple[GroupStore, Group]:
    group = Group(
        "nodes", "arn", 0.0, LaunchPlan(TEMPLATE), minimum=0, maximum=4, desired=len(members), subnets=(),
        **values,
    )  # fmt: skip
    group.members = {one.instance_id: one for one in members}
    store = GroupStore()
    store.groups["nodes"] = group
    return store, group


class Resolver:
    """Returns version 1 of the template; the first call runs `concurrent` before returning."""

    def __init__(self, concurrent: Any) -> None:
        self._concurrent = concurrent

    def template(self, reference: Any) -> LaunchTemplateVersion:
        concurrent, self._concurrent = self._concurrent, lambda: None
        concurrent()
        return LaunchTemplateVersion("lt-1", "nodes", 1, {"InstanceType": "m5.large"})


def test_second_of_two_concurrent_refreshes_is_refused():
    store, group = store_of(member("i-1", instance_type="m5.xlarge"))
    operations = RefreshOperations(store, cast(Any, Resolver(lambda: operations.start(START))), clock=lambda: 1.0)
    with pytest.raises(ApiError, match="InstanceRefreshInProgress"):
        operations.start(START)
    assert [one.to_replace for one in group.refreshes] == [{"i-1"}]


def test_refresh_includes_instances_that_joined_during_ec2_calls():
    store, group = store_of(member("i-1"))
    late = member("i-2", instance_type="m5.xlarge")
    operations = RefreshOperations(store, cast(Any, Resolver(lambda: group.members.update({"i-2": late}))))
    operations.start(START)
    assert group.refreshes[0].to_replace == {"i-2"}
