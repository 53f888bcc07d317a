"""EC2 operations on capacity reservations. `launch.reservations` matches launches to reservations."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from localcloud.api import ApiError, Call, Handler
from localcloud.compute.capacity import CapacityPools
from localcloud.compute.describe import matches, page, timestamp, unix_seconds
from localcloud.compute.launch.instance_types import InstanceTypes
from localcloud.compute.launch.moto_record import MotoRecord
from localcloud.compute.launch.reservations import Reservation, ReservationStore
from localcloud.compute.launch.zones import Zones

_FILTERS = {
    "instance-type": "InstanceType", "availability-zone": "AvailabilityZone", "state": "State", "tenancy": "Tenancy",
    "availability-zone-id": "AvailabilityZoneId", "instance-match-criteria": "InstanceMatchCriteria",
    "placement-group-arn": "PlacementGroupArn", "end-date-type": "EndDateType", "reservation-type": "ReservationType",
    "instance-platform": "InstancePlatform", "owner-id": "OwnerId",
}  # fmt: skip
_REFUSED = ("OutpostArn", "DeliveryPreference", "CommitmentDuration")
Interrupt = Callable[[str], None]
"""Sends an interruption notice to an instance."""


class ReservationOperations:
    """Handlers for capacity reservation calls."""

    def __init__(
        self, store: ReservationStore, pools: CapacityPools, types: InstanceTypes, zones: Zones, record: MotoRecord,
        interrupt: Interrupt, clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._store = store
        self._pools = pools
        self._types = types
        self._zones = zones
        self._record = record
        self._interrupt = interrupt
        self._clock = clock

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation."""
        return {
            "CreateCapacityReservation": self.create,
            "ModifyCapacityReservation": self.modify,
            "CancelCapacityReservation": self.cancel,
            "DescribeCapacityReservations": self.describe,
            "CreateInterruptibleCapacityReservationAllocation": self.lend,
            "UpdateInterruptibleCapacityReservationAllocation": self.change_lent,
        }

    def create(self, call: Call) -> Mapping[str, Any]:
        """Handle CreateCapacityReservation: take the capacity from its pool immediately."""
        asked = call.parameters
        if refused := [name for name in _REFUSED if asked.get(name)]:
            raise ApiError("UnsupportedOperation", f"{', '.join(refused)}: not emulated by the embedded cloud")
        count, zone = int(asked["InstanceCount"]), self._zone(asked)
        if count < 1:
            raise ApiError("InvalidParameterValue", f"InstanceCount {count} must be 1 or more")
        self._types.facts(asked["InstanceType"])
        ends = _end(asked)
        now = self._clock()
        if ends is not None and ends <= now:
            raise ApiError("InvalidParameterValue", "EndDate must be in the future")
        reservation_id = f"cr-{secrets.token_hex(9)[:17]}"
        reservation = Reservation(
            reservation_id, f"arn:aws:ec2:{call.region}:{call.account}:capacity-reservation/{reservation_id}",
            asked["InstanceType"], zone, asked["InstancePlatform"], asked.get("Tenancy", "default"), count,
            asked.get("InstanceMatchCriteria", "open"), "default", now,
            unix_seconds(asked["StartDate"]) if asked.get("StartDate") else now, ends, asked.get("PlacementGroupArn"),
            bool(asked.get("EbsOptimized")),
        )  # fmt: skip
        if asked.get("DryRun"):
            raise ApiError("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412)
        self._take(reservation, count)
        return {"CapacityReservation": self.add(call, reservation)}

    def add(self, call: Call, reservation: Reservation) -> dict[str, Any]:
        """Store a reservation with the call's tags and return its description."""
        with self._store.lock:
            self._store.reservations[reservation.reservation_id] = reservation
        for one in call.parameters.get("TagSpecifications", []):
            tags = {tag["Key"]: tag.get("Value", "") for tag in one.get("Tags", [])}
            self._record.add_tags(reservation.reservation_id, tags)
        return self.view(call, reservation)

    def modify(self, call: Call) -> Mapping[str, Any]:
        """Handle ModifyCapacityReservation: change the instance count, end date or match criteria."""
        asked = call.parameters
        with self._store.lock:
            found = self._active(asked["CapacityReservationId"])
            if found.kind != "default":
                raise ApiError("UnsupportedOperation", f"{found.reservation_id}: cannot be modified this way")
            if asked.get("InstanceCount") is not None:
                count = int(asked["InstanceCount"])
                if count < len(found.used) + found.lent:
                    raise ApiError("InvalidParameterValue", f"InstanceCount {count} is below the number in use")
                if count > found.total:
                    self._take(found, count - found.total)
                found.total = count
            if asked.get("EndDate") or asked.get("EndDateType"):
                found.ends = _end(asked)
            found.match = asked.get("InstanceMatchCriteria") or found.match
        return {"Return": True}

    def cancel(self, call: Call) -> Mapping[str, Any]:
        """Handle CancelCapacityReservation. Instances keep running, and free capacity returns to the pool."""
        with self._store.lock:
            found = self._active(call.parameters["CapacityReservationId"])
            if found.kind == "capacity-block":
                raise ApiError("UnsupportedOperation", f"{found.reservation_id}: a capacity block cannot be cancelled")
            if found.lent:
                raise ApiError("UnsupportedOperation", f"{found.reservation_id}: has an interruptible allocation")
            found.is_cancelled = True
            free = found.available
        for _ in range(free):
            self._pools.release("on-demand", found.instance_type, found.zone)
        return {"Return": True}

    def describe(self, call: Call) -> Mapping[str, Any]:
        """Handle DescribeCapacityReservations."""
        with self._store.lock:
            named = [self._store.get(one) for one in call.parameters.get("CapacityReservationIds", [])]
            shown = [self.view(call, one) for one in named or self._store.reservations.values()]
        filters = call.parameters.get("Filters", [])
        kept = [one for one in shown if matches(filters, one, _FILTERS)]
        return page(kept, call.parameters, "CapacityReservations")

    def lend(self, call: Call) -> Mapping[str, Any]:
        """Handle CreateInterruptibleCapacityReservationAllocation: lend part of a reservation until it is reclaimed."""
        asked = call.parameters
        count = int(asked["InstanceCount"])
        with self._store.lock:
            source = self._active(asked["CapacityReservationId"])
            if source.kind != "default" or source.lent:
                raise ApiError("UnsupportedOperation", f"{source.reservation_id}: cannot lend capacity")
            if not 1 <= count <= source.available:
                raise ApiError("InvalidParameterValue", f"InstanceCount {count}: only {source.available} are available")
            source.lent = count
            reservation_id = f"cr-{secrets.token_hex(9)[:17]}"
            now = self._clock()
            lent = Reservation(
                reservation_id, source.arn.rpartition("/")[0] + f"/{reservation_id}", source.instance_type, source.zone,
                source.platform, source.tenancy, count, "targeted", "interruptible", now, now, None,
                source_id=source.reservation_id,
            )  # fmt: skip
            self.add(call, lent)
        return {
            "SourceCapacityReservationId": source.reservation_id, "TargetInstanceCount": count, "Status": "active",
            "InterruptionType": "adhoc",
        }  # fmt: skip

    def change_lent(self, call: Call) -> Mapping[str, Any]:
        """Handle UpdateInterruptibleCapacityReservationAllocation. Excess instances receive an interruption notice."""
        target = int(call.parameters["TargetInstanceCount"])
        with self._store.lock:
            source = self._active(call.parameters["CapacityReservationId"])
            lent = next(
                (one for one in self._store.reservations.values() if one.source_id == source.reservation_id), None
            )
            if lent is None:
                raise ApiError("InvalidParameterValue", f"{source.reservation_id}: has no interruptible allocation")
            if target > source.lent + source.available:
                raise ApiError(
                    "InvalidParameterValue", f"TargetInstanceCount {target} exceeds {source.lent + source.available}"
                )
            leaving = sorted(lent.used)[max(0, target) :]
            source.lent = lent.total = target
        for instance_id in leaving:
            self._interrupt(instance_id)
        return {
            "InterruptibleCapacityReservationId": lent.reservation_id, "InterruptionType": "adhoc",
            "SourceCapacityReservationId": source.reservation_id, "InstanceCount": len(lent.used),
            "TargetInstanceCount": target, "Status": "updating" if leaving else "active",
        }  # fmt: skip

    def view(self, call: Call, one: Reservation) -> dict[str, Any]:
        """Return the API's description of a reservation."""
        shown: dict[str, Any] = {
            "CapacityReservationId": one.reservation_id, "OwnerId": call.account, "CapacityReservationArn": one.arn,
            "InstanceType": one.instance_type, "InstancePlatform": one.platform, "AvailabilityZone": one.zone,
            "AvailabilityZoneId": self._zones.id_of(one.zone), "Tenancy": one.tenancy,
            "TotalInstanceCount": one.total, "AvailableInstanceCount": one.available,
            "EbsOptimized": one.is_ebs_optimized, "EphemeralStorage": False, "State": one.state(self._clock()),
            "StartDate": timestamp(one.starts), "CreateDate": timestamp(one.created),
            "EndDateType": "unlimited" if one.ends is None else "limited", "InstanceMatchCriteria": one.match,
            "ReservationType": "capacity-block" if one.kind == "capacity-block" else "default",
            "Tags": [{"Key": k, "Value": v} for k, v in self._record.tags(one.reservation_id).items()],
            "CapacityAllocations": [{"AllocationType": "used", "Count": len(one.used)}] if one.used else [],
            "Interruptible": one.kind == "interruptible",
        }  # fmt: skip
        if one.ends is not None:
            shown["EndDate"] = timestamp(one.ends)
        if one.placement_group_arn:
            shown["PlacementGroupArn"] = one.placement_group_arn
        if one.block_id:
            shown["CapacityBlockId"] = one.block_id
        if one.source_id:
            shown["InterruptionInfo"] = {"SourceCapacityReservationId": one.source_id, "InterruptionType": "adhoc"}
        lent = next((two for two in self._store.reservations.values() if two.source_id == one.reservation_id), None)
        if lent is not None:
            shown["InterruptibleCapacityAllocation"] = {
                "InstanceCount": lent.total, "TargetInstanceCount": one.lent, "InterruptionType": "adhoc",
                "Status": "updating" if len(lent.used) > lent.total else "active",
                "InterruptibleCapacityReservationId": lent.reservation_id,
            }  # fmt: skip
        return shown

    def _active(self, reservation_id: str) -> Reservation:
        found = self._store.get(reservation_id)
        state = found.state(self._clock())
        if state not in ("active", "scheduled"):
            raise ApiError("InvalidCapacityReservationState", f"The capacity reservation is {state}.")
        return found

    def _take(self, reservation: Reservation, count: int) -> None:
        pool = ("on-demand", reservation.instance_type, reservation.zone)
        for taken in range(count):
            try:
                self._pools.take(*pool, None)  # type: ignore[arg-type]  # a tuple of literals
            except ApiError:
                for _ in range(taken):
                    self._pools.release(*pool)  # type: ignore[arg-type]
                raise

    def _zone(self, asked: Mapping[str, Any]) -> str:
        if asked.get("AvailabilityZone"):
            return self._zones.checked(asked["AvailabilityZone"])
        if asked.get("AvailabilityZoneId"):
            return self._zones.name_of(asked["AvailabilityZoneId"])
        raise ApiError("MissingParameter", "The request must contain AvailabilityZone or AvailabilityZoneId")


def _end(asked: Mapping[str, Any]) -> float | None:
    end: datetime | None = asked.get("EndDate")
    kind = asked.get("EndDateType") or ("limited" if end else "unlimited")
    if (kind == "limited") != (end is not None):
        raise ApiError("InvalidParameterCombination", "EndDate requires EndDateType limited, and vice versa")
    return None if end is None else unix_seconds(end)
