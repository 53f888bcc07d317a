"""The fleet as an EC2 Fleet of type maintain.

Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_ModifyFleet.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from botocore.exceptions import ClientError

from .maintained import Active, Description, MaintainedFleet, active_instances, history_records

_LIVE_STATES = ("submitted", "active", "modifying")


class Ec2Fleet(MaintainedFleet):
    """An EC2 Fleet, identified by id."""

    keep_excess = "no-termination"
    terminate_excess = "termination"

    def _description(self) -> Description | None:
        try:
            response = self._ec2.describe_fleets(FleetIds=[self._id])
        except ClientError as error:
            if error.response["Error"]["Code"] in ("InvalidFleetId.NotFound", "InvalidFleetId.NotFoundException"):
                return None
            raise
        found = next(iter(response["Fleets"]), None)
        if found is None or found["FleetState"] not in _LIVE_STATES:
            return None
        target = found["TargetCapacitySpecification"]
        on_demand = int(target.get("OnDemandTargetCapacity", 0))
        return Description(int(target["TotalTargetCapacity"]), on_demand, found["LaunchTemplateConfigs"])

    def _instances(self) -> tuple[Active, ...]:
        return active_instances(self._ec2.describe_fleet_instances, FleetId=self._id)

    def _history(self, since: datetime) -> Iterator[Mapping[str, Any]]:
        return history_records(self._ec2.describe_fleet_history, FleetId=self._id, StartTime=since)

    def _modify(self, desired: int, surplus: int, on_demand: int, excess_policy: str, **more: Any) -> None:
        target = {
            "TotalTargetCapacity": desired + surplus,
            "OnDemandTargetCapacity": on_demand,
            "SpotTargetCapacity": desired + surplus - on_demand,
        }
        self._ec2.modify_fleet(
            FleetId=self._id,
            TargetCapacitySpecification=target,
            ExcessCapacityTerminationPolicy=excess_policy,
            **more,
        )
