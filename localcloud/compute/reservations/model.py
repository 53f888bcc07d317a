"""Capacity reservations and who consumes them.

Source of the matching rules: docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-reservations-using.html (2026-11).
Not here: the API (`operations`), taking capacity from the pools (`capacity`).
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
"""Instances of a capacity block are ended 30 minutes before the block is.
Source: docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-how.html, 2026-11."""


@dataclass
class Reservation:
    """One capacity reservation; `used` are the ids of the instances that run in it."""

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
        """Return the state at a time."""
        if self.is_cancelled:
            return "cancelled"
        if now < self.starts:
            return "scheduled"
        return "expired" if self.ends is not None and now >= self.ends else "active"

    @property
    def available(self) -> int:
        """Return how many more instances fit in."""
        return max(0, self.total - self.lent - len(self.used))


@dataclass(frozen=True)
class Demand:
    """What a launch wants of reservations; `only` refuses capacity outside of them."""

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
        """Whether the launch names its reservation, or a group of them."""
        return self.reservation_id is not None or self.group_arn is not None


_KINDS: Mapping[str, ReservationType] = {
    "capacity-block": "capacity-block", "interruptible-capacity-reservation": "interruptible",
}  # fmt: skip


class ReservationStore:
    """All reservations; safe to use from several threads. `members` gives the reservation ARNs of a resource group."""

    def __init__(self, members: Callable[[str], Sequence[str]], clock: Callable[[], float] = time.time) -> None:
        self.lock = threading.RLock()
        self.wake = threading.Event()
        self.reservations: dict[str, Reservation] = {}
        self._members = members
        self._clock = clock

    def get(self, reservation_id: str) -> Reservation:
        """Return one reservation.

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
        """Take a place in a reservation that matches under `token`; None when the launch is to run outside of them.

        Raises:
            ApiError: the launch is bound to reservations, and none of those that it may use has room.
        """
        kind = _KINDS.get(demand.market, "default")
        if demand.market == "spot" or (demand.preference == "none" and not demand.is_targeted):
            return None
        if kind != "default" and not demand.is_targeted:
            raise ApiError(
                "MissingParameter", f"MarketType '{demand.market}' needs a CapacityReservationTarget in the launch."
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
        # A launch that targets a group runs on demand when the group has no room.
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
            has_room = one.available > 0 and one.state(now) == "active" and not _is_closing(one, now)
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
        """Let the instance have the place that was taken under `token`."""
        with self.lock:
            for one in self.reservations.values():
                if token in one.used:
                    one.used.remove(token)
                    one.used.add(instance_id)
        self.wake.set()

    def release(self, instance_id: str) -> None:
        """Take an instance that has ended out of its reservation."""
        with self.lock:
            for one in self.reservations.values():
                one.used.discard(instance_id)


def _is_closing(reservation: Reservation, now: float) -> bool:
    """Tell whether a capacity block is so near its end that instances in it are ended."""
    if reservation.kind != "capacity-block" or reservation.ends is None:
        return False
    return now >= reservation.ends - BLOCK_ENDS_EARLY_SECONDS


def _fits(reservation: Reservation, demand: Demand) -> bool:
    return (reservation.instance_type, reservation.zone, reservation.tenancy, reservation.placement_group_arn) == (
        demand.instance_type, demand.zone, demand.tenancy,
        # Only a reservation of a placement group asks for the launch's.
        demand.placement_group_arn if reservation.placement_group_arn else None,
    )  # fmt: skip
