"""Plain data classes for the state of EC2 Fleets and Spot Fleets. The store's lock guards all changes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from localcloud.api import ApiError
from localcloud.compute.capacity import Market

Kind = Literal["ec2", "spot"]
State = Literal["submitted", "active", "deleted", "deleted_running", "deleted_terminating"]


@dataclass(frozen=True)
class Pool:
    """A launch template with one override. The subnet determines `zone`.

    `max_usd_per_hour` is the maximum spot price.
    """

    template: Mapping[str, Any]
    instance_type: str
    zone: str | None
    subnet_id: str | None
    priority: float
    max_usd_per_hour: float | None


@dataclass(frozen=True)
class Targets:
    """A fleet's target capacity, as a number of instances."""

    total: int
    on_demand: int
    spot: int

    def of(self, market: Market) -> int:
        """Return a market's target."""
        return self.spot if market == "spot" else self.on_demand


@dataclass(frozen=True)
class Rebalance:
    """A fleet's capacity rebalancing settings.

    Without a termination delay, the instance at risk runs until AWS reclaims it.
    """

    termination_delay_seconds: int | None


@dataclass(frozen=True)
class Plan:
    """A validated request for a fleet of type maintain. Strategies use EC2 Fleet's spelling."""

    kind: Kind
    targets: Targets
    pools: Sequence[Pool]
    spot_strategy: str
    on_demand_strategy: str
    replaces_unhealthy: bool
    terminates_excess: bool
    rebalance: Rebalance | None


@dataclass
class FleetMember:
    """An instance in a fleet."""

    instance_id: str
    pool: Pool
    market: Market
    zone: str
    spot_request_id: str | None
    usd_per_hour: float
    has_ended: bool = False
    is_healthy: bool = True
    is_superseded: bool = False
    ends_at: float | None = None


@dataclass(frozen=True)
class Refusal:
    """A launch that a pool rejected."""

    pool: Pool
    market: Market
    code: str
    message: str


@dataclass(frozen=True)
class FleetEvent:
    """An entry in a fleet's history, with the type names of EC2 Fleet."""

    unix_seconds: float
    kind: str
    sub_type: str
    description: str
    instance_id: str | None


KEPT_EVENTS = 1000


@dataclass
class Fleet:
    """A fleet. `request` is the original request with later modifications, in the format of the Describe calls."""

    fleet_id: str
    plan: Plan
    request: dict[str, Any]
    created: float
    state: State = "active"
    members: dict[str, FleetMember] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    retry_at: float = 0.0
    failures: int = 0
    events: deque[FleetEvent] = field(default_factory=lambda: deque(maxlen=KEPT_EVENTS))

    def __str__(self) -> str:
        """Return the ID, for use in log lines."""
        return self.fleet_id

    @property
    def is_active(self) -> bool:
        """Whether the fleet may launch instances."""
        return self.state in ("submitted", "active")

    def live(self, market: Market | None = None) -> list[FleetMember]:
        """Return the instances that have not been terminated."""
        return [one for one in self.members.values() if not one.has_ended and market in (None, one.market)]

    def counted(self, market: Market) -> list[FleetMember]:
        """Return the instances that count toward the target."""
        return [one for one in self.live(market) if not one.is_superseded]

    def fulfilled(self, market: Market) -> int:
        """Return the capacity that counts toward the target."""
        return len(self.counted(market))


class FleetStore:
    """Stores all fleets. `lock` guards every fleet, and setting `wake` starts a reconciliation."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.wake = threading.Event()
        self.fleets: dict[str, Fleet] = {}

    def get(self, fleet_id: str, kind: Kind) -> Fleet:
        """Return a fleet.

        Raises:
            ApiError: InvalidFleetId.NotFound or InvalidSpotFleetRequestId.NotFound if it does not exist.
        """
        fleet = self.fleets.get(fleet_id)
        if fleet is None or fleet.plan.kind != kind:
            if kind == "ec2":
                raise ApiError("InvalidFleetId.NotFound", f"The fleet ID '{fleet_id}' does not exist")
            raise ApiError(
                "InvalidSpotFleetRequestId.NotFound", f"The spot fleet request ID '{fleet_id}' does not exist"
            )
        return fleet

    def of_kind(self, kind: Kind) -> list[Fleet]:
        """Return all fleets of a kind, oldest first."""
        return [fleet for fleet in self.fleets.values() if fleet.plan.kind == kind]

    def of_instance(self, instance_id: str) -> tuple[Fleet, FleetMember] | None:
        """Return the fleet and fleet member for an instance, or None if it is not in a fleet."""
        for fleet in self.fleets.values():
            if instance_id in fleet.members:
                return fleet, fleet.members[instance_id]
        return None
