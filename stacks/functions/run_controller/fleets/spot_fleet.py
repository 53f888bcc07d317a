"""The fleet as a Spot Fleet request of type maintain; it is sized and moved like an EC2 Fleet, by other calls.

Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_ModifySpotFleetRequest.html
"""

from __future__ import annotations

from typing import Any

from botocore.exceptions import ClientError

from .. import policy
from . import launch_configs
from .members import active_instances

_THERE = ("submitted", "active", "modifying")


class SpotFleet:
    """A Spot Fleet request by its id."""

    def __init__(self, fleet_id: str, ec2: Any, *, maximum: int, on_demand_base: int) -> None:
        self._id = fleet_id
        self._ec2 = ec2
        self._maximum = maximum
        self._on_demand_base = on_demand_base

    def look(self) -> policy.Group | None:
        """Return the request as it is, None when it is cancelled."""
        config = self._described()
        if config is None:
            return None
        total = int(config["TargetCapacity"])
        desired = min(total, self._maximum)
        return policy.Group(
            desired=desired,
            maximum=self._maximum,
            subnets=launch_configs.subnets_of(config["LaunchTemplateConfigs"]),
            # A node edit makes another request, whose templates may count from 1 again.
            template_version=f"{self._id}:{launch_configs.versions_of(config['LaunchTemplateConfigs'])}",
            instances=active_instances(self._ec2.describe_spot_fleet_instances, SpotFleetRequestId=self._id),
            surplus=total - desired,
        )

    def carry_out(self, action: policy.Action) -> None:
        """Size the request, or move it to other subnets."""
        if isinstance(action, policy.Surplus):
            self._modify(action.desired, action.count, "noTermination")
        elif isinstance(action, policy.Resize):
            moved = {}
            if action.subnets is not None and (config := self._described()) is not None:
                moved["LaunchTemplateConfigs"] = launch_configs.moved(config["LaunchTemplateConfigs"], action.subnets)
            self._modify(action.desired, 0, "default", **moved)
        else:
            raise TypeError(f"{action}: machines of a Spot Fleet cannot be detached")

    def _described(self) -> dict[str, Any] | None:
        try:
            answer = self._ec2.describe_spot_fleet_requests(SpotFleetRequestIds=[self._id])
        except ClientError as error:
            if error.response["Error"]["Code"] == "InvalidSpotFleetRequestId.NotFound":
                return None
            raise
        (found,) = answer["SpotFleetRequestConfigs"]
        config: dict[str, Any] = found["SpotFleetRequestConfig"]
        return config if found["SpotFleetRequestState"] in _THERE else None

    def _modify(self, desired: int, surplus: int, policy_for_excess: str, **more: Any) -> None:
        self._ec2.modify_spot_fleet_request(
            SpotFleetRequestId=self._id,
            TargetCapacity=desired + surplus,
            OnDemandTargetCapacity=min(self._on_demand_base, desired),
            ExcessCapacityTerminationPolicy=policy_for_excess,
            **more,
        )
