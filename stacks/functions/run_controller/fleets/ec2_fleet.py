"""The fleet as an EC2 Fleet of type maintain.

It has no detaching: while an interrupted machine still works, the fleet is asked for one more, and for one less, ending
none, when the replacement is there. Source (2026-11):
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_ModifyFleet.html
"""

from __future__ import annotations

from typing import Any

from botocore.exceptions import ClientError

from .. import policy
from . import launch_configs
from .members import active_instances

_THERE = ("submitted", "active", "modifying")


class Ec2Fleet:
    """An EC2 Fleet by its id."""

    def __init__(self, fleet_id: str, ec2: Any, *, maximum: int, on_demand_base: int) -> None:
        self._id = fleet_id
        self._ec2 = ec2
        self._maximum = maximum
        self._on_demand_base = on_demand_base

    def look(self) -> policy.Group | None:
        """Return the fleet as it is, None when it is deleted."""
        found = self._described()
        if found is None:
            return None
        total = int(found["TargetCapacitySpecification"]["TotalTargetCapacity"])
        desired = min(total, self._maximum)
        return policy.Group(
            desired=desired,
            maximum=self._maximum,
            subnets=launch_configs.subnets_of(found["LaunchTemplateConfigs"]),
            # A node edit makes another fleet, whose templates may count from 1 again.
            template_version=f"{self._id}:{launch_configs.versions_of(found['LaunchTemplateConfigs'])}",
            instances=active_instances(self._ec2.describe_fleet_instances, FleetId=self._id),
            surplus=total - desired,
        )

    def carry_out(self, action: policy.Action) -> None:
        """Size the fleet, or move it to other subnets."""
        if isinstance(action, policy.Surplus):
            self._modify(action.desired, action.count, "no-termination")
        elif isinstance(action, policy.Resize):
            moved = {}
            if action.subnets is not None and (found := self._described()) is not None:
                moved["LaunchTemplateConfigs"] = launch_configs.moved(found["LaunchTemplateConfigs"], action.subnets)
            self._modify(action.desired, 0, "termination", **moved)
        else:
            raise TypeError(f"{action}: machines of an EC2 Fleet cannot be detached")

    def _described(self) -> dict[str, Any] | None:
        try:
            (found,) = self._ec2.describe_fleets(FleetIds=[self._id])["Fleets"]
        except ClientError as error:
            if error.response["Error"]["Code"] in ("InvalidFleetId.NotFound", "InvalidFleetId.NotFoundException"):
                return None
            raise
        return found if found["FleetState"] in _THERE else None

    def _modify(self, desired: int, surplus: int, policy_for_excess: str, **more: Any) -> None:
        on_demand = min(self._on_demand_base, desired)
        target = {
            "TotalTargetCapacity": desired + surplus,
            "OnDemandTargetCapacity": on_demand,
            "SpotTargetCapacity": desired + surplus - on_demand,
        }
        self._ec2.modify_fleet(
            FleetId=self._id,
            TargetCapacitySpecification=target,
            ExcessCapacityTerminationPolicy=policy_for_excess,
            **more,
        )
