"""Records the history of fleets, both as events on the bus and as records for reports.

Event source: docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitor-ec2-fleet-using-eventbridge.html, 2026-11.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from localcloud.api import ApiError, Clients, EventBus
from localcloud.compute.capacity import Market
from localcloud.compute.describe import aware, page, timestamp, unix_seconds
from localcloud.compute.fleets.model import Fleet, FleetEvent, FleetMember, Pool, Refusal
from localcloud.journal import RecordLog

_DETAIL_TYPES = {
    "instance-change": "Instance Change", "fleet-change": "State Change", "service-error": "Error",
}  # fmt: skip
SPOT_TYPES = {"instance-change": "instanceChange", "fleet-change": "fleetRequestChange", "service-error": "error"}
KEPT_REFUSALS = 50


class FleetHistory:
    """Records fleet events. Callers hold the store's lock."""

    def __init__(
        self, clients: Clients, bus: EventBus, records: RecordLog, clock: Callable[[], float] = time.time
    ) -> None:
        self._clients = clients
        self._bus = bus
        self._records = records
        self._clock = clock

    def changed(self, fleet: Fleet, sub_type: str) -> None:
        """Record a fleet's state change."""
        self._add(fleet, "fleet-change", sub_type)

    def instance(self, fleet: Fleet, member: FleetMember, sub_type: str, image: str) -> None:
        """Record that an instance was launched or terminated."""
        description = json.dumps(
            {
                "instanceType": member.pool.instance_type, "image": image, "productDescription": "Linux/UNIX",
                "availabilityZone": member.zone,
            }
        )  # fmt: skip
        self._add(fleet, "instance-change", sub_type, description, member.instance_id)

    def refused(self, fleet: Fleet, pool: Pool, market: Market, error: ApiError) -> None:
        """Record a failed launch in a pool. Repeated failures are recorded only in the fleet's history."""
        refusal = Refusal(pool, market, error.code, error.message)
        where = f"{pool.instance_type}, {pool.zone or 'any zone'}, {market}"
        event = ("service-error", "launchSpecTemporarilyBlacklisted", f"{where}: {error.code}: {error.message}")
        if refusal in fleet.refusals:
            self._keep(fleet, *event)
            return
        fleet.refusals = [*fleet.refusals, refusal][-KEPT_REFUSALS:]
        self._add(fleet, *event)

    def _add(
        self, fleet: Fleet, event: str, sub_type: str, description: str = "", instance_id: str | None = None
    ) -> None:
        self._keep(fleet, event, sub_type, description, instance_id)
        detail: dict[str, Any] = {"sub-type": sub_type}
        if description:
            detail["description"] = description
        if instance_id is not None:
            detail["instance-id"] = instance_id
        is_ec2 = fleet.plan.kind == "ec2"
        self._records.append(
            "fleet_event", fleet=fleet.fleet_id, event=event, sub_type=sub_type,
            instance_id=instance_id, description=description,
        )  # fmt: skip
        kind = "fleet" if is_ec2 else "spot-fleet-request"
        self._bus.publish(
            "aws.ec2fleet" if is_ec2 else "aws.ec2spotfleet",
            f"EC2 {'Fleet' if is_ec2 else 'Spot Fleet'} {_DETAIL_TYPES[event]}",
            detail,
            [f"arn:aws:ec2:{self._clients.region}:{self._clients.account}:{kind}/{fleet.fleet_id}"],
        )

    def _keep(
        self, fleet: Fleet, event: str, sub_type: str, description: str = "", instance_id: str | None = None
    ) -> None:
        fleet.events.append(FleetEvent(self._clock(), event, sub_type, description, instance_id))


def history_page(fleet: Fleet, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the events since StartTime in the format of the fleet's history call, oldest first.

    Spot Fleet spells event types differently. Sources: the models of HistoryRecordEntry and HistoryRecord in
    botocore.
    """
    start = unix_seconds(aware(parameters["StartTime"]))
    kind = parameters.get("EventType")
    names = SPOT_TYPES if fleet.plan.kind == "spot" else {name: name for name in SPOT_TYPES}
    records = [
        {
            "EventType": names[event.kind],
            "Timestamp": timestamp(event.unix_seconds),
            "EventInformation": {
                "EventSubType": event.sub_type,
                **({"EventDescription": event.description} if event.description else {}),
                **({"InstanceId": event.instance_id} if event.instance_id else {}),
            },
        }
        for event in fleet.events
        if event.unix_seconds >= start and kind in (None, names[event.kind])
    ]
    return {**page(records, parameters, "HistoryRecords"), "StartTime": parameters["StartTime"]}
