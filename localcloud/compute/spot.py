"""What AWS does to spot instances: rebalance recommendations, interruption notices, reclaiming.

Instances of interruptible capacity reservations are reclaimed in the same way.

Not here: how a fleet answers (`autoscaling`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from localcloud.api import ApiError, Clients, EventBus
from localcloud.compute.instance import SPOT_TERMINATION, Instance
from localcloud.compute.inventory import Inventory
from localcloud.compute.records import RecordLog

NOTICE_SECONDS = 120.0
"""Source: docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html, 2026-11."""

RebalanceListener = Callable[[Instance], None]


class SpotMarket:
    """Takes spot instances back."""

    def __init__(
        self, inventory: Inventory, clients: Clients, bus: EventBus, records: RecordLog,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._inventory = inventory
        self._clients = clients
        self._bus = bus
        self._records = records
        self._clock = clock
        self._lock = threading.Lock()
        self._timers: dict[str, threading.Timer] = {}
        self._rebalance_listeners: list[RebalanceListener] = []

    def listen(self, listener: RebalanceListener) -> None:
        """Call `listener` when an instance gets a rebalance recommendation."""
        self._rebalance_listeners.append(listener)

    def interrupt(self, instance_id: str, notice_seconds: float | None) -> None:
        """Give notice and reclaim the instance at its end; None kills it at once, without notice.

        Raises:
            ApiError: no such instance, not spot, not running, or noticed already.
        """
        instance = self._interruptible(instance_id)
        if notice_seconds is not None and notice_seconds < 0:
            raise ApiError("InvalidParameterValue", f"notice_seconds: {notice_seconds} is negative; give 0 or more")
        with self._lock:
            if instance_id in self._timers and notice_seconds is not None:
                raise ApiError("IncorrectInstanceState", f"{instance_id}: has its interruption notice already")
            if notice_seconds is not None:
                instance.reclaim_unix_seconds = self._clock() + notice_seconds
                timer = threading.Timer(notice_seconds, self._reclaim, [instance_id])
                timer.daemon = True
                self._timers[instance_id] = timer
        self._records.append(
            "interruption", instance_id=instance_id, instance_type=instance.specification.instance_type,
            zone=instance.zone, group=instance.group, notice_seconds=notice_seconds,
            reclaim_unix_seconds=instance.reclaim_unix_seconds,
        )  # fmt: skip
        if notice_seconds is None:
            self._inventory.terminate([instance_id], SPOT_TERMINATION, at_once=True)
            return
        detail = {"instance-id": instance_id, "instance-action": "terminate"}
        if instance.market == "spot":
            self._publish("EC2 Spot Instance Interruption Warning", instance, detail)
        else:
            detail["instance-lifecycle"] = instance.specification.purchase.lifecycle
            self._publish("EC2 Capacity Reservation Instance Interruption Warning", instance, detail)
        self._timers[instance_id].start()

    def recommend_rebalance(self, instance_id: str) -> None:
        """Tell a spot instance that it is at elevated risk of interruption.

        Raises:
            ApiError: no such instance, not spot, or not running.
        """
        instance = self._spot(instance_id)
        instance.rebalance_unix_seconds = self._clock()
        self._publish("EC2 Instance Rebalance Recommendation", instance, {"instance-id": instance_id})
        for listener in self._rebalance_listeners:
            listener(instance)

    def close(self) -> None:
        """Forget the interruptions that are under way."""
        with self._lock:
            for timer in self._timers.values():
                timer.cancel()

    def _spot(self, instance_id: str) -> Instance:
        instance = self._inventory.get(instance_id)
        if instance.market != "spot":
            raise ApiError("UnsupportedOperation", f"{instance_id}: is an on-demand instance; only spot is interrupted")
        return self._interruptible(instance_id)

    def _interruptible(self, instance_id: str) -> Instance:
        instance = self._inventory.get(instance_id)
        if instance.specification.purchase.lifecycle not in ("spot", "interruptible-capacity-reservation"):
            raise ApiError("UnsupportedOperation", f"{instance_id}: is an on-demand instance; only spot is interrupted")
        if instance.state not in ("pending", "running"):
            raise ApiError("IncorrectInstanceState", f"{instance_id}: is {instance.state}; only running ones are taken")
        return instance

    def _reclaim(self, instance_id: str) -> None:
        self._inventory.terminate([instance_id], SPOT_TERMINATION)

    def _publish(self, detail_type: str, instance: Instance, detail: dict[str, str]) -> None:
        self._bus.publish(
            "aws.ec2", detail_type, detail,
            [f"arn:aws:ec2:{instance.zone}:{self._clients.account}:instance/{instance.id}"],
        )  # fmt: skip
