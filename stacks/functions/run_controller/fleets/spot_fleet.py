"""The fleet as a Spot Fleet request of type maintain; it is sized and moved like an EC2 Fleet, by other calls.

Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_ModifySpotFleetRequest.html
"""

from __future__ import annotations

from typing import Any

from botocore.exceptions import ClientError

from .. import policy
from .maintained import Described, MaintainedFleet
from .members import active_instances

_THERE = ("submitted", "active", "modifying")


class SpotFleet(MaintainedFleet):
    """A Spot Fleet request by its id."""

    kind = "a Spot Fleet"
    keeps_excess = "noTermination"
    ends_excess = "default"

    def _described(self) -> Described | None:
        try:
            answer = self._ec2.describe_spot_fleet_requests(SpotFleetRequestIds=[self._id])
        except ClientError as error:
            if error.response["Error"]["Code"] == "InvalidSpotFleetRequestId.NotFound":
                return None
            raise
        (found,) = answer["SpotFleetRequestConfigs"]
        if found["SpotFleetRequestState"] not in _THERE:
            return None
        config = found["SpotFleetRequestConfig"]
        return Described(int(config["TargetCapacity"]), config["LaunchTemplateConfigs"])

    def _instances(self) -> tuple[policy.Instance, ...]:
        return active_instances(self._ec2.describe_spot_fleet_instances, SpotFleetRequestId=self._id)

    def _modify(self, desired: int, surplus: int, policy_for_excess: str, **more: Any) -> None:
        self._ec2.modify_spot_fleet_request(
            SpotFleetRequestId=self._id,
            TargetCapacity=desired + surplus,
            OnDemandTargetCapacity=min(self._on_demand_base, desired),
            ExcessCapacityTerminationPolicy=policy_for_excess,
            **more,
        )
