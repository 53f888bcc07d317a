"""The back ends of a fleet behind one interface: how it is seen, and how an action is carried out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from .. import policy
from .auto_scaling_group import AutoScalingGroup
from .ec2_fleet import Ec2Fleet
from .maintained import MaintainedFleet
from .spot_fleet import SpotFleet


class Fleet(Protocol):
    """What holds the machines."""

    def look(self) -> policy.Group | None:
        """Return the fleet as it is, None when it is not there."""

    def carry_out(self, action: policy.Action) -> None:
        """Change the fleet.

        Raises:
            botocore.exceptions.ClientError: AWS refused.
        """


@dataclass(frozen=True)
class FleetIdentity:
    """Which fleet it is, and how it may be sized: its most machines, and how many of them are not spot."""

    backend: str
    fleet_id: str
    maximum: int
    on_demand_base: int


def connect(identity: FleetIdentity, client: Callable[[str], Any]) -> Fleet:
    """Return the fleet; `client` makes the boto3 client of a service."""
    if identity.backend == "auto_scaling_group":
        return AutoScalingGroup(identity.fleet_id, client("autoscaling"))
    kinds: Mapping[str, type[MaintainedFleet]] = {"ec2_fleet": Ec2Fleet, "spot_fleet": SpotFleet}
    return kinds[identity.backend](
        identity.fleet_id, client("ec2"), maximum=identity.maximum, on_demand_base=identity.on_demand_base
    )
