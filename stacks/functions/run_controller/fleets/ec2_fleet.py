"""The fleet as an EC2 Fleet of type maintain.

Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_ModifyFleet.html
"""

from __future__ import annotations

from typing import Any

from botocore.exceptions import ClientError

from .. import policy
from .maintained import Described, MaintainedFleet
from .members import active_instances

_THERE = ("submitted", "active", "modifying")


class Ec2Fleet(MaintainedFleet):
    """An EC2 Fleet by its id."""

    kind = "an EC2 Fleet"
    keeps_excess = "no-termination"
    ends_excess = "termination"

    def _described(self) -> Described | None:
        try:
            (found,) = self._ec2.describe_fleets(FleetIds=[self._id])["Fleets"]
        except ClientError as error:
            if error.response["Error"]["Code"] in ("InvalidFleetId.NotFound", "InvalidFleetId.NotFoundException"):
                return None
            raise
        if found["FleetState"] not in _THERE:
            return None
        total = int(found["TargetCapacitySpecification"]["TotalTargetCapacity"])
        return Described(total, found["LaunchTemplateConfigs"])

    def _instances(self) -> tuple[policy.Instance, ...]:
        return active_instances(self._ec2.describe_fleet_instances, FleetId=self._id)

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
