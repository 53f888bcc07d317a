"""The fleet that runs the nodes, with one interface and three back ends.

Only the run controller sets the fleet's size; the template does not.

A node edit is rolled out to the nodes in one of two ways. An Auto Scaling group replaces all nodes at once, after the
terminating hook. For EC2 Fleet and Spot Fleet, CloudFormation creates a second fleet before it deletes the first.

To add a back end, add a row in `stacks/functions/run_controller/fleet_back_ends.py`, a construct and an entry in
CONSTRUCTS here, and a client and an entry in `stacks/functions/run_controller/fleet_clients/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from constructs import Construct

from stacks.constructs.fleet_resources.auto_scaling_group import AutoScalingFleet
from stacks.constructs.fleet_resources.ec2_fleet import Ec2Fleet
from stacks.constructs.fleet_resources.fleet import Fleet, FleetParts
from stacks.constructs.fleet_resources.spot_fleet import SpotFleet
from stacks.functions.run_controller.fleet_back_ends import Backend

__all__ = ["Fleet", "FleetParts", "create_fleet"]

CONSTRUCTS: Mapping[Backend, Callable[[Construct, str, FleetParts], Fleet]] = {
    "auto_scaling_group": AutoScalingFleet,
    "ec2_fleet": Ec2Fleet,
    "spot_fleet": SpotFleet,
}


def create_fleet(scope: Construct, id_: str, parts: FleetParts) -> Fleet:
    """Create the fleet for `capacity.backend`."""
    return CONSTRUCTS[parts.config.capacity.backend](scope, id_, parts)
