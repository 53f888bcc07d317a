"""Instance type data in the format of DescribeInstanceTypes, and prices for the local market.

The types come from moto's copy of AWS's list.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPES

from localcloud.api import ApiError

_USD_PER_VCPU_HOUR = 0.0425
_USD_PER_GIB_HOUR = 0.0028
_USD_PER_GPU_GIB_HOUR = 0.05
_MIN_SPOT_SHARE, _SPOT_SHARE_RANGE = 0.30, 0.40


class InstanceTypes:
    """The instance types in moto's copy of AWS's list.

    The prices are synthetic and constant until a replayed trace changes them, but of the same order of magnitude as
    AWS's. They differ between types and zones so that price-based allocation and maximum prices have an effect.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changes: dict[tuple[str, str], list[tuple[float, float]]] = {}

    def names(self) -> list[str]:
        """Return the sorted names of all types."""
        return sorted(INSTANCE_TYPES)

    def facts(self, name: str) -> Mapping[str, Any]:
        """Return a type's entry in the format of DescribeInstanceTypes.

        Raises:
            ApiError: InvalidParameterValue for an unknown type.
        """
        facts: Mapping[str, Any] | None = INSTANCE_TYPES.get(name)
        if facts is None:
            raise ApiError(
                "InvalidParameterValue",
                f"Invalid value '{name}' for InstanceType: the following supplied instance types do not exist",
            )
        return facts

    def on_demand_usd_per_hour(self, name: str) -> float:
        """Return a type's on-demand price."""
        facts = self.facts(name)
        gpu_mib = facts.get("GpuInfo", {}).get("TotalGpuMemoryInMiB", 0)
        price: float = (
            facts["VCpuInfo"]["DefaultVCpus"] * _USD_PER_VCPU_HOUR
            + facts["MemoryInfo"]["SizeInMiB"] / 1024 * _USD_PER_GIB_HOUR
            + gpu_mib / 1024 * _USD_PER_GPU_GIB_HOUR
        )
        return round(price, 4)

    def spot_usd_per_hour(self, name: str, zone: str) -> float:
        """Return a type's current spot price in a zone: at first 30 to 70% of its on-demand price."""
        with self._lock:
            changes = self._changes.get((name, zone))
            return changes[-1][1] if changes else self._first_spot_price(name, zone)

    def set_spot_price(self, name: str, zone: str, usd_per_hour: float, unix_seconds: float) -> None:
        """Change a type's spot price in a zone.

        Raises:
            ApiError: InvalidParameterValue for an unknown type.
        """
        self.facts(name)
        with self._lock:
            self._changes.setdefault((name, zone), []).append((unix_seconds, usd_per_hour))

    def spot_prices(self, name: str, zone: str, start: float, end: float) -> list[tuple[float, float]]:
        """Return the changes of a spot price in a period, as (time, price), after the last change before it.

        The price that no change has set is dated to the start of the period. Source (2026-11):
        https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeSpotPriceHistory.html
        """
        with self._lock:
            changes = self._changes.get((name, zone), [])
            before = [(moment, usd) for moment, usd in changes if moment <= start]
            first = before[-1] if before else (start, self._first_spot_price(name, zone))
            return [first, *((moment, usd) for moment, usd in changes if start < moment <= end)]

    def _first_spot_price(self, name: str, zone: str) -> float:
        draw = int.from_bytes(hashlib.sha256(f"{name}/{zone}".encode()).digest()[:4]) / 2**32
        return round(self.on_demand_usd_per_hour(name) * (_MIN_SPOT_SHARE + _SPOT_SHARE_RANGE * draw), 4)
