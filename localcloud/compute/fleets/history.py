"""What happened to fleets: their own history, the event bus, and the records for reports.

Source of the events: docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitor-ec2-fleet-using-eventbridge.html, 2026-11.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from localcloud.api import ApiError, Clients, EventBus
from localcloud.compute.capacity import Market
from localcloud.compute.fleets.model import Event, Fleet, FleetMember, Pool, Refusal
from localcloud.compute.records import RecordLog

_DETAIL_TYPES = {
    "instance-change": "Instance Change", "fleet-change": "State Change", "service-error": "Error",
    "information": "Information",
}  # fmt: skip
KEPT_REFUSALS = 50


class FleetHistory:
    """Writes down what happens to fleets; called under the store's lock."""

    def __init__(
        self, clients: Clients, bus: EventBus, records: RecordLog, clock: Callable[[], float] = time.time
    ) -> None:
        self._clients = clients
        self._bus = bus
        self._records = records
        self._clock = clock

    def changed(self, fleet: Fleet, sub_type: str, description: str = "") -> None:
        """Write down a change of the fleet itself."""
        self._add(fleet, Event(self._clock(), "fleet-change", sub_type, description))

    def informed(self, fleet: Fleet, sub_type: str, description: str) -> None:
        """Write down what is neither a change nor an error."""
        self._add(fleet, Event(self._clock(), "information", sub_type, description))

    def instance(self, fleet: Fleet, member: FleetMember, sub_type: str, image: str) -> None:
        """Write down that an instance was launched or ended."""
        description = json.dumps(
            {
                "instanceType": member.pool.instance_type, "image": image, "productDescription": "Linux/UNIX",
                "availabilityZone": member.zone,
            }
        )  # fmt: skip
        self._add(fleet, Event(self._clock(), "instance-change", sub_type, description, member.instance_id))

    def refused(self, fleet: Fleet, pool: Pool, market: Market, error: ApiError) -> None:
        """Write down that a pool gave no instance; the same refusal again is not written twice in a row."""
        refusal = Refusal(pool, market, error.code, error.message)
        if refusal in fleet.refusals:
            return
        fleet.refusals = [*fleet.refusals, refusal][-KEPT_REFUSALS:]
        where = f"{pool.instance_type}, {pool.zone or 'any zone'}, {market}"
        self._add(
            fleet,
            Event(
                self._clock(), "service-error", "launchSpecTemporarilyBlacklisted",
                f"{where}: {error.code}: {error.message}",
            ),
        )  # fmt: skip

    def _add(self, fleet: Fleet, event: Event) -> None:
        fleet.events.append(event)
        detail: dict[str, Any] = {"sub-type": event.sub_type}
        if event.description:
            detail["description"] = event.description
        if event.instance_id is not None:
            detail["instance-id"] = event.instance_id
        is_ec2 = fleet.plan.kind == "ec2"
        self._records.append(
            "fleet_event", fleet=fleet.fleet_id, event=event.kind, sub_type=event.sub_type,
            instance_id=event.instance_id, description=event.description,
        )  # fmt: skip
        self._bus.publish(
            "aws.ec2fleet" if is_ec2 else "aws.ec2spotfleet",
            f"EC2 {'Fleet' if is_ec2 else 'Spot Fleet'} {_DETAIL_TYPES[event.kind]}",
            detail,
            [self.arn(fleet)],
        )

    def arn(self, fleet: Fleet) -> str:
        """Return the ARN of a fleet."""
        kind = "fleet" if fleet.plan.kind == "ec2" else "spot-fleet-request"
        return f"arn:aws:ec2:{self._clients.region}:{self._clients.account}:{kind}/{fleet.fleet_id}"
