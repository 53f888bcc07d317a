"""The state of EC2 Fleets and Spot Fleets: plain data, changed under the store's lock."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from localcloud.api import ApiError
from localcloud.compute.capacity import Market

Kind = Literal["ec2", "spot"]
FleetType = Literal["instant", "request", "maintain"]
State = Literal["submitted", "active", "deleted", "deleted_running", "deleted_terminating"]
KEPT_EVENTS = 1000


@dataclass(frozen=True)
class Pool:
    """One way to launch: a template with one override; `zone` is where its subnet or zone puts it.

    `max_usd_per_unit_hour` is the maximum spot price for one unit of weight.
    """

    template: Mapping[str, Any]
    override: Mapping[str, Any]
    instance_type: str
    zone: str | None
    subnet_id: str | None
    weight: float
    priority: float
    max_usd_per_unit_hour: float | None


@dataclass(frozen=True)
class Targets:
    """How much capacity a fleet is to have, in units of weight."""

    total: int
    on_demand: int
    spot: int

    def of(self, market: Market) -> int:
        """Return the part of one market."""
        return self.spot if market == "spot" else self.on_demand


@dataclass(frozen=True)
class Rebalance:
    """What a fleet does at a rebalance recommendation; without a delay the old instance is left to AWS."""

    termination_delay_seconds: int | None


@dataclass(frozen=True)
class Plan:
    """What a fleet launches and keeps; strategies are spelled as EC2 Fleet spells them."""

    kind: Kind
    fleet_type: FleetType
    targets: Targets
    pools: Sequence[Pool]
    spot_strategy: str
    on_demand_strategy: str
    spot_pools: int
    max_total_price: Mapping[Market, float | None]
    least: Mapping[Market, int]
    replaces_unhealthy: bool
    terminates_excess: bool
    terminates_on_expiry: bool
    valid_from: float | None
    valid_until: float | None
    rebalance: Rebalance | None
    instance_tags: Sequence[Mapping[str, Any]]


@dataclass
class FleetMember:
    """One instance of a fleet."""

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
    """A launch that a pool refused."""

    pool: Pool
    market: Market
    code: str
    message: str


@dataclass(frozen=True)
class Event:
    """One entry of a fleet's history."""

    unix_seconds: float
    kind: Literal["instance-change", "fleet-change", "service-error", "information"]
    sub_type: str
    description: str
    instance_id: str | None = None


@dataclass
class Fleet:
    """One fleet; `request` is the request as it is described, with the modifications since."""

    fleet_id: str
    plan: Plan
    request: dict[str, Any]
    created: float
    state: State = "active"
    members: dict[str, FleetMember] = field(default_factory=dict)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=KEPT_EVENTS))
    refusals: list[Refusal] = field(default_factory=list)
    retry_at: float = 0.0
    failures: int = 0
    ended_weight: dict[Market, float] = field(default_factory=lambda: {"spot": 0.0, "on-demand": 0.0})

    @property
    def is_active(self) -> bool:
        """Whether the fleet still launches."""
        return self.state in ("submitted", "active")

    def live(self, market: Market | None = None) -> list[FleetMember]:
        """Return the instances that have not ended."""
        return [one for one in self.members.values() if not one.has_ended and market in (None, one.market)]

    def counted(self, market: Market) -> list[FleetMember]:
        """Return the instances that count towards the target."""
        return [one for one in self.live(market) if not one.is_superseded]

    def fulfilled(self, market: Market) -> float:
        """Return the capacity that counts towards the target; a one-time request counts what it once launched."""
        once = self.ended_weight[market] if self.plan.fleet_type != "maintain" else 0.0
        return sum(one.pool.weight for one in self.counted(market)) + once


class FleetStore:
    """All fleets; `lock` guards every fleet, `wake` tells the keeper to look."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.wake = threading.Event()
        self.fleets: dict[str, Fleet] = {}

    def get(self, fleet_id: str, kind: Kind) -> Fleet:
        """Return one fleet.

        Raises:
            ApiError: InvalidFleetId.NotFound or InvalidSpotFleetRequestId.NotFound.
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
        """Return the fleets of one kind, oldest first."""
        return [fleet for fleet in self.fleets.values() if fleet.plan.kind == kind]

    def of_instance(self, instance_id: str) -> tuple[Fleet, FleetMember] | None:
        """Return the fleet that an instance is in, if any."""
        for fleet in self.fleets.values():
            if instance_id in fleet.members:
                return fleet, fleet.members[instance_id]
        return None
