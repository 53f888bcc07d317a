"""Instance state that moto's instance descriptions do not include."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from localcloud.compute.capacity import Market
from localcloud.compute.launch.resolver import LaunchSpecification
from localcloud.compute.machines.machine import Machine

State = Literal["pending", "running", "shutting-down", "terminated", "stopping", "stopped"]
LIVE_STATES: tuple[State, ...] = ("pending", "running", "stopping", "stopped")


@dataclass(frozen=True)
class Reason:
    """The reason for a state change, in the format of EC2's StateReason."""

    code: str
    message: str


USER_INITIATED = Reason("Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown")
INSTANCE_INITIATED = Reason(
    "Client.InstanceInitiatedShutdown", "Client.InstanceInitiatedShutdown: Instance initiated shutdown"
)
SPOT_TERMINATION = Reason("Server.SpotInstanceTermination", "Server.SpotInstanceTermination: Spot instance termination")
INTERNAL_ERROR = Reason("Server.InternalError", "Server.InternalError: Internal error on launch or while running")


INVALID_KEY = Reason(
    "Client.InvalidKMSKey.InvalidState",
    "Client.InvalidKMSKey.InvalidState: The KMS key provided is in an incorrect state",
)
"""Source: https://github.com/hashicorp/terraform-provider-aws/issues/39904."""


@dataclass
class Instance:
    """An instance. Only `Inventory` changes it, under the inventory's lock.

    Attributes:
        launched_by: Service-linked role that launched the instance, with its path below aws-service-role/, or None.
    """

    id: str
    specification: LaunchSpecification
    machine: Machine
    private_address: str
    mac: str
    reservation_id: str
    group: str | None
    spot_request_id: str | None
    launched_unix_seconds: float
    metadata_options: Mapping[str, Any]
    state: State = "pending"
    reason: Reason | None = None
    ended_unix_seconds: float | None = None
    reclaim_unix_seconds: float | None = None
    rebalance_unix_seconds: float | None = None
    target_lifecycle_state: str | None = None
    capacity_reservation_id: str | None = None
    partition: int | None = None
    launched_by: str | None = None

    @property
    def market(self) -> Market:
        """The instance's market: "spot" or "on-demand"."""
        return self.specification.market

    @property
    def zone(self) -> str:
        """The name of the instance's availability zone."""
        return self.specification.zone

    @property
    def is_live(self) -> bool:
        """Whether the instance is neither terminated nor shutting down."""
        return self.state in LIVE_STATES

    def as_json(self) -> dict[str, Any]:
        """Return the instance in the format that the `instances` HTTP endpoint and the records use."""
        return {
            "id": self.id, "type": self.specification.instance_type, "market": self.market, "zone": self.zone,
            "subnet": self.specification.subnet_id, "private_address": self.private_address,
            "launched_unix_seconds": self.launched_unix_seconds, "ended_unix_seconds": self.ended_unix_seconds,
            "state": self.state, "reason": self.reason.code if self.reason else None, "group": self.group,
        }  # fmt: skip
