"""What holds the nodes: one interface, three back ends. The template never sizes a fleet; the run controller does.

How a node edit reaches the nodes differs: an Auto Scaling group refreshes all of them at once, after the terminating
hook; of EC2 Fleet and Spot Fleet a second fleet is made before the first one goes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from constructs import Construct

from stacks.constructs.fleets.auto_scaling_group import AutoScalingFleet
from stacks.constructs.fleets.ec2_fleet import Ec2Fleet
from stacks.constructs.fleets.fleet import Fleet, FleetParts
from stacks.constructs.fleets.spot_fleet import SpotFleet

__all__ = ["Fleet", "FleetParts", "make_fleet"]

BACK_ENDS: Mapping[str, Callable[[Construct, str, FleetParts], Fleet]] = {
    "auto_scaling_group": AutoScalingFleet,
    "ec2_fleet": Ec2Fleet,
    "spot_fleet": SpotFleet,
}


def make_fleet(scope: Construct, id_: str, parts: FleetParts) -> Fleet:
    """Make the back end that `capacity.backend` names."""
    return BACK_ENDS[parts.config.capacity.backend](scope, id_, parts)
