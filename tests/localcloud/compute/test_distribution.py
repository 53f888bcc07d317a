"""Placement of launches and selection for scale-in: pure functions of a group."""

from __future__ import annotations

import pytest

from localcloud.compute.autoscaling.distribution import attempts, on_demand_target, reservation_attempts, victims
from localcloud.compute.autoscaling.model import (
    Distribution,
    Group,
    LaunchPlan,
    Member,
    Override,
    Subnet,
    TemplateReference,
)
from localcloud.compute.errors import AddressesExhausted
from localcloud.compute.launch.addresses import AddressBook

TEMPLATE = TemplateReference("lt-1", "template", "2")


def group(distribution: Distribution | None = None, *members: Member, **settings) -> Group:
    made = Group(
        name="g", arn="arn", created=0.0,
        plan=LaunchPlan(TEMPLATE, [Override("a"), Override("b"), Override("c")] if distribution else (), distribution),
        minimum=0, maximum=9, desired=9, subnets=[Subnet("s1", "z1"), Subnet("s2", "z2")], **settings,
    )  # fmt: skip
    made.members = {member.instance_id: member for member in members}
    return made


def member(name: str, zone: str = "z1", *, market="on-demand", kind="a", joined=0.0, version="2", **more) -> Member:
    template = TemplateReference("lt-1", "template", version)
    return Member(name, kind, zone, "s" + zone[1], market, template, joined, **({"state": "InService"} | more))


@pytest.mark.parametrize(
    ("base", "percentage", "desired", "target"),
    [(0, 100, 4, 4), (0, 0, 4, 0), (2, 0, 1, 1), (1, 50, 4, 3), (1, 50, 5, 3), (0, 33, 3, 1)],
)
def test_on_demand_target_is_rounded_up(base, percentage, desired, target):
    distribution = Distribution(on_demand_base=base, on_demand_percentage=percentage)
    assert on_demand_target(distribution, desired) == target


def test_zone_with_fewest_instances_is_tried_first_with_all_pools():
    spot = Distribution(on_demand_percentage=0, spot_allocation="price-capacity-optimized")
    found = list(attempts(group(spot, member("i", "z1", market="spot")), 2))
    assert [(one.subnet.zone, one.market) for one in found] == [("z2", "spot"), ("z1", "spot")]
    assert [one.instance_type for one in found[0].overrides] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("preference", "market", "expected"),
    [
        (
            "capacity-reservations-first",
            "on-demand",
            [{"CapacityReservationTarget": {"CapacityReservationId": "cr-1"}}, {}],
        ),
        ("capacity-reservations-first", "spot", [{}]),
        ("default", "on-demand", [{}]),
        ("none", "on-demand", [{"CapacityReservationPreference": "none"}]),
    ],
)
def test_reservation_attempts_follow_the_group_preference(preference, market, expected):
    target = {"CapacityReservationIds": ["cr-1"]} if preference.startswith("cap") else {}
    reservations = {"CapacityReservationPreference": preference, "CapacityReservationTarget": target}
    assert reservation_attempts(group(reservations=reservations), market) == expected


def test_lowest_price_spreads_over_the_pools():
    spot = Distribution(on_demand_percentage=0, spot_allocation="lowest-price", spot_pools=2)
    (first, _) = attempts(group(spot, member("i", kind="a", market="spot")), 2)
    assert [one.instance_type for one in first.overrides] == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("members", "terminated"),
    [
        ([member("i1", joined=1), member("i2", joined=5, version="1")], "i2"),
        ([member("i1", joined=3000), member("i2", joined=6500)], "i2"),
        ([member("i1", "z1"), member("i2", "z2"), member("i3", "z2", joined=9)], "i2"),
        ([member("i1", joined=1), member("i2", joined=5, health="Unhealthy")], "i2"),
        ([member("i1", joined=1), member("i2", joined=5, state="Pending")], "i2"),
    ],
)
def test_default_termination_policy(members, terminated):
    chosen = victims(group(None, *members), 1, now=10000.0)
    assert [one.instance_id for one in chosen] == [terminated]


def test_scale_in_terminates_in_the_surplus_market():
    half = Distribution(on_demand_percentage=0, on_demand_base=1)
    members = [member("i1", market="on-demand", joined=9), member("i2", market="on-demand", joined=8),
               member("i3", market="spot")]  # fmt: skip
    chosen = victims(group(half, *members), 1, now=10.0)
    assert [one.instance_id for one in chosen] == ["i2"]


def test_addresses_wrap_around_and_skip_those_in_use():
    book = AddressBook(lambda subnet: {"10.0.0.5"})
    taken = [book.take("s", "10.0.0.0/28") for _ in range(10)]
    assert taken == [f"10.0.0.{host}" for host in (4, *range(6, 15))]
    with pytest.raises(AddressesExhausted, match="not enough free addresses in subnet 's'"):
        book.take("s", "10.0.0.0/28")
    book.release("s", "10.0.0.9")
    assert book.take("s", "10.0.0.0/28") == "10.0.0.9"


@pytest.mark.parametrize("wanted", ["10.0.0.0", "10.0.0.3", "10.0.0.15", "10.0.1.7", "10.0.0.5"])
def test_unavailable_address_is_refused(wanted):
    with pytest.raises(AddressesExhausted, match=wanted):
        AddressBook(lambda subnet: {"10.0.0.5"}).take("s", "10.0.0.0/28", wanted)
