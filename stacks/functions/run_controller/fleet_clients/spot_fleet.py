"""The fleet as a Spot Fleet request of type maintain.

Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_ModifySpotFleetRequest.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from botocore.exceptions import ClientError

from .. import policy
from .maintained import Description, MaintainedFleet, active_instances, history_records

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
        (found,) = response["SpotFleetRequestConfigs"]
        if found["SpotFleetRequestState"] not in _LIVE_STATES:
            return None
        config = found["SpotFleetRequestConfig"]
        return Description(int(config["TargetCapacity"]), config["LaunchTemplateConfigs"])

    def _instances(self) -> tuple[policy.Instance, ...]:
        return active_instances(self._ec2.describe_spot_fleet_instances, SpotFleetRequestId=self._id)

    def _history(self, since: datetime) -> Iterator[Mapping[str, Any]]:
        describe = self._ec2.describe_spot_fleet_request_history
        return history_records(describe, SpotFleetRequestId=self._id, StartTime=since)

    def _modify(self, desired: int, surplus: int, excess_policy: str, **more: Any) -> None:
        self._ec2.modify_spot_fleet_request(
            SpotFleetRequestId=self._id,
            TargetCapacity=desired + surplus,
            OnDemandTargetCapacity=min(self._on_demand_base, desired),
            ExcessCapacityTerminationPolicy=excess_policy,
            **more,
        )
