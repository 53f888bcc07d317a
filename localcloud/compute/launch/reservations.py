"""Capacity reservations, and the rules for matching launches to them.

Source for the matching rules: docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-reservations-using.html (2026-11).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from localcloud.api import ApiError

ReservationType = Literal["default", "capacity-block", "interruptible"]
State = Literal["active", "scheduled", "cancelled", "expired", "pending"]
BLOCK_ENDS_EARLY_SECONDS = 1800.0
"""AWS terminates a capacity block's instances 30 minutes before the block ends.
Source: docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-how.html, 2026-11."""


@dataclass
class Reservation:
    """A capacity reservation. `used` holds the IDs of its instances."""

    reservation_id: str
    arn: str
    instance_type: str
    zone: str
    platform: str
    tenancy: str
    total: int
    match: Literal["open", "targeted"]
    kind: ReservationType
    created: float
    starts: float
    ends: float | None
    placement_group_arn: str | None = None
    is_ebs_optimized: bool = False
    source_id: str | None = None
    block_id: str | None = None
    lent: int = 0
    is_cancelled: bool = False
    used: set[str] = field(default_factory=set)

    def state(self, now: float) -> State:
        """Return the reservation's state at `now`, in Unix seconds."""
        if self.is_cancelled:
            return "cancelled"
        if now < self.starts:
            return "scheduled"
        return "expired" if self.ends is not None and now >= self.ends else "active"

    @property
    def available(self) -> int:
        """The number of additional instances that can use the reservation."""
        return max(0, self.total - self.lent - len(self.used))

    @property
    def eviction_unix_seconds(self) -> float | None:
        """The time at which a capacity block's instances are terminated, or None for other reservations."""
        if self.kind != "capacity-block" or self.ends is None:
            return None
        return self.ends - BLOCK_ENDS_EARLY_SECONDS


@dataclass(frozen=True)
class Demand:
    """The launch attributes that determine which reservation a launch uses."""

    instance_type: str
    zone: str
    tenancy: str
    placement_group_arn: str | None
    market: str
    preference: Literal["open", "none", "capacity-reservations-only"]
    reservation_id: str | None
    group_arn: str | None

    @property
    def is_targeted(self) -> bool:
        """Whether the launch names a reservation or a group of reservations."""
        return self.reservation_id is not None or self.group_arn is not None


_KINDS: Mapping[str, ReservationType] = {
    "capacity-block": "capacity-block", "interruptible-capacity-reservation": "interruptible",
}  # fmt: skip


class ReservationStore:
    """Stores all reservations. Thread-safe. `members` returns the ARNs of the reservations in a resource group."""

    def __init__(self, members: Callable[[str], Sequence[str]], clock: Callable[[], float] = time.time) -> None:
        self.lock = threading.RLock()
        self.wake = threading.Event()
        self.reservations: dict[str, Reservation] = {}
        self._members = members
        self._clock = clock

    def get(self, reservation_id: str) -> Reservation:
        """Return a reservation.

        Raises:
            ApiError: InvalidCapacityReservationId.NotFound.
        """
        if reservation_id not in self.reservations:
            raise ApiError(
                "InvalidCapacityReservationId.NotFound",
                f"The capacity reservation '{reservation_id}' does not exist.",
            )
        return self.reservations[reservation_id]

    def take(self, demand: Demand, token: str) -> str | None:
        """Allocate capacity to `token` from a matching reservation. Return its ID, or None to launch without one.

        Raises:
            ApiError: The launch requires a reservation, and no eligible reservation has free capacity.
        """
        kind = _KINDS.get(demand.market, "default")
        if demand.market == "spot" or (demand.preference == "none" and not demand.is_targeted):
            return None
        if kind != "default" and not demand.is_targeted:
            raise ApiError(
                "MissingParameter", f"MarketType '{demand.market}' requires a CapacityReservationTarget in the launch."
            )
        group = None if demand.group_arn is None else set(self._members(demand.group_arn))
        with self.lock:
            chosen = self._chosen(demand, kind, group)
            if chosen is not None:
                chosen.used.add(token)
                return chosen.reservation_id
        if demand.reservation_id is not None or demand.preference == "capacity-reservations-only" or kind != "default":
            raise ApiError(
                "ReservationCapacityExceeded",
                f"The requested reservation does not have sufficient compatible and available capacity for this "
                f"request ({demand.instance_type}, {demand.zone}, {demand.reservation_id or demand.group_arn}).",
            )
        # A launch that targets a group uses on-demand capacity if the group's reservations are full.
        return None

    def _chosen(self, demand: Demand, kind: ReservationType, group: set[str] | None) -> Reservation | None:
        now = self._clock()
        if demand.reservation_id is not None:
            self._check_target(self.get(demand.reservation_id), demand, kind, now)
        for one in self.reservations.values():
            is_named = (
                one.reservation_id == demand.reservation_id
                if demand.reservation_id is not None
                else one.arn in group
                if group is not None
                else one.match == "open"
            )
            evicts = one.eviction_unix_seconds
            has_room = one.available > 0 and one.state(now) == "active" and (evicts is None or now < evicts)
            if is_named and has_room and one.kind == kind and _fits(one, demand):
                return one
        return None

    @staticmethod
    def _check_target(target: Reservation, demand: Demand, kind: ReservationType, now: float) -> None:
        if target.kind != kind or not _fits(target, demand):
            raise ApiError(
                "InvalidParameterValue",
                f"The capacity reservation '{target.reservation_id}' ({target.instance_type}, {target.zone}, "
                f"{target.kind}) does not match the launch ({demand.instance_type}, {demand.zone}, {demand.market}).",
            )
        if target.state(now) != "active":
            raise ApiError(
                "InvalidCapacityReservationState",
                f"The capacity reservation '{target.reservation_id}' is {target.state(now)}, not active.",
            )

    def assign(self, token: str, instance_id: str) -> None:
        """Transfer the capacity allocated to `token` to an instance."""
        with self.lock:
            for one in self.reservations.values():
                if token in one.used:
                    one.used.remove(token)
                    one.used.add(instance_id)
        self.wake.set()

    def release(self, instance_id: str) -> None:
        """Free a terminated instance's capacity."""
        with self.lock:
            for one in self.reservations.values():
                one.used.discard(instance_id)


def _fits(reservation: Reservation, demand: Demand) -> bool:
    return (reservation.instance_type, reservation.zone, reservation.tenancy, reservation.placement_group_arn) == (
        demand.instance_type, demand.zone, demand.tenancy,
        # The launch's placement group matters only if the reservation is in a placement group.
        demand.placement_group_arn if reservation.placement_group_arn else None,
    )  # fmt: skip
