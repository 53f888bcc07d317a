"""What the local cloud knows of one instance, beyond what moto describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from localcloud.compute.capacity import Market
from localcloud.compute.launch import LaunchSpecification
from localcloud.compute.machine import Machine

State = Literal["pending", "running", "shutting-down", "terminated", "stopping", "stopped"]
LIVE_STATES: tuple[State, ...] = ("pending", "running", "stopping", "stopped")


@dataclass(frozen=True)
class Reason:
    """Why an instance changed its state, as EC2's StateReason has it."""

    code: str
    message: str


USER_INITIATED = Reason("Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown")
INSTANCE_INITIATED = Reason(
    "Client.InstanceInitiatedShutdown", "Client.InstanceInitiatedShutdown: Instance initiated shutdown"
)
SPOT_TERMINATION = Reason("Server.SpotInstanceTermination", "Server.SpotInstanceTermination: Spot instance termination")
INTERNAL_ERROR = Reason("Server.InternalError", "Server.InternalError: Internal error on launch or while running")


@dataclass
class Instance:
    """One instance; changed only by `Inventory`, under its lock."""

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
    has_run_user_data: bool = False
    reclaim_unix_seconds: float | None = None
    rebalance_unix_seconds: float | None = None
    target_lifecycle_state: str | None = None
    capacity_reservation_id: str | None = None
    partition: int | None = None

    @property
    def market(self) -> Market:
        """Return "spot" or "on-demand"."""
        return self.specification.market

    @property
    def zone(self) -> str:
        """Return the name of the availability zone."""
        return self.specification.zone

    @property
    def is_live(self) -> bool:
        """Whether the instance has neither ended nor begun to end."""
        return self.state in LIVE_STATES

    def as_json(self) -> dict[str, Any]:
        """Return the instance as the http verb `instances` and the records show it."""
        return {
            "id": self.id, "type": self.specification.instance_type, "market": self.market, "zone": self.zone,
            "subnet": self.specification.subnet_id, "private_address": self.private_address,
            "launched_unix_seconds": self.launched_unix_seconds, "ended_unix_seconds": self.ended_unix_seconds,
            "state": self.state, "reason": self.reason.code if self.reason else None, "group": self.group,
        }  # fmt: skip
