"""Auto Scaling where two things happen at once, or nothing may happen: groups in memory, without instances."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from localcloud.api import ApiError, Call, Principal
from localcloud.compute.autoscaling.model import Group, GroupStore, LaunchPlan, Member, TemplateReference
from localcloud.compute.autoscaling.reconciler import Reconciler
from localcloud.compute.autoscaling.refresh_operations import RefreshOperations
from localcloud.compute.launch import LaunchTemplateVersion

TEMPLATE = TemplateReference("lt-1", "nodes", "1")
START = Call(
    "autoscaling", "StartInstanceRefresh",
    {"AutoScalingGroupName": "nodes", "Preferences": {"SkipMatching": True}},
    Principal("arn:aws:iam::123456789012:root", "123456789012", "root"), "eu-west-1", "123456789012",
)  # fmt: skip


def member(instance_id: str, **values: Any) -> Member:
    known = {"instance_type": "m5.large", "zone": "a", "subnet_id": "s", "market": "spot", "weight": 1, "joined": 0.0}
    return Member(instance_id=instance_id, template=TEMPLATE, state="InService", **(known | values))


def store_of(*members: Member, **values: Any) -> tuple[GroupStore, Group]:
    group = Group(
        "nodes", "arn", 0.0, LaunchPlan(TEMPLATE), minimum=0, maximum=4, desired=len(members), subnets=(),
        uses_default_subnets=False, placement_group=None, service_role_arn="arn", **values,
    )  # fmt: skip
    group.members = {one.instance_id: one for one in members}
    store = GroupStore()
    store.groups["nodes"] = group
    return store, group


class Resolver:
    """Answers version 1 of the template, after `meanwhile` has run once."""

    def __init__(self, meanwhile: Any) -> None:
        self._meanwhile = meanwhile

    def template(self, reference: Any) -> LaunchTemplateVersion:
        meanwhile, self._meanwhile = self._meanwhile, lambda: None
        meanwhile()
        return LaunchTemplateVersion("lt-1", "nodes", 1, {"InstanceType": "m5.large"})


def test_of_two_refreshes_started_at_once_one_is_refused():
    store, group = store_of(member("i-1", instance_type="m5.xlarge"))
    operations = RefreshOperations(store, cast(Any, Resolver(lambda: operations.start(START))), clock=lambda: 1.0)
    with pytest.raises(ApiError, match="InstanceRefreshInProgress"):
        operations.start(START)
    assert [one.to_replace for one in group.refreshes] == [{"i-1"}]


def test_a_refresh_sees_the_instances_that_joined_while_ec2_was_asked():
    store, group = store_of(member("i-1"))
    late = member("i-2", instance_type="m5.xlarge")
    operations = RefreshOperations(store, cast(Any, Resolver(lambda: group.members.update({"i-2": late}))))
    operations.start(START)
    assert group.refreshes[0].to_replace == {"i-2"}


@pytest.mark.parametrize(("suspended", "expected"), [({}, 0.0), ({"Terminate": "User suspended"}, None)])
def test_an_instance_past_its_lifetime_that_may_not_be_ended_is_not_waited_for(suspended, expected):
    store, _ = store_of(member("i-1"), maximum_lifetime_seconds=60, suspended=suspended)
    nothing = SimpleNamespace(next_deadline=lambda one: None)
    reconciler = Reconciler(store, cast(Any, None), cast(Any, nothing), cast(Any, None), cast(Any, nothing), lambda: 61)
    assert reconciler.seconds_to_next_deadline() == expected
