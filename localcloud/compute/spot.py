"""Spot interruptions: sends rebalance recommendations and interruption notices, and reclaims instances.

Instances in interruptible capacity reservations are reclaimed in the same way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from localcloud.api import ApiError, Clients, EventBus
from localcloud.compute.machines.instance import SPOT_TERMINATION, Instance
from localcloud.compute.machines.inventory import Inventory
from localcloud.journal import RecordLog

NOTICE_SECONDS = 120.0
"""Source: docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html, 2026-11."""

RebalanceListener = Callable[[Instance], None]


class SpotMarket:
    """Interrupts and reclaims spot instances."""

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
        """Call `listener` for each rebalance recommendation."""
        self._rebalance_listeners.append(listener)

    def interrupt(self, instance_id: str, notice_seconds: float | None) -> None:
        """Send an interruption notice, and reclaim the instance when the notice expires.

        If `notice_seconds` is None, kill the instance immediately, without notice.

        Raises:
            ApiError: The instance does not exist, cannot be interrupted, is not running or has already been notified.
        """
        instance = self._interruptible(instance_id)
        if notice_seconds is not None and notice_seconds < 0:
            raise ApiError("InvalidParameterValue", f"notice_seconds: {notice_seconds} must not be negative")
        with self._lock:
            if instance_id in self._timers and notice_seconds is not None:
                raise ApiError("IncorrectInstanceState", f"{instance_id}: already has an interruption notice")
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
        """Send a rebalance recommendation, which signals an elevated risk of interruption.

        Raises:
            ApiError: The instance does not exist, is not a spot instance or is not running.
        """
        instance = self._spot(instance_id)
        instance.rebalance_unix_seconds = self._clock()
        self._publish("EC2 Instance Rebalance Recommendation", instance, {"instance-id": instance_id})
        for listener in self._rebalance_listeners:
            listener(instance)

    def close(self) -> None:
        """Cancel pending interruptions."""
        with self._lock:
            for timer in self._timers.values():
                timer.cancel()

    def _spot(self, instance_id: str) -> Instance:
        instance = self._inventory.get(instance_id)
        if instance.market != "spot":
            raise _not_spot(instance_id)
        return self._interruptible(instance_id)

    def _interruptible(self, instance_id: str) -> Instance:
        instance = self._inventory.get(instance_id)
        if instance.specification.purchase.lifecycle not in ("spot", "interruptible-capacity-reservation"):
            raise _not_spot(instance_id)
        if instance.state not in ("pending", "running"):
            raise ApiError("IncorrectInstanceState", f"{instance_id}: {instance.state}, but must be pending or running")
        return instance

    def _reclaim(self, instance_id: str) -> None:
        self._inventory.terminate([instance_id], SPOT_TERMINATION)

    def _publish(self, detail_type: str, instance: Instance, detail: dict[str, str]) -> None:
        self._bus.publish(
            "aws.ec2", detail_type, detail,
            [f"arn:aws:ec2:{instance.zone}:{self._clients.account}:instance/{instance.id}"],
        )  # fmt: skip


def _not_spot(instance_id: str) -> ApiError:
    return ApiError(
        "UnsupportedOperation", f"{instance_id}: on-demand instance; only spot instances can be interrupted"
    )
