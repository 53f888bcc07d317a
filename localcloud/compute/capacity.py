"""Capacity of the instance pools: unlimited unless a fault says otherwise; and capacity reservations.

A pool is (market, instance type, zone). Not here: which pool a fleet tries next (`autoscaling.distribution`).
"""

from __future__ import annotations

import threading
from typing import Literal

from localcloud.api import ApiError
from localcloud.compute.records import RecordLog

Market = Literal["spot", "on-demand"]


class CapacityPools:
    """How many more instances each pool gives.

    A limit counts launches: each takes one, and an instance that ends gives nothing back, as capacity that AWS took
    away goes to others.
    """

    def __init__(self, records: RecordLog) -> None:
        self._records = records
        self._lock = threading.Lock()
        self._available: dict[tuple[Market, str, str], int] = {}

    def limit(self, market: Market, instance_type: str, zone: str, available: int | None) -> None:
        """Set how many more instances the pool gives; None is without limit."""
        with self._lock:
            if available is None:
                self._available.pop((market, instance_type, zone), None)
            else:
                self._available[market, instance_type, zone] = available

    def depth(self, market: Market, instance_type: str, zone: str) -> float:
        """Return how many more instances the pool gives, infinite without limit."""
        with self._lock:
            return self._available.get((market, instance_type, zone), float("inf"))

    def take(self, market: Market, instance_type: str, zone: str, group: str | None) -> None:
        """Take one instance from the pool.

        Raises:
            ApiError: InsufficientInstanceCapacity, worded as RunInstances words it.
        """
        pool = (market, instance_type, zone)
        with self._lock:
            available = self._available.get(pool)
            if available is None:
                return
            if available > 0:
                self._available[pool] = available - 1
                return
        self._records.append("capacity_refused", market=market, instance_type=instance_type, zone=zone, group=group)
        if market == "spot":
            message = "There is no Spot capacity available that matches your request."
        else:
            message = (
                f"We currently do not have sufficient {instance_type} capacity in the Availability Zone you requested "
                f"({zone}). Our system will be working on provisioning additional capacity."
            )
        raise ApiError("InsufficientInstanceCapacity", message, 500)

    def give_back(self, market: Market, instance_type: str, zone: str) -> None:
        """Return what a launch took that came to nothing."""
        with self._lock:
            available = self._available.get((market, instance_type, zone))
            if available is not None:
                self._available[market, instance_type, zone] = available + 1
