"""The fleet as a Spot Fleet request of type maintain.

Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_ModifySpotFleetRequest.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from botocore.exceptions import ClientError

from .maintained import Active, Description, MaintainedFleet, active_instances, history_records

_LIVE_STATES = ("submitted", "active", "modifying")


class SpotFleet(MaintainedFleet):
    """A Spot Fleet request, identified by id."""

    keep_excess = "noTermination"
    terminate_excess = "default"

    def _description(self) -> Description | None:
        try:
            response = self._ec2.describe_spot_fleet_requests(SpotFleetRequestIds=[self._id])
        except ClientError as error:
            if error.response["Error"]["Code"] == "InvalidSpotFleetRequestId.NotFound":
                return None
            raise
        found = next(iter(response["SpotFleetRequestConfigs"]), None)
        if found is None or found["SpotFleetRequestState"] not in _LIVE_STATES:
            return None
        config = found["SpotFleetRequestConfig"]
        on_demand = int(config.get("OnDemandTargetCapacity", 0))
        return Description(int(config["TargetCapacity"]), on_demand, config["LaunchTemplateConfigs"])

    def _instances(self) -> tuple[Active, ...]:
        return active_instances(self._ec2.describe_spot_fleet_instances, SpotFleetRequestId=self._id)

    def _history(self, since: datetime) -> Iterator[Mapping[str, Any]]:
        describe = self._ec2.describe_spot_fleet_request_history
        return history_records(describe, SpotFleetRequestId=self._id, StartTime=since)

    def _modify(self, desired: int, surplus: int, on_demand: int, excess_policy: str, **more: Any) -> None:
        self._ec2.modify_spot_fleet_request(
            SpotFleetRequestId=self._id,
            TargetCapacity=desired + surplus,
            OnDemandTargetCapacity=on_demand,
            ExcessCapacityTerminationPolicy=excess_policy,
            **more,
        )
