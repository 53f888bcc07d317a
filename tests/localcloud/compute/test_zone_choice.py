"""The run controller's choice of zones against the embedded cloud's prices and capacity."""

from __future__ import annotations

from typing import Any

from stacks.functions.run_controller import policy
from stacks.functions.run_controller.causes import Cause
from stacks.functions.run_controller.fleet_clients import FleetIdentity, connect
from stacks.functions.run_controller.market.prices import SpotPrices
from stacks.functions.run_controller.places import Place
from stacks.functions.run_controller.zone_choice import REFUSED_SECONDS

KIND = "m5.large"


def test_leaves_the_cheap_zone_without_capacity_for_the_next_one(cloud: Any) -> None:
    cloud.client("iam").create_service_linked_role(AWSServiceName="spot.amazonaws.com")
    zones, subnets = ("eu-west-1a", "eu-west-1b"), tuple(cloud.subnets[:2])
    names = [cloud.group(MixedInstancesPolicy=cloud.spot_policy(KIND), VPCZoneIdentifier=subnet) for subnet in subnets]
    fleet = connect(FleetIdentity("auto_scaling_group", ",".join(names), 1, 0), cloud.client)
    settings = policy.Settings(
        subnets, True, 600.0, 3, choose="cost", places=tuple(Place("eu-west-1", zone, KIND, "spot") for zone in zones)
    )
    for zone, usd, is_available in (("eu-west-1a", 0.02, False), ("eu-west-1b", 0.03, True)):
        body = {"instance_types": [KIND], "zone": zone, "usd_per_hour": usd, "is_available": is_available}
        assert cloud.post("pool", body) == 200
    prices = SpotPrices(settings, cloud.client)
    state = policy.ControllerState()

    def step(now: float, since: float) -> policy.Decision:
        """Take one step as the handler does, and apply its actions."""
        nonlocal state
        seen = fleet.describe()
        assert seen is not None
        decision = policy.decide(
            policy.Situation(
                now_unix_seconds=now,
                settings=settings,
                run=policy.Run("r", "d", nodes=1, min_nodes=1),
                outcome=None,
                fleet=seen,
                heard_from=frozenset(),
                interrupted=frozenset(),
                state=state,
                launch_failures=fleet.launch_failures(since),
                usd_per_hour=prices.now(now)[0],
            )
        )
        state = decision.state
        for action in decision.actions:
            fleet.apply(action)
        return decision

    started = cloud.now()
    first = step(started, started)
    assert [(each.place.zone, each.usd_per_hour) for each in first.ranking] == [
        ("eu-west-1a", 0.02),
        ("eu-west-1b", 0.03),
    ]
    cloud.until(lambda: fleet.launch_failures(started), "a refused launch")
    assert step(started + REFUSED_SECONDS, started).actions == (policy.Resize(0),)
    assert state.places[subnets[0]].cause is Cause.CAPACITY
    second = step(started + REFUSED_SECONDS + 60.0, started)
    assert second.actions == (policy.Resize(1, subnets[1:]),)
    cloud.until(lambda: fleet.describe().in_service(), "an instance in the second zone")
    (member,) = fleet.describe().instances
    described = cloud.ec2.describe_instances(InstanceIds=[member.instance_id])["Reservations"][0]["Instances"][0]
    assert described["Placement"]["AvailabilityZone"] == "eu-west-1b"
    fleet.apply(policy.Resize(0))
    for zone in zones:
        cloud.post("pool", {"instance_types": [KIND], "zone": zone, "is_available": True})
