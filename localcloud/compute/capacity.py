"""Tracks the capacity of instance pools, which is unlimited until fault injection limits it.

A market, an instance type and a zone identify a pool.
"""

from __future__ import annotations

import threading
from typing import Literal

from localcloud.api import ApiError
from localcloud.journal import RecordLog

Market = Literal["spot", "on-demand"]


class CapacityPools:
    """Holds the number of instances left in each pool.

    Each launch reduces a pool's limit by one. Terminating an instance does not restore capacity, as on AWS, where
    reclaimed capacity goes to other customers.
    """

    def __init__(self, records: RecordLog) -> None:
        self._records = records
        self._lock = threading.Lock()
        self._available: dict[tuple[Market, str, str], int] = {}
        self._refusal: tuple[str, str] | None = None

    def limit(self, market: Market, instance_type: str, zone: str, available: int | None) -> None:
        """Limit a pool to `available` more launches. None removes the limit."""
        with self._lock:
            if available is None:
                self._available.pop((market, instance_type, zone), None)
            else:
                self._available[market, instance_type, zone] = available

    def refuse(self, refusal: tuple[str, str] | None) -> None:
        """Make all launches fail with an error, as (code, message). None removes the fault."""
        with self._lock:
            self._refusal = refusal

    def depth(self, market: Market, instance_type: str, zone: str) -> float:
        """Return the number of instances left in a pool, or infinity without a limit."""
        with self._lock:
            return self._available.get((market, instance_type, zone), float("inf"))

    def take(self, market: Market, instance_type: str, zone: str, group: str | None) -> None:
        """Take one instance from a pool.

        Raises:
            ApiError: InsufficientInstanceCapacity, with the message that RunInstances returns, or an injected error.
        """
        pool = (market, instance_type, zone)
        with self._lock:
            if self._refusal is not None:
                raise ApiError(*self._refusal)
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

    def release(self, market: Market, instance_type: str, zone: str) -> None:
        """Return a failed launch's instance to its pool."""
        with self._lock:
            available = self._available.get((market, instance_type, zone))
            if available is not None:
                self._available[market, instance_type, zone] = available + 1
