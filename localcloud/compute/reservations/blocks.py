"""Capacity blocks: offers and sells blocks, and terminates their instances before the blocks end.

Blocks last 1 to 14 days or full weeks up to 182 days, start at 11:30 UTC or immediately, and contain 1, 2, 4, 8, 16, 32
or 64 instances.
Source: docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html (2026-11).
"""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from localcloud.api import ApiError, Call, Handler
from localcloud.compute.describe import aware, page, timestamp
from localcloud.compute.launch.instance_types import InstanceTypes
from localcloud.compute.launch.reservations import Reservation, ReservationStore
from localcloud.compute.launch.zones import Zones
from localcloud.compute.machines.instance import Reason
from localcloud.compute.machines.inventory import Inventory
from localcloud.compute.reservations.operations import ReservationOperations
from localcloud.control_loop import ControlLoop

INSTANCE_COUNTS = (1, 2, 4, 8, 16, 32, 64)
FAMILIES = ("p4d", "p4de", "p5", "p5e", "p5en", "p6-b200", "p6-b300", "trn1", "trn2")
_MAX_DAYS, _MAX_SINGLE_DAYS = 182, 14
_DAYS_AHEAD = 8 * 7
_OFFERED_DAYS = 3
_PRICE_SHARE = 0.8
_EXPIRED = Reason("Server.CapacityBlockExpired", "Server.CapacityBlockExpired: the capacity block is ending")


class CapacityBlocks:
    """Handlers for capacity block calls."""

    def __init__(
        self, store: ReservationStore, reservations: ReservationOperations, types: InstanceTypes, zones: Zones,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._store = store
        self._reservations = reservations
        self._types = types
        self._zones = zones
        self._clock = clock
        self._offered: dict[str, dict[str, Any]] = {}

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation."""
        return {"DescribeCapacityBlockOfferings": self.offerings, "PurchaseCapacityBlock": self.purchase}

    def offerings(self, call: Call) -> Mapping[str, Any]:
        """Handle DescribeCapacityBlockOfferings.

        Offer blocks in the first zone that start now or on the first days in the requested range.
        """
        asked = call.parameters
        if asked.get("UltraserverType") or asked.get("InstanceTypePreferences"):
            raise ApiError("UnsupportedOperation", "UltraServers and type preferences are not emulated")
        instance_type, count = str(asked.get("InstanceType")), int(asked.get("InstanceCount") or 1)
        hours = int(asked["CapacityDurationHours"])
        self._check(instance_type, count, hours)
        shown = [self._offer(instance_type, count, hours, start) for start in self._starts(asked, hours)]
        with self._store.lock:
            self._offered.update({one["CapacityBlockOfferingId"]: one for one in shown})
        return page(shown, asked, "CapacityBlockOfferings")

    def purchase(self, call: Call) -> Mapping[str, Any]:
        """Handle PurchaseCapacityBlock. A block is paid for upfront and cannot be cancelled."""
        offering_id = call.parameters["CapacityBlockOfferingId"]
        with self._store.lock:
            offer = self._offered.get(offering_id)
        if offer is None:
            raise ApiError("InvalidCapacityBlockOfferingId.NotFound", f"The offering '{offering_id}' does not exist.")
        if call.parameters.get("DryRun"):
            raise ApiError("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412)
        with self._store.lock:
            self._offered.pop(offering_id, None)
        reservation_id = f"cr-{secrets.token_hex(9)[:17]}"
        reservation = Reservation(
            reservation_id, f"arn:aws:ec2:{call.region}:{call.account}:capacity-reservation/{reservation_id}",
            offer["InstanceType"], offer["AvailabilityZone"], call.parameters["InstancePlatform"], "default",
            offer["InstanceCount"], "targeted", "capacity-block", self._clock(), offer["StartDate"].timestamp(),
            offer["EndDate"].timestamp(), block_id=f"cb-{secrets.token_hex(9)[:17]}",
        )  # fmt: skip
        return {"CapacityReservation": self._reservations.add(call, reservation)}

    def _check(self, instance_type: str, count: int, hours: int) -> None:
        self._types.facts(instance_type)
        if instance_type.partition(".")[0] not in FAMILIES:
            raise ApiError("InvalidParameterValue", f"Capacity Blocks are not available for '{instance_type}'")
        if count not in INSTANCE_COUNTS:
            raise ApiError("InvalidParameterValue", f"InstanceCount {count} is not one of {INSTANCE_COUNTS}")
        days, rest = divmod(hours, 24)
        is_valid = rest == 0 and (days <= _MAX_SINGLE_DAYS or days % 7 == 0)
        if not is_valid or not 1 <= days <= _MAX_DAYS:
            raise ApiError(
                "InvalidParameterValue",
                f"CapacityDurationHours {hours} must be 1 to {_MAX_SINGLE_DAYS} days or full weeks up to "
                f"{_MAX_DAYS} days",
            )

    def _starts(self, asked: Mapping[str, Any], hours: int) -> Iterator[datetime]:
        now = timestamp(self._clock())
        first: datetime = max(aware(asked.get("StartDateRange") or now), now)
        last: datetime = aware(asked.get("EndDateRange") or now + timedelta(days=_DAYS_AHEAD))
        daily = now.replace(hour=11, minute=30, second=0, microsecond=0)
        days = (daily + timedelta(days=number) for number in range(_DAYS_AHEAD))
        fitting = [now, *days] if first <= now else list(days)
        starts = [one for one in fitting if one >= first and one + timedelta(hours=hours) <= last]
        yield from starts[:_OFFERED_DAYS]

    def _offer(self, instance_type: str, count: int, hours: int, start: datetime) -> dict[str, Any]:
        zone = min(self._zones.ids())
        fee = self._types.on_demand_usd_per_hour(instance_type) * _PRICE_SHARE * hours * count
        key = f"{instance_type}/{count}/{hours}/{start.isoformat()}"
        return {
            "CapacityBlockOfferingId": f"cbr-{hashlib.sha256(key.encode()).hexdigest()[:17]}",
            "InstanceType": instance_type, "AvailabilityZone": zone, "InstanceCount": count, "StartDate": start,
            "EndDate": start + timedelta(hours=hours), "CapacityBlockDurationHours": hours,
            "CapacityBlockDurationMinutes": hours * 60, "UpfrontFee": f"{fee:.2f}", "CurrencyCode": "USD",
            "Tenancy": "default",
        }  # fmt: skip


def block_expiry(store: ReservationStore, inventory: Inventory, clock: Callable[[], float]) -> ControlLoop[str]:
    """Return the loop that terminates the instances in capacity blocks before the blocks end."""

    def due() -> list[str]:
        now = clock()
        live = {one.id for one in inventory.all() if one.is_live}
        with store.lock:
            ending = [one.used for one in store.reservations.values() if now >= (one.eviction_unix_seconds or math.inf)]
            return sorted(live.intersection(chain.from_iterable(ending)))

    def seconds_to_next() -> float | None:
        now = clock()
        with store.lock:
            times = [one.eviction_unix_seconds for one in store.reservations.values() if one.used]
        return min((time - now for time in times if time is not None and time > now), default=None)

    def terminate(instance_id: str) -> None:
        inventory.terminate([instance_id], _EXPIRED)

    return ControlLoop("capacity-blocks", due, terminate, seconds_to_next, wake=store.wake)
